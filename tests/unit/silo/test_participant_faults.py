"""An error that nobody expected ends one session, round or offer, never the agent (design 9)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from silo_harness import NAMES, Desk, House

from feddrm.contract.messages import JobOffer, OutcomeEvent, PlanAnswer, Ready, ReleaseProposal
from privacy.leaves import Abort, Reserve
from secagg.bodies import Abort as LastWord
from secagg.client import join
from secagg.server import open_session
from secagg.wire import Step
from silo.effects import Connected, Train

STEPS = (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY)


def broken(*_: object, **__: object) -> Any:
    raise ZeroDivisionError


def goes_on(desk: Desk, house: House) -> None:
    """The round is lost, and the next one works."""
    house.expects_internal = False
    outcome = desk.lose()
    for other in desk.houses.values():
        other.handle(OutcomeEvent(outcome))
    desk.run()
    assert house.ready.round == desk.round
    assert house.trained[-1] == desk.round


def last_word(house: House) -> LastWord:
    return LastWord.decode(house.frames(Step.ABORT)[-1].body)


@pytest.mark.parametrize("proof", [b"x" * (192 << 10), b"[" * (150 << 10), b'{"a":' * 30_000, b"9" * (100 << 10), b""])
def test_no_ledger_proof_of_a_peer_does_more_than_end_its_session(desk: Desk, proof: bytes) -> None:
    evil, others = NAMES[0], NAMES[1:]
    announcement = desk.announcement()
    desk.server, desk.announce = open_session(announcement, desk.trial.round_key, desk.members)
    desk.cohort = announcement.cohort
    _, frame = join(
        desk.announce,
        server_key=desk.trial.roster.round_key,
        members=desk.members,
        me=evil,
        signer=desk.trial.keys[evil].identity,
        entropy=os.urandom,
        ledger_proof=proof,
    )
    for name in others:
        desk.houses[name].handle(desk.announce_event(name))
    desk.server.receive(frame)
    for name in others:
        desk.server.receive(desk.houses[name].frames(Step.KEYS)[-1])
    for name, event in desk.request(Step.KEYS).items():
        if name != evil:
            desk.houses[name].handle(event)
            assert last_word(desk.houses[name]).blamed == evil
    goes_on(desk, desk.houses["beta"])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("used_up", [False, True])
def test_an_error_in_a_session_is_a_signed_abort(
    desk: Desk, step: Step, used_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.open()
    for earlier in STEPS[: STEPS.index(step)]:
        desk.advance(earlier)
    alpha = desk.houses["alpha"]
    event = desk.request(step)["alpha"]
    session: Any = alpha.participant._reactions._rounds.current
    alpha.expects_internal = True
    with monkeypatch.context() as patch:
        if used_up:
            # After the protocol's own state was consumed: it refuses to make the abort.
            advance = session._advance

            def late(frames: Any) -> Any:
                before = session._waiting
                advance(frames)
                session._waiting = before
                raise ZeroDivisionError

            patch.setattr(session, "_advance", late)
        else:
            patch.setattr(session, "_advance", broken)
        sent = alpha.handle(event)
    assert [e.frame.step for e in sent] == [Step.ABORT]
    word = LastWord.decode(sent[0].frame.body)
    assert word.announcement == desk.announcement_hash
    assert word.reason == "internal error"
    # Shares that were marked as released count as released, whatever happened to the frame.
    assert word.released == (used_up and step == Step.CONSISTENCY)
    assert "ZeroDivisionError" in alpha.internal[0]
    # Dead: the same request again gets nothing of the protocol.
    assert not [e for e in alpha.handle(event) if e.frame.step != Step.ABORT]
    goes_on(desk, alpha)


WHERE: dict[str, Callable[[House, pytest.MonkeyPatch], None]] = {
    "before it is entered": lambda h, m: m.setattr(h.participant._reactions._rounds._admission, "check", broken),
    "on entering": lambda h, m: m.setattr(h.state, "enter", broken),
    "on reserving": lambda h, m: m.setattr(h.gate, "reserve", broken),
    "after reserving": lambda h, m: m.setattr(h.state, "personal", broken),
    "on joining": lambda h, m: m.setattr(h.participant._reactions._witnessing, "proof", broken),
}


@pytest.mark.parametrize("where", WHERE)
def test_an_error_on_an_announcement_declines_it(desk: Desk, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha = desk.houses["alpha"]
    alpha.expects_internal = True
    with monkeypatch.context() as patch:
        WHERE[where](alpha, patch)
        desk.open()
    assert not alpha.frames(Step.KEYS)
    assert last_word(alpha).announcement == desk.announcement_hash
    assert not last_word(alpha).released
    leaves = [record.leaf for record in alpha.ledger.leaves()]
    if where == "after reserving":
        # What was charged stays charged, and is ended.
        assert [leaf.round for leaf in leaves if isinstance(leaf, Reserve)] == [1]
        assert [leaf.reason for leaf in leaves if isinstance(leaf, Abort)] == ["failed"]
        assert alpha.gate.spent(desk.trial.plan_hash).pld > 0
    assert "ZeroDivisionError" in alpha.internal[0]
    goes_on(desk, alpha)


def test_a_training_result_that_cannot_be_used_is_spent(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    alpha.hold = Train
    desk.open()
    train = next(effect for effect in alpha.effects if isinstance(effect, Train))
    alpha.expects_internal = True
    result = alpha.trained_event(train)
    alpha.handle(replace(result, update=np.array(["not", "numbers"])))
    assert last_word(alpha).reason == "declined"
    assert [record.leaf.reason for record in alpha.ledger.leaves() if isinstance(record.leaf, Abort)] == ["failed"]
    alpha.hold = None
    goes_on(desk, alpha)


def test_an_error_on_an_offer_declines_it(make_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    desk = make_desk()
    alpha = desk.houses["alpha"]
    alpha.expects_internal = True
    offer = JobOffer(desk.trial.signed_plan.signed)
    with monkeypatch.context() as patch:
        patch.setattr(alpha.participant._reactions._permission, "charge", broken)
        sent = alpha.handle(offer)
    assert [(e.accepted, e.reason.name) for e in sent] == [(False, "POLICY")]
    accepted = alpha.handle(offer)[0]
    assert isinstance(accepted, PlanAnswer)
    assert accepted.accepted


@pytest.mark.parametrize("kind", ["outcome", "proposal"])
def test_an_error_elsewhere_leaves_the_session_alone(desk: Desk, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.open()
    alpha = desk.houses["alpha"]
    alpha.expects_internal = True
    with monkeypatch.context() as patch:
        patch.setattr(alpha.participant._reactions._outcomes, "outcome", broken)
        patch.setattr(alpha.participant._reactions._releases, "propose", broken)
        event = OutcomeEvent(desk.outcomes.get(1) or desk.lose()) if kind == "outcome" else ReleaseProposal(b"{}")
        assert alpha.handle(event) == []
    assert len(alpha.internal) == 1
    assert alpha.handle(desk.request(Step.KEYS)["alpha"])[-1].frame.step == Step.SHARES


def test_an_error_at_the_start_is_survived(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from silo.rounds import Rounds

    alpha = desk.houses["alpha"]
    alpha.expects_internal = True
    with monkeypatch.context() as patch:
        patch.setattr(Rounds, "recover", broken)
        alpha.restart()
    assert isinstance(alpha.handle(Connected())[0], Ready)


def test_a_disk_that_fails_is_not_survived(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going on would send what rests on something that was never written."""
    alpha = desk.houses["alpha"]

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(alpha.state, "enter", full)
        with pytest.raises(sqlite3.OperationalError):
            desk.open()
    assert not alpha.frames(Step.KEYS)
    assert not alpha.frames(Step.ABORT)
