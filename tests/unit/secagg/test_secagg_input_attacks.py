"""Malicious silos from R3 on, against unmodified coordinator and peers: refused, blamed by name, evidence kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from secagg_harness import Federation, at, rejected, verdict

from secagg import labels
from secagg.bodies import Consistency, Masked, Opening, Shares, Unmask
from secagg.checks import share_hash
from secagg.errors import Failed, MisuseError
from secagg.hashing import blob_hash
from secagg.session import WORD64_BOUND
from secagg.wire import Step

# R3


def test_a_masked_vector_other_than_was_signed_is_refused_and_not_added(federation: Federation) -> None:
    session = at(federation, Step.MASKED)
    frame = session.respond(Step.MASKED, "silo-1")
    rejected(session, replace(frame, attachment=bytes(len(frame.attachment))), "masked vector")
    short = frame.attachment[:-8]
    body = replace(Masked.decode(frame.body), vector=blob_hash(short))
    rejected(session, federation.sign("silo-1", body, short), "masked vector")
    rejected(session, frame.without_attachment(), "masked vector")
    session.collect(Step.MASKED)
    session.server.receive(frame)
    session.server = session.server.close()
    session.advance(Step.CONSISTENCY)
    session.advance(Step.UNMASK)
    np.testing.assert_array_equal(session.published.words32, federation.total(federation.names)[0])


def test_a_mask_under_other_shares_is_refused(federation: Federation) -> None:
    session = at(federation, Step.MASKED)
    frame = session.respond(Step.MASKED, "silo-1")
    bad = federation.sign("silo-1", replace(Masked.decode(frame.body), transcript=b"t" * 32), frame.attachment)
    rejected(session, bad, "other shares")


@pytest.mark.parametrize("value", [(1 << 20) + 1, -(1 << 20) - 1, 1 << 32, -(1 << 63)])
def test_a_silo_refuses_to_mask_what_could_wrap(federation: Federation, value: int) -> None:
    """Peers' failure: sums that wrap silently."""
    session = at(federation, Step.MASKED)
    state = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    words32, words64 = federation.words("silo-0")
    words32[3] = value
    with pytest.raises(MisuseError, match="outside"):
        state.mask(words32, words64)
    words32[3] = 1 << 20
    words64[0] = WORD64_BOUND + 1
    with pytest.raises(MisuseError, match="outside"):
        state.mask(words32, words64)
    words64[0] = -WORD64_BOUND
    state.mask(words32, words64)


def test_a_vector_outside_the_range_yields_no_sum(federation: Federation) -> None:
    """A silo that ignores its bound: neither coordinator nor silos accept the wrapped sum."""
    session = at(federation, Step.MASKED)
    frame = session.respond(Step.MASKED, "silo-1")
    vector = (int.from_bytes(frame.attachment[:4], "little") ^ (1 << 31)).to_bytes(4, "little") + frame.attachment[4:]
    body = replace(Masked.decode(frame.body), vector=blob_hash(vector))
    session.server.receive(federation.sign("silo-1", body, vector))
    session.collect(Step.MASKED, {"silo-1"})
    session.server = session.server.close()
    session.advance(Step.CONSISTENCY, {"silo-1"})
    session.collect(Step.UNMASK)
    with pytest.raises(Failed, match="range"):
        session.server.close()


# R4 and R5


def test_another_agreement_and_stray_attachments_are_refused(federation: Federation) -> None:
    session = at(federation, Step.CONSISTENCY)
    frame = session.respond(Step.CONSISTENCY, "silo-1")
    rejected(session, replace(frame, attachment=b"x"), "attachment")
    bad = federation.sign("silo-1", replace(Consistency.decode(frame.body), agreement=b"z" * 32))
    rejected(session, bad, "other survivors")
    session = at(federation, Step.UNMASK)
    frame = session.respond(Step.UNMASK, "silo-1")
    rejected(session, replace(frame, attachment=b"x"), "attachment")
    bad = federation.sign("silo-1", replace(Unmask.decode(frame.body), agreement=b"z" * 32))
    rejected(session, bad, "other survivors", evidence=(bad, session.sent[Step.CONSISTENCY]["silo-1"]))


