"""Checks that the attacks of the other files pass by, because another check refuses them as well: each one alone.

Found by removing one check after the other (tests/mutation).
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from secagg_harness import Federation, at, refused, rejected, swap
from secagg_proofs import honest_secret, opening_fault, roll, whole

from secagg.aborts import abort_frame, read_abort
from secagg.bodies import NO_SESSION, Abort, Keys
from secagg.checks import Signed, seed_commitment, share_hash, tag_commitment, transcript
from secagg.errors import ProtocolViolation, Rejected, WireError
from secagg.evidence import judge
from secagg.exhibits import Conflict, Loose, decode_exhibit, encode_exhibit, loose
from secagg.hashing import blob_hash
from secagg.keys import check_public
from secagg.session import WORD64_BOUND
from secagg.states import require_own
from secagg.vector import in_range
from secagg.wire import MAXIMUM_EVIDENCE, Step

P = 2**255 - 19


def test_an_own_frame_under_another_signature_is_refused(federation: Federation) -> None:
    """Only this silo could sign its body in a second way, and the sid binds signatures: it must be what it sent."""
    sent = federation.start().run(Step.KEYS).sent[Step.KEYS]["silo-0"]
    context: Any = SimpleNamespace(me="silo-0")
    body = Keys.decode(sent.body)
    require_own({"silo-0": Signed(sent, body)}, context, sent)
    for frame in (replace(sent, signature=bytes(64)), replace(sent, body=b"other")):
        with pytest.raises(ProtocolViolation, match="this silo sent"):
            require_own({"silo-0": Signed(frame, body)}, context, sent)


def test_a_silo_that_signed_two_frames_is_blamed_for_the_two_requests(federation: Federation) -> None:
    """The coordinator relays honestly what it got; the second R1 convicts who signed it, not the relay."""
    session = federation.start().run(Step.KEYS)
    frames = session.server.outgoing["silo-0"]
    _, second = federation.join("silo-1", session.announce, salt="again")
    session.clients["silo-0"].receive(frames)
    with pytest.raises(ProtocolViolation, match="two different messages") as caught:
        session.clients["silo-0"].receive(swap(frames, second))
    assert caught.value.peer == "silo-1"
    assert judge(caught.value.evidence, session.announce.body, federation.members).guilty == "silo-1"


@pytest.mark.parametrize("u", [2, 9, 18])
@pytest.mark.parametrize("which", ["transport", "mask"])
def test_a_key_in_a_second_encoding_is_refused(federation: Federation, u: int, which: str) -> None:
    """u and u + p, and both with the ignored top bit, are one key: with two encodings one key could look like two."""
    for value in (u + P, u | 1 << 255, (u + P) | 1 << 255):
        point = value.to_bytes(32, "little")
        with pytest.raises(WireError):
            check_public(point)
        session = at(federation, Step.KEYS)
        frame = session.respond(Step.KEYS, "silo-1")
        body = Keys.decode(frame.body)
        bad = replace(body, mask=point) if which == "mask" else replace(body, transport=(point, *body.transport[1:]))
        with pytest.raises(Rejected, match="malformed") as caught:
            session.server.receive(federation.sign("silo-1", bad, frame.attachment))
        assert judge(caught.value.evidence, session.announce.body, federation.members).guilty == "silo-1"


@pytest.mark.parametrize("count", [0, 3, 5])
def test_another_number_of_transport_keys_than_peers_is_refused_by_both(federation: Federation, count: int) -> None:
    session = at(federation, Step.KEYS)
    frame = session.respond(Step.KEYS, "silo-1")
    body = Keys.decode(frame.body)
    more = (*body.transport, Keys.decode(session.respond(Step.KEYS, "silo-2").body).mask)
    bad = federation.sign("silo-1", replace(body, transport=more[:count]), frame.attachment)
    with pytest.raises(Rejected, match="transport keys"):
        session.server.receive(bad)
    session = federation.start().run(Step.KEYS)
    refused(session, "silo-0", swap(session.server.outgoing["silo-0"], bad), "transport keys", peer="silo-1")


def test_the_transcript_binds_the_session() -> None:
    roll = (("a", b"1" * 32),)
    assert transcript(b"S" * 32, roll) != transcript(b"T" * 32, roll)


def test_commitments_and_share_hashes_bind_all_that_they_are_about() -> None:
    one, two = b"1" * 32, b"2" * 32
    values = [function(where, who, what) for function in (seed_commitment, tag_commitment)
              for where in (one, two) for who in ("a", "b") for what in (one, two)]  # fmt: skip
    values += [
        share_hash(label, where, owner, holder, share, salt)
        for label in (b"b", b"s")
        for where in (one, two)
        for owner in ("a", "b")
        for holder in ("a", "b")
        for share in (one, two)
        for salt in (one, two)
    ]
    assert len(set(values)) == len(values) == 2 * 8 + 64


def test_a_published_sum_is_of_its_step(federation: Federation) -> None:
    """The signature is over the label of R6, so a step field that says otherwise does not break it."""
    session = federation.start().run()
    with pytest.raises(ProtocolViolation, match="not a published sum"):
        session.clients["silo-0"].receive(replace(session.published.frame, step=Step.ABORT))


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_range_of_a_sum_is_exact(federation: Federation, count: int) -> None:
    announcement = federation.announcement()
    for bound, at_64 in ((count * announcement.value_bound, False), (count * WORD64_BOUND, True)):
        for value, good in ((bound, True), (bound + 1, False), (-bound, True), (-bound - 1, False)):
            entry, zero = np.array([0, value], dtype=np.int64), np.zeros(1, dtype=np.int64)
            words = (zero, entry) if at_64 else (entry, zero)
            assert in_range(announcement, count, *words) is good


def test_evidence_of_an_abort_has_a_limit(federation: Federation) -> None:
    """Its own signer may sign any size; a reader must not take it."""
    for size, good in ((MAXIMUM_EVIDENCE, True), (MAXIMUM_EVIDENCE + 1, False)):
        evidence = bytes(size)
        body = Abort(bytes(32), NO_SESSION, "silo-0", False, "", "x", blob_hash(evidence))
        frame = federation.sign("silo-0", body, evidence)
        if good:
            assert read_abort(frame, federation.members).sender == "silo-0"
            continue
        with pytest.raises(Rejected, match="other evidence"):
            read_abort(frame, federation.members)


def test_a_frame_that_is_refused_leaves_the_silo_missing(federation: Federation) -> None:
    session = at(federation, Step.MASKED)
    frame = session.respond(Step.MASKED, "silo-1")
    rejected(session, replace(frame, attachment=frame.attachment[:-1]), "masked vector")
    session.server.receive(frame)
    assert "silo-1" not in session.server.missing


def test_long_evidence_is_refused_before_it_is_read(federation: Federation) -> None:
    """Frames enough to pass the limit, all of them well-formed."""
    frame = replace(federation.start().announce, body=bytes(60 << 10))
    for count, good in ((4, True), (5, False)):
        data = loose([frame] * count)
        if good:
            assert decode_exhibit(data) == Loose((frame,) * count)
            continue
        with pytest.raises(WireError, match="exceeds its limit"):
            decode_exhibit(data)


# What a judge demands.


def test_an_abort_of_another_announcement_is_not_judged(federation: Federation) -> None:
    """Evidence that proves something there proves nothing here: who signed it there accused nobody falsely."""
    session, evidence = opening_fault(federation)
    frame = abort_frame(
        announcement=federation.announcement(attempt=2).hash(),
        me="silo-2",
        signer=federation.identity["silo-2"],
        released=False,
        reason="elsewhere",
        blamed="silo-3",
        evidence=evidence,
    )
    assert judge(frame, session.announce.body, federation.members).guilty == ""


def test_who_blames_nobody_or_shows_loose_frames_is_not_guilty(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    frame = session.sent[Step.KEYS]["silo-1"].without_attachment()
    nothing = encode_exhibit(Conflict(frame, frame, ()))
    for blamed, evidence, guilty in (
        ("", nothing, ""),
        ("silo-1", loose([frame]), ""),
        ("", loose([frame]), ""),
        ("silo-1", nothing, "silo-2"),
    ):
        abort = abort_frame(
            announcement=session.announcement.hash(),
            me="silo-2",
            signer=federation.identity["silo-2"],
            released=False,
            reason="look",
            blamed=blamed,
            evidence=evidence,
        )
        assert judge(abort, session.announce.body, federation.members).guilty == guilty


def test_an_r5_of_no_session_denies_no_abort(federation: Federation) -> None:
    """An honest abort beside an R5 that its signer never signed, or signed in another session."""
    session = whole(federation)
    honest = federation.start().run(Step.CONSISTENCY).clients["silo-1"].abort("stop")
    unmask = session.sent[Step.UNMASK]["silo-1"]
    elsewhere = federation.start(nonce=b"o" * 32).run().sent[Step.UNMASK]["silo-1"]
    for frame in (replace(unmask, signature=bytes(64)), elsewhere):
        evidence = encode_exhibit(Conflict(frame, honest, roll(session)))
        assert judge(evidence, session.announce.body, federation.members).guilty == ""


def test_a_second_r1_beside_true_shares_convicts_nobody(federation: Federation) -> None:
    """Shares are judged by the R1 that is in the sid; another R1 is a fault of its own, and another proof."""
    session = whole(federation)
    true = honest_secret(session, "silo-1")
    _, second = federation.join("silo-1", session.announce, salt="again")
    claim = encode_exhibit(replace(true, keys=second.without_attachment()))
    assert judge(claim, session.announce.body, federation.members).guilty == ""
