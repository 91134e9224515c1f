"""Aborts, dead sessions and the certificate without which a vector is never masked again."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from secagg_harness import STEPS, Federation, frames_in, stream

from secagg import keys
from secagg.aborts import abort_certificate_valid, abort_frame, read_abort
from secagg.bodies import MAXIMUM_REASON, NO_SESSION, Abort
from secagg.client import join
from secagg.errors import MisuseError, ProtocolViolation, Rejected, SecaggError
from secagg.server import open_session
from secagg.wire import MAXIMUM_EVIDENCE, MAXIMUM_PROOF, Frame, Step


def aborts(federation: Federation, *names: str, released: bool = False, announce: Frame | None = None) -> list[Frame]:
    announced = hashlib.sha256((announce or federation.announce(federation.announcement())).body).digest()
    return [
        abort_frame(
            announcement=announced, me=name, signer=federation.identity[name], released=released, reason="restart"
        )
        for name in names
    ]


def certificate(federation: Federation, frames: list[Frame], u1: tuple[str, ...] | None = None) -> frozenset[str]:
    body = federation.announcement().encode()
    return abort_certificate_valid(frames, announce_body=body, members=federation.members, u1=u1)


@pytest.mark.parametrize("step", STEPS)
def test_a_silo_can_abort_in_every_state_and_says_whether_it_released(federation: Federation, step: Step) -> None:
    session = federation.start().run(step)
    state = session.clients["silo-0"]
    frame = state.abort("power cut", blamed="silo-3", evidence=b"seen")
    abort = read_abort(frame, federation.members)
    assert abort.released == (step == Step.UNMASK)
    assert abort.announcement == session.announcement.hash()
    assert abort.session == (NO_SESSION if step == Step.KEYS else session.server.session)
    assert (abort.blamed, abort.reason, frame.attachment) == ("silo-3", "power cut", b"seen")
    assert state.abort("something else") == frame
    request = session.published.frame if session.published else session.server.outgoing["silo-0"]
    with pytest.raises(MisuseError, match="dead"):
        state.receive(request)


def test_local_states_are_dead_after_an_abort_as_well(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    keyed = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    keyed.abort("ledger proof refused", blamed="silo-1")
    with pytest.raises(MisuseError, match="dead"):
        keyed.share()
    session = federation.start().run(Step.SHARES)
    ready = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    ready.abort("stop")
    with pytest.raises(MisuseError, match="dead"):
        ready.mask(*federation.words("silo-0"))


def test_after_an_abort_no_earlier_state_releases_anything(federation: Federation) -> None:
    """The abort says 'and never will': the state that could have released shares must refuse."""
    session = federation.start().run(Step.CONSISTENCY)
    session.states[Step.CONSISTENCY]["silo-0"].abort("stop")
    with pytest.raises(MisuseError, match="dead"):
        session.clients["silo-0"].receive(session.server.outgoing["silo-0"])


def test_an_abort_of_an_earlier_state_object_still_tells_that_shares_were_released(federation: Federation) -> None:
    session = federation.start().run()
    for step in STEPS[1:]:
        abort = Abort.decode(session.states[step]["silo-0"].abort("late").body)
        assert abort.released


def test_local_states_work_once(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    keyed = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    keyed.share()
    with pytest.raises(MisuseError, match="used"):
        keyed.share()
    session = federation.start().run(Step.SHARES)
    ready = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    ready.mask(*federation.words("silo-0"))
    with pytest.raises(MisuseError, match="used"):
        ready.mask(*federation.words("silo-0"))


def test_a_state_forgets_its_secrets_when_it_is_left(federation: Federation) -> None:
    session = federation.start().run()
    for step in STEPS[1:]:
        assert session.states[step]["silo-0"]._data is None


def test_secrets_do_not_print(federation: Federation) -> None:
    session = federation.start().run(Step.SHARES)
    ready = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    data = ready._data
    text = repr(data) + repr(data.held["silo-1"]) + repr(data.held["silo-1"].seed) + repr(session.sent[Step.SHARES])
    for secret in (data.seed, data.group, data.held["silo-1"].seed.share, *data.mask_secrets.values()):
        assert repr(secret) not in text


def test_failed_entropy_never_yields_a_frame(federation: Federation) -> None:
    announce = federation.announce(federation.announcement())
    with pytest.raises(MisuseError, match="entropy"):
        keys.draw(lambda size: bytes(size - 1), 32)
    state, _ = federation.join("silo-0", announce)
    frames = tuple(federation.join(name, announce)[1] for name in federation.names)
    state._data = replace(state._data, entropy=lambda size: b"")
    keyed = state.receive(frames)
    with pytest.raises(MisuseError, match="entropy"):
        keyed.share()
    with pytest.raises(MisuseError, match="used"):
        keyed.share()


# The certificate: K = 5, t = 4, c = 1 needs |U1| - t + c + 1 = 3 signers.


@pytest.mark.parametrize(
    ("size", "threshold", "needed"), [(3, 3, 2), (4, 3, 3), (5, 4, 3), (6, 5, 3), (10, 7, 5), (100, 67, 35)]
)
def test_how_many_signers_a_certificate_needs(size: int, threshold: int, needed: int) -> None:
    """The table of design section 3."""
    federation = Federation(size=size, threshold=threshold)
    frames = aborts(federation, *federation.names)
    assert certificate(federation, frames[:needed]) == set(federation.names[:needed])
    with pytest.raises(ProtocolViolation):
        certificate(federation, frames[: needed - 1])


def test_a_smaller_u1_needs_fewer_and_only_its_members_count() -> None:
    federation = Federation(size=6, threshold=4)
    frames = aborts(federation, *federation.names)
    u1 = federation.names[:5]
    assert certificate(federation, frames[:3], u1) == set(federation.names[:3])
    with pytest.raises(ProtocolViolation):
        certificate(federation, frames[:3])
    with pytest.raises(ProtocolViolation):
        certificate(federation, [*frames[:2], frames[5]], u1)
    for wrong in (federation.names[:3], (*federation.names[:3], "stranger"), (*federation.names[:3], "silo-0")):
        with pytest.raises(MisuseError):
            certificate(federation, frames, wrong)


def test_forged_certificates_are_refused(federation: Federation) -> None:
    good = aborts(federation, "silo-0", "silo-1", "silo-2")
    other = federation.announce(federation.announcement(attempt=2))
    stranger = Federation(name="other")
    forgeries: dict[str, Frame] = {
        "released": aborts(federation, "silo-2", released=True)[0],
        "of another attempt": aborts(federation, "silo-2", announce=other)[0],
        "the same silo twice": good[0],
        "signed by the coordinator": keys.sign(Step.ABORT, "silo-2", good[2].body, federation.round_key),
        "signed by another federation's silo": keys.sign(
            Step.ABORT, "silo-2", good[2].body, stranger.identity["silo-2"]
        ),
        "renamed": replace(good[0], sender="silo-2"),
        "in another's name": federation.sign_raw("silo-3", Step.ABORT, good[2].body),
        "of a stranger": replace(good[2], sender="stranger"),
        "changed evidence": replace(good[2], attachment=b"x"),
        "changed body": replace(good[2], body=good[2].body[:-1] + b"\0"),
        "of another step": replace(good[2], step=Step.UNMASK),
        "malformed": federation.sign_raw("silo-2", Step.ABORT, good[2].body + b"\0"),
    }
    assert certificate(federation, good) == {"silo-0", "silo-1", "silo-2"}
    for what, forged in forgeries.items():
        with pytest.raises(ProtocolViolation, match="2 signers"):
            certificate(federation, [*good[:2], forged])
        assert certificate(federation, [forged, *good]) >= {"silo-0", "silo-1", "silo-2"}, what


def test_with_a_certificate_fewer_than_t_can_ever_release(federation: Federation) -> None:
    """The worst case: all c colluders sign and still release. Then t - 1 shares exist, one too few."""
    session = federation.start().run(Step.CONSISTENCY)
    colluder, honest = "silo-4", ("silo-0", "silo-1")
    frames = [session.clients[name].abort("stop") for name in honest]
    frames += aborts(federation, colluder)
    signers = abort_certificate_valid(frames, announce_body=session.announce.body, members=federation.members)
    assert len(signers) == 3
    released = []
    for name in federation.names:
        try:
            released.append(session.clients[name].receive(session.server.outgoing[name]))
        except SecaggError:
            continue
    assert len(released) == federation.threshold - 1


def test_a_certificate_needs_an_announcement(federation: Federation) -> None:
    with pytest.raises(SecaggError):
        abort_certificate_valid([], announce_body=b"", members=federation.members)


def test_long_reasons_are_cut_and_long_evidence_left_out(federation: Federation) -> None:
    signer = federation.identity["silo-0"]
    frame = abort_frame(announcement=bytes(32), me="silo-0", signer=signer, released=False, reason="é" * 5000)
    assert len(read_abort(frame, federation.members).reason.encode()) <= MAXIMUM_REASON
    evidence = bytes(MAXIMUM_EVIDENCE + 1)
    large = abort_frame(
        announcement=bytes(32), me="silo-0", signer=signer, released=False, reason="bad", evidence=evidence
    )
    assert large.attachment == b""
    assert f"{len(evidence)} bytes left out" in read_abort(large, federation.members).reason
    with pytest.raises(Rejected):
        read_abort(replace(frame, signature=bytes(64)), federation.members)


def test_evidence_of_a_violation_fits_an_abort(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    _, second = federation.join("silo-1", session.announce, salt="again")
    with pytest.raises(ProtocolViolation) as caught:
        session.clients["silo-0"].receive((*session.server.outgoing["silo-0"], second))
    frame = session.clients["silo-0"].abort(caught.value.reason, caught.value.peer, caught.value.evidence)
    abort = read_abort(frame, federation.members)
    assert abort.blamed == "silo-1"
    assert second.without_attachment() in frames_in(frame.attachment)


# What a silo's own caller may get wrong.


def test_joining_with_arguments_that_do_not_fit_together_is_the_callers_fault(federation: Federation) -> None:
    announce = federation.announce(federation.announcement())

    def try_join(members: dict[str, bytes], me: str, signer: str, proof: bytes) -> None:
        join(
            announce,
            server_key=federation.server_key,
            members=members,
            me=me,
            signer=federation.identity[signer],
            entropy=stream("join"),
            ledger_proof=proof,
        )

    try_join(federation.members, "silo-0", "silo-0", bytes(MAXIMUM_PROOF))
    with pytest.raises(MisuseError, match="identity key"):
        try_join(federation.members, "silo-0", "silo-1", b"")
    with pytest.raises(MisuseError, match="share one identity key"):
        try_join(federation.members | {"silo-1": federation.members["silo-2"]}, "silo-0", "silo-0", b"")
    with pytest.raises(MisuseError, match="ledger proof"):
        try_join(federation.members, "silo-0", "silo-0", bytes(MAXIMUM_PROOF + 1))
    with pytest.raises(MisuseError, match="not in the roster"):
        open_session(federation.announcement(), federation.round_key, {"silo-0": b""})