def test_altered_shares_are_blamed_by_name_and_the_others_suffice(federation: Federation) -> None:
    session = at(federation, Step.UNMASK, lost={})
    frame = session.respond(Step.UNMASK, "silo-1")
    body = Unmask.decode(frame.body)
    good = body.openings[2]
    share = bytearray(good.share)
    share[-1] ^= 1
    for lie in (
        Opening(bytes(share), good.salt),
        Opening(good.share, bytes(32)),
        Opening(b"\xff" * 66, good.salt),
        body.openings[3],
    ):
        openings = (*body.openings[:2], lie, *body.openings[3:])
        bad = federation.sign("silo-1", replace(body, openings=openings))
        rejected(session, bad, "another share than silo-2 dealt", evidence=(bad,))
    bad = federation.sign("silo-1", replace(body, openings=body.openings[:-1]))
    rejected(session, bad, "another set", evidence=(bad,))
    session.advance(Step.UNMASK, {"silo-1"})
    np.testing.assert_array_equal(session.published.words32, federation.total(federation.names)[0])


def test_the_wrong_kind_of_share_is_refused(federation: Federation) -> None:
    session = at(federation, Step.UNMASK)
    frame = session.respond(Step.UNMASK, "silo-1")
    held = session.states[Step.UNMASK]["silo-1"]
    assert held is not None
    fresh = federation.start().run(Step.CONSISTENCY)
    stolen = fresh.clients["silo-1"]._data.masked.held["silo-2"].key
    body = Unmask.decode(frame.body)
    bad = federation.sign("silo-1", replace(body, openings=(*body.openings[:2], stolen, *body.openings[3:])))
    rejected(session, bad, "another share than silo-2 dealt", evidence=(bad,))


@pytest.mark.parametrize("dropped", [False, True], ids=["seed", "mask key"])
def test_a_reconstructed_secret_that_does_not_match_blames_the_dealer(federation: Federation, dropped: bool) -> None:
    """silo-1 deals consistent shares of another secret than it committed to: found only when they are combined."""
    session = federation.start().run(Step.KEYS)
    for name in federation.names:
        state = session.clients[name].receive(session.server.outgoing[name])
        if name == "silo-1":
            joined = state._data.joined
            wrong = replace(joined.mask, private=b"w" * 32)
            joined = replace(joined, mask=wrong) if dropped else replace(joined, seed=b"w" * 32)
            state._data = replace(state._data, joined=joined)
        session.clients[name], frame = state.share()
        session.server.receive(frame)
    session.server = session.server.close()
    gone = {"silo-1"} if dropped else set()
    session.advance(Step.MASKED, gone)
    session.advance(Step.CONSISTENCY, gone)
    session.collect(Step.UNMASK, gone)
    with pytest.raises(Failed, match="committed") as caught:
        session.server.close()
    assert caught.value.blamed == {"silo-1"}
    assert verdict(session, caught.value.evidence["silo-1"]).guilty == "silo-1"


def test_shares_of_no_common_polynomial_blame_the_dealer(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    for name in federation.names:
        state = session.clients[name].receive(session.server.outgoing[name])
        if name == "silo-1":
            dealt, frame = state.share()
            body = Shares.decode(frame.body)
            wrong = Opening(b"\0" + b"q" * 65, dealt._data.own.seed.salt)
            sid = session.server.session
            entry = replace(
                body.dealt[1],
                seed_share=share_hash(labels.SELF_SHARE, sid, "silo-1", "silo-1", wrong.share, wrong.salt),
            )
            forged = replace(body, dealt=(body.dealt[0], entry, *body.dealt[2:]))
            frame = federation.sign("silo-1", forged, frame.attachment)
            own = replace(dealt._data.own, seed=wrong)
            dealt._data = replace(dealt._data, own=own, sent=frame)
            session.clients[name] = dealt
        else:
            session.clients[name], frame = state.share()
        session.server.receive(frame)
    session.server = session.server.close()
    session.advance(Step.MASKED)
    session.advance(Step.CONSISTENCY)
    session.collect(Step.UNMASK)
    with pytest.raises(Failed, match="committed") as caught:
        session.server.close()
    assert caught.value.blamed == {"silo-1"}
    assert verdict(session, caught.value.evidence["silo-1"]).guilty == "silo-1"
