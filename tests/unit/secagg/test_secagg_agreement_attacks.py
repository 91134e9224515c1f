"""A malicious coordinator that wants both masks of one silo opened: R3 to R5."""

from __future__ import annotations

from dataclasses import replace

import pytest
from secagg_harness import Federation, Session, frames_in, of, refused, swap, without

from secagg.bodies import Abort, Consistency, Masked
from secagg.errors import MisuseError, ProtocolViolation
from secagg.wire import Frame, Step

Frames = tuple[Frame, ...]


# R3 and R4: the victim that is both survivor and dropped


def split_survivors(federation: Federation) -> tuple[Session, Frames, Frames]:
    """Everybody sent R3; the coordinator holds two requests that differ in whether silo-4 survived."""
    session = federation.start().run(Step.MASKED)
    full = session.server.outgoing["silo-0"]
    return session, full, without(full, "silo-4")


def test_a_victim_both_survivor_and_dropped_in_two_requests_to_one_silo(federation: Federation) -> None:
    session, full, less = split_survivors(federation)
    first, _ = session.clients["silo-0"].receive(full)
    with pytest.raises(ProtocolViolation, match="second, different"):
        session.clients["silo-0"].receive(less)
    with pytest.raises(MisuseError, match="dead"):
        first.receive(())


def test_forked_survivor_sets_never_reach_t_signers_on_both_sides() -> None:
    """c = 3 of K = 10 collude and sign both values; 7 honest silos are split in every way. Never both sides open."""
    federation = Federation(size=10, threshold=7, colluders=3)
    honest, colluding = federation.names[:7], federation.names[7:]
    for left in range(1, 7):
        session = federation.start().run(Step.MASKED)
        full = session.server.outgoing["silo-0"]
        less = without(full, "silo-9")
        states, signed = {}, {}
        for index, name in enumerate(honest):
            states[name], signed[name] = session.clients[name].receive(full if index < left else less)
        values = {name: Consistency.decode(frame.body).agreement for name, frame in signed.items()}
        assert len(set(values.values())) == 2
        released: set[bytes] = set()
        for name, state in states.items():
            lies = [federation.sign(c, Consistency(session.server.session, c, values[name])) for c in colluding[:2]]
            request = [frame for other, frame in signed.items() if values[other] == values[name]]
            try:
                state.receive((*request, *lies))
            except ProtocolViolation:
                continue
            released.add(values[name])
        assert len(released) <= 1


def test_reordered_survivors_are_the_same_survivors(federation: Federation) -> None:
    session, full, _ = split_survivors(federation)
    _, one = session.clients["silo-0"].receive(full)
    _, other = session.clients["silo-1"].receive(tuple(reversed(full)))
    assert Consistency.decode(one.body).agreement == Consistency.decode(other.body).agreement


def test_a_different_masked_vector_of_one_silo_shown_to_some_is_another_agreement(federation: Federation) -> None:
    session, full, _ = split_survivors(federation)
    forked = federation.sign("silo-4", replace(Masked.decode(of(full, "silo-4").body), vector=b"v" * 32))
    one, mine = session.clients["silo-0"].receive(full)
    _, theirs = session.clients["silo-1"].receive(swap(full, forked))
    with pytest.raises(ProtocolViolation, match="agreed on other survivors"):
        one.receive((mine, theirs))


def test_fewer_than_t_signers_open_nothing(federation: Federation) -> None:
    session = federation.start().run(Step.CONSISTENCY)
    frames = session.server.outgoing["silo-0"]
    refused(session, "silo-0", frames[:3], "3 signers")
    assert not Abort.decode(session.clients["silo-0"].abort("too few").body).released


def test_t_signatures_of_which_one_is_over_another_value_open_nothing(federation: Federation) -> None:
    session = federation.start().run(Step.CONSISTENCY)
    frames = session.server.outgoing["silo-0"]
    lie = federation.sign("silo-1", Consistency(session.server.session, "silo-1", b"z" * 32))
    caught = refused(session, "silo-0", swap(frames, lie), "other survivors")
    assert frames_in(caught.evidence) == [lie]


def test_one_signature_counted_under_several_names_opens_nothing(federation: Federation) -> None:
    session = federation.start().run(Step.CONSISTENCY)
    frames = session.server.outgoing["silo-0"]
    copies = tuple(replace(frames[0], sender=name) for name in federation.names[:4])
    refused(session, "silo-0", copies, "valid signature")


def test_signers_outside_the_survivors_do_not_count(federation: Federation) -> None:
    session = federation.start().run(Step.CONSISTENCY, lost={Step.MASKED: {"silo-4"}})
    frames = session.server.outgoing["silo-0"]
    value = Consistency.decode(frames[0].body)
    ghost = federation.sign("silo-4", replace(value, sender="silo-4"))
    refused(session, "silo-0", (*frames[:3], ghost), "not a member")


def test_a_resend_after_release_is_identical_and_a_different_request_ends_the_session(federation: Federation) -> None:
    federation = Federation(size=6, threshold=4)
    session = federation.start().run(Step.CONSISTENCY)
    state, frames = session.clients["silo-0"], session.server.outgoing["silo-0"]
    _, first = state.receive(frames)
    _, again = state.receive(frames)
    assert first == again
    with pytest.raises(ProtocolViolation, match="second, different"):
        state.receive(frames[:4])


def test_a_silo_believes_its_own_name_no_more_than_others(federation: Federation) -> None:
    """What it signed itself it need not verify, but only byte for byte: else it would count a forgery as one of t."""
    session = federation.start().run(Step.CONSISTENCY)
    frames = session.server.outgoing["silo-0"]
    forged = replace(of(frames, "silo-0"), signature=bytes(64))
    refused(session, "silo-0", swap(frames, forged), "valid signature")
