"""A malicious coordinator against unmodified silos, R0 to R2 and what every relayed step shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from secagg_harness import STEPS, Federation, of, refused, swap, without

from secagg import keys
from secagg.bodies import Keys
from secagg.errors import MisuseError, ProtocolViolation
from secagg.hashing import blob_hash
from secagg.keys import KeyPair
from secagg.wire import MAXIMUM_PROOF, Frame, Step

Frames = tuple[Frame, ...]


# The checks that every relayed step shares.


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_relayed_frame_with_a_forged_signature_is_refused(federation: Federation, step: Step) -> None:
    session = federation.start().run(step)
    frames = session.server.outgoing["silo-0"]
    victim = of(frames, "silo-1")
    forged = replace(victim, signature=victim.signature[:-1] + bytes([victim.signature[-1] ^ 1]))
    refused(session, "silo-0", swap(frames, forged), "valid signature")


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_frame_signed_by_the_round_key_in_a_silos_name_is_refused(federation: Federation, step: Step) -> None:
    session = federation.start().run(step)
    frames = session.server.outgoing["silo-0"]
    victim = of(frames, "silo-1")
    forged = keys.sign(step, "silo-1", victim.body, federation.round_key, victim.attachment)
    refused(session, "silo-0", swap(frames, forged), "valid signature")


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_silos_frame_in_another_silos_name_is_refused(federation: Federation, step: Step) -> None:
    session = federation.start().run(step)
    frames = session.server.outgoing["silo-0"]
    stolen = replace(of(frames, "silo-2"), sender="silo-1")
    refused(session, "silo-0", swap(frames, stolen), "valid signature")


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_frame_of_a_silo_outside_the_set_is_refused(federation: Federation, step: Step) -> None:
    other = Federation(size=6, threshold=5)
    session = federation.start().run(step)
    frames = session.server.outgoing["silo-0"]
    stranger = keys.sign(step, "silo-5", frames[0].body, other.identity["silo-5"])
    refused(session, "silo-0", (*frames, stranger), "not a member")


@pytest.mark.parametrize("step", STEPS[1:4])
def test_a_silo_that_dropped_out_before_cannot_return_in_a_later_step(federation: Federation, step: Step) -> None:
    earlier = STEPS[STEPS.index(step) - 1]
    whole = federation.start().run(step)
    session = federation.start().run(step, lost={earlier: {"silo-4"}})
    frames = session.server.outgoing["silo-0"]
    refused(session, "silo-0", (*frames, of(whole.server.outgoing["silo-0"], "silo-4")), "not a member")


@pytest.mark.parametrize("step", STEPS[:4])
@pytest.mark.parametrize("other", STEPS[:4])
def test_every_step_out_of_order_is_refused(federation: Federation, step: Step, other: Step) -> None:
    if step == other:
        return
    whole = federation.start().run(Step.CONSISTENCY)
    session = federation.start().run(step)
    frames = tuple(whole.sent[other].values())
    refused(session, "silo-0", frames, "where")


def test_a_body_signed_for_one_step_does_not_verify_as_another(federation: Federation) -> None:
    session = federation.start().run(Step.MASKED)
    frames = session.server.outgoing["silo-0"]
    stolen = Frame(
        Step.MASKED, "silo-1", session.sent[Step.SHARES]["silo-1"].body, session.sent[Step.SHARES]["silo-1"].signature
    )
    refused(session, "silo-0", swap(frames, stolen), "valid signature")


@pytest.mark.parametrize("step", STEPS[:4])
@pytest.mark.parametrize(
    "change",
    [{"stage": 2}, {"round": 2}, {"attempt": 2}, {"nonce": b"n" * 32}, {"federation": "other"}, {"plan": b"p" * 32}],
    ids=["stage", "round", "attempt", "session", "federation", "plan"],
)
def test_replay_across_stages_rounds_attempts_sessions_and_federations_is_refused(
    federation: Federation, step: Step, change: dict[str, Any]
) -> None:
    old = federation.start().run(step)
    session = federation.start(**change).run(step)
    frames = session.server.outgoing["silo-0"]
    replayed = of(old.server.outgoing["silo-0"], "silo-1")
    refused(session, "silo-0", swap(frames, replayed), "another session")


@pytest.mark.parametrize("step", STEPS[:3])
def test_a_request_without_this_silos_own_frame_is_refused(federation: Federation, step: Step) -> None:
    session = federation.start().run(step)
    refused(session, "silo-0", without(session.server.outgoing["silo-0"], "silo-0"), "this silo sent")


@pytest.mark.parametrize("step", STEPS[:3])
def test_a_request_below_the_threshold_is_refused(federation: Federation, step: Step) -> None:
    session = federation.start().run(step)
    refused(session, "silo-0", without(session.server.outgoing["silo-0"], "silo-1", "silo-2"), "at least 4")


@pytest.mark.parametrize("step", STEPS[:3])
def test_a_request_below_the_minimum_cohort_is_refused(step: Step) -> None:
    session = Federation(minimum_cohort=5).start().run(step)
    refused(session, "silo-0", without(session.server.outgoing["silo-0"], "silo-1"), "at least 5")


@pytest.mark.parametrize("step", STEPS[:4])
def test_one_frame_twice_is_refused(federation: Federation, step: Step) -> None:
    session = federation.start().run(step)
    frames = session.server.outgoing["silo-0"]
    refused(session, "silo-0", (*frames, frames[1]), "two")


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_byte_identical_request_gets_the_identical_answer(federation: Federation, step: Step) -> None:
    session = federation.start().run(step)
    frames = session.server.outgoing["silo-0"]
    first = session.clients["silo-0"].receive(frames)
    assert session.clients["silo-0"].receive(tuple(reversed(frames))) is first


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_second_different_request_ends_the_session(federation: Federation, step: Step) -> None:
    session = federation.start().run(step)
    state, frames = session.clients["silo-0"], session.server.outgoing["silo-0"]
    state.receive(frames)
    with pytest.raises(ProtocolViolation, match="second, different"):
        state.receive(without(frames, "silo-4"))
    with pytest.raises(MisuseError, match="dead"):
        state.receive(frames)


@pytest.mark.parametrize("step", STEPS[:2])
def test_other_attachments_under_the_same_signatures_are_a_different_request(
    federation: Federation, step: Step
) -> None:
    session = federation.start().run(step)
    state, frames = session.clients["silo-0"], session.server.outgoing["silo-0"]
    state.receive(frames)
    with pytest.raises(ProtocolViolation, match="second, different"):
        state.receive(swap(frames, replace(of(frames, "silo-1"), attachment=b"other")))


# R0


@pytest.mark.parametrize(
    ("tamper", "match"),
    [
        (lambda f, a: keys.sign(Step.ANNOUNCE, "", a.body, f.identity["silo-1"]), "round key"),
        (lambda f, a: replace(a, body=a.body + b"\0"), "round key"),
        (lambda f, a: keys.sign(Step.ANNOUNCE, "", a.body + b"\0", f.round_key), "refused"),
        (lambda f, a: keys.sign(Step.ANNOUNCE, "", a.body[:-1], f.round_key), "refused"),
        (lambda f, a: replace(a, sender="silo-1"), "not an announcement"),
        (lambda f, a: replace(a, step=Step.PUBLISH), "not an announcement"),
        (lambda f, a: replace(a, attachment=b"x"), "not an announcement"),
        (lambda f, a: f.announce(f.announcement(cohort=("silo-1", "silo-2", "silo-3", "silo-4"))), "without this silo"),
        (lambda f, a: f.announce(f.announcement(cohort=(*f.names[:4], "sham"))), "not in the roster"),
    ],
)
def test_a_bad_announcement_is_refused(
    federation: Federation, tamper: Callable[[Federation, Frame], Frame], match: str
) -> None:
    announce = tamper(federation, federation.announce(federation.announcement()))
    with pytest.raises(ProtocolViolation, match=match) as caught:
        federation.join("silo-0", announce)
    assert caught.value.peer == ""


@pytest.mark.parametrize(
    "change",
    [
        {"model": b"m" * 32},
        {"threshold": 5},
        {"minimum_cohort": 4},
        {"layout": b"l" * 32},
        {"roster": b"r" * 32},
        {"previous": b"x" * 32},
        {"cohort": ("silo-1", "silo-0", "silo-2", "silo-3", "silo-4")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_different_announcements_to_different_silos_stop_before_any_masked_input(
    federation: Federation, change: dict[str, Any]
) -> None:
    """Different models, thresholds, cohorts or orders: no honest silo gets past R1."""
    session = federation.start().run(Step.KEYS)
    frames = session.server.outgoing["silo-0"]
    _, other = federation.join("silo-1", federation.announce(federation.announcement(**change)))
    refused(session, "silo-0", swap(frames, other), "another session")


# R1


def test_keys_substituted_by_the_coordinators_are_refused(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    frames = session.server.outgoing["silo-0"]
    mine = KeyPair.from_private(b"c" * 32)
    body = Keys.decode(of(frames, "silo-1").body)
    body = replace(body, transport=(mine.public, *body.transport[1:]), mask=KeyPair.from_private(b"d" * 32).public)
    for signer in (federation.round_key, federation.identity["silo-2"]):
        fresh = federation.start().run(Step.KEYS)
        forged = keys.sign(Step.KEYS, "silo-1", body.encode(), signer, of(frames, "silo-1").attachment)
        refused(fresh, "silo-0", swap(frames, forged), "valid signature")


def test_own_keys_substituted_are_refused(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    _, second = federation.join("silo-0", session.announce, salt="again")
    refused(session, "silo-0", swap(session.server.outgoing["silo-0"], second), "this silo sent")


def test_a_swapped_ledger_proof_is_refused(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    frames = session.server.outgoing["silo-0"]
    refused(session, "silo-0", swap(frames, replace(of(frames, "silo-1"), attachment=b"other")), "ledger proof")


def test_an_oversized_ledger_proof_is_refused_though_its_silo_signed_it(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    frames = session.server.outgoing["silo-0"]
    large = bytes(MAXIMUM_PROOF + 1)
    body = replace(Keys.decode(of(frames, "silo-1").body), proof=blob_hash(large))
    refused(session, "silo-0", swap(frames, federation.sign("silo-1", body, large)), "ledger proof")


def test_two_r1_of_one_silo_shown_to_different_silos_end_in_different_sessions(federation: Federation) -> None:
    """A colluding silo signs two R1, one is shown to each half: no share of one half opens in the other."""
    session = federation.start().run(Step.KEYS)
    _, second = federation.join("silo-4", session.announce, salt="again")
    left = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    right = session.clients["silo-1"].receive(swap(session.server.outgoing["silo-1"], second))
    assert left.session != right.session
    _, shares = right.share()
    waiting, own = left.share()
    with pytest.raises(ProtocolViolation, match="another session"):
        waiting.receive((own, replace(shares, attachment=shares.attachment[:244])))


# R2


def test_readdressed_ciphertexts_are_refused(federation: Federation) -> None:
    session = federation.start().run(Step.SHARES)
    frames = session.server.outgoing["silo-0"]
    others = of(session.server.outgoing["silo-2"], "silo-1").attachment
    refused(session, "silo-0", swap(frames, replace(of(frames, "silo-1"), attachment=others)), "other than")


@pytest.mark.parametrize("tamper", [lambda c: c[:-1], lambda c: c + b"\0", lambda c: bytes(len(c)), lambda c: b""])
def test_altered_ciphertexts_are_the_coordinators_fault(
    federation: Federation, tamper: Callable[[bytes], bytes]
) -> None:
    session = federation.start().run(Step.SHARES)
    frames = session.server.outgoing["silo-0"]
    victim = of(frames, "silo-1")
    refused(session, "silo-0", swap(frames, replace(victim, attachment=tamper(victim.attachment))), "other than")


def test_u2_hidden_from_some_silos_yields_no_unmasking(federation: Federation) -> None:
    """Half of the silos mask without silo-4, half with it: transcripts differ, and nobody signs R4."""
    session = federation.start().run(Step.SHARES)
    masked: dict[str, Frame] = {}
    states: dict[str, Any] = {}
    for index, name in enumerate(federation.names[:4]):
        frames = session.server.outgoing[name]
        seen = frames if index < 2 else without(frames, "silo-4")
        states[name], masked[name] = session.clients[name].receive(seen).mask(*federation.words(name))
    request = tuple(frame.without_attachment() for frame in masked.values())
    for name, state in states.items():
        with pytest.raises(ProtocolViolation, match="other shares"):
            state.receive(request)
        assert name in masked
