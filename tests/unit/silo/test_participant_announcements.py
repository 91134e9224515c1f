"""What a silo refuses to enter: everything that is not exactly the plan's next step, signed by the round key."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from silo_harness import NAMES, NOW, Desk

from feddrm.contract.messages import Announce, RoundOutcome
from feddrm.contract.rounds import Ack, Lost, sign_ack, sign_lost
from privacy.leaves import Reserve
from secagg.bodies import Abort
from secagg.keys import sign
from secagg.session import Announcement
from secagg.wire import COORDINATOR, Step


def charged(desk: Desk, name: str = "alpha") -> int:
    return sum(isinstance(record.leaf, Reserve) for record in desk.houses[name].ledger.leaves())


def announce(desk: Desk, announcement: Announcement, *, key: Any = None, **fields: Any) -> list[Any]:
    """Give alpha an announcement that was signed over whatever it says; returns what alpha sent."""
    frame = sign(Step.ANNOUNCE, COORDINATOR, announcement.encode(), key or desk.trial.round_key)
    event = Announce(frame, previous=fields.pop("previous", desk.outcomes.get(desk.round)), **fields)
    return desk.houses["alpha"].handle(event, NOW)


def assert_refused(desk: Desk, sent: list[Any], before: int) -> None:
    house = desk.houses["alpha"]
    assert charged(desk) == before
    assert len(house.trained) == before
    assert [event.frame.step for event in sent] == [Step.ABORT]
    last = Abort.decode(sent[-1].frame.body)
    assert not last.released
    assert last.reason == "announcement refused"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("federation", "other"),
        ("plan", b"\7" * 32),
        ("stage", 2),
        ("round", 2),
        ("cohort", NAMES[1:]),
        ("cohort", ("alpha", "gamma", "delta")),
        ("cohort", ("alpha", "beta", "delta", "epsilon")),
        ("roster", b"\7" * 32),
        ("model", b"\7" * 32),
        ("layout", b"\7" * 32),
        ("words32", 5),
        ("words64", 4),
        ("value_bound", 1 << 22),
        ("threshold", 4),
        ("minimum_cohort", 4),
        ("colluders", 1),
        ("parameters", b"\7" * 32),
        ("deadline_ms", NOW),
        ("previous", b"\7" * 32),
        ("attempt", 1 << 20),
    ],
)
def test_an_announcement_that_differs_from_the_plan_is_refused(desk: Desk, field: str, value: Any) -> None:
    honest = desk.announcement()
    if field == "colluders":
        honest, value = replace(honest, threshold=4), 2
    changed = replace(honest, **{field: value})
    sent = announce(desk, changed)
    assert_refused(desk, sent, 0)
    # The statement was for good: the same bytes are refused even if they became right.
    again = announce(desk, changed)
    assert Abort.decode(again[-1].frame.body).announcement == changed.hash()


def test_an_unsigned_announcement_gets_no_answer(desk: Desk) -> None:
    assert announce(desk, desk.announcement(), key=Ed25519PrivateKey.generate()) == []
    assert charged(desk) == 0


def test_what_was_refused_once_is_never_entered(desk: Desk) -> None:
    desk.run()
    honest = desk.announcement()
    refused = announce(desk, honest, previous=None)
    assert_refused(desk, refused, 1)
    again = announce(desk, honest)
    assert_refused(desk, again, 1)
    assert announce(desk, desk.announcement())[-1].frame.step == Step.KEYS


def test_attempts_only_rise_even_across_a_restart(desk: Desk) -> None:
    desk.open(desk.announcement(attempt=3))
    assert charged(desk) == 1
    for attempt in (3, 2, 1):
        sent = announce(desk, desk.announcement(attempt=attempt))
        assert sent[-1].frame.step == Step.ABORT
    desk.houses["alpha"].restart()
    sent = announce(desk, desk.announcement(attempt=3))
    assert sent[-1].frame.step == Step.ABORT
    sent = announce(desk, desk.announcement(attempt=4))
    assert sent[-1].frame.step == Step.KEYS
    assert charged(desk) == 1
    assert desk.houses["alpha"].trained == [1]


def test_a_repeated_announcement_gets_the_same_answer(desk: Desk) -> None:
    desk.open()
    alpha = desk.houses["alpha"]
    first = alpha.frames(Step.KEYS)[-1]
    sent = alpha.handle(desk.announce_event("alpha"))
    assert [event.frame for event in sent] == [first]
    assert alpha.trained == [1]


def outcome_of(desk: Desk, signers: tuple[str, ...], **change: Any) -> RoundOutcome:
    ack = Ack.model_validate_json(desk.outcomes[1].acks[0].body)
    ack = ack.model_copy(update=change)
    acks = tuple(sign_ack(ack, desk.trial.keys[name].identity) for name in signers)
    return RoundOutcome(1, acks, ack.sum)


def test_the_next_round_needs_the_certificate_of_the_last(desk: Desk) -> None:
    desk.run()
    stranger = Ed25519PrivateKey.generate()
    lost = Lost(plan=desk.trial.plan_hash, round=1, reason="none")
    forgeries = [
        None,
        outcome_of(desk, NAMES[:2]),
        outcome_of(desk, (NAMES[0],) * 4),
        outcome_of(desk, NAMES, model=os.urandom(32)),
        outcome_of(desk, NAMES, session=os.urandom(32)),
        outcome_of(desk, NAMES, round=2),
        RoundOutcome(2, desk.outcomes[1].acks, desk.outcomes[1].sum),
        RoundOutcome(1, lost=sign_lost(lost, stranger)),
    ]
    for forged in forgeries:
        assert_refused(desk, announce(desk, desk.announcement(), previous=forged), 1)
    assert announce(desk, desk.announcement())[-1].frame.step == Step.KEYS


def test_a_certified_round_is_not_taken_back(desk: Desk) -> None:
    desk.run()
    desk.run()
    model = desk.houses["alpha"].ready.model
    lost = sign_lost(Lost(plan=desk.trial.plan_hash, round=1, reason="none"), desk.trial.round_key)
    sent = announce(desk, desk.announcement(), previous=RoundOutcome(1, lost=lost))
    assert sent[-1].frame.step == Step.ABORT
    assert desk.houses["alpha"].ready.model == model
    resolved = desk.houses["alpha"].state.outcome(desk.trial.plan_hash, 1)
    assert resolved is not None
    assert (resolved.outcome, resolved.certified) == ("released", True)
