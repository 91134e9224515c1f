"""What a round is refused with after the records were read, or the personal head was tuned, tells not how long that
took."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from silo_harness import NAMES, NOW, Desk, House
from silo_world import World
from test_stages_with_coordinator import world_of

from feddrm.contract.messages import Announce, PlanAnswer, SiloFrame
from privacy.leaves import Reserve
from secagg.server import open_session
from secagg.wire import Step
from silo.effects import DataRefused, LoadData, Tune, Tuned

SLOT_MS = 500
Make = Callable[..., Desk]


def announced(desk: Desk, attempt: int = 1) -> Announce:
    """An announcement to all four, as alpha gets it."""
    announcement = desk.announcement(attempt)
    desk.server, desk.announce = open_session(announcement, desk.trial.round_key, desk.members)
    desk.cohort = announcement.cohort
    return desk.announce_event("alpha")


def reading(desk: Desk) -> House:
    """Alpha, started anew, whose records are being read."""
    alpha = desk.houses["alpha"]
    alpha.slot_ms, alpha.hold = SLOT_MS, LoadData
    alpha.restart()
    return alpha


def leaves_at(house: House, asked: int = NOW) -> int:
    """Milliseconds after `asked` at which what was held back leaves, the clock going on as the agent's does."""
    due, before = house.participant.due_ms, len(house.sent)
    assert due is not None
    assert not house.participant.between_rounds, "a change of roster now would lose the answer"
    house.perform(house.participant.tick(due - 1))
    assert len(house.sent) == before, "it leaves before it is due"
    house.perform(house.participant.tick(due))
    assert len(house.sent) > before
    return due - asked


@pytest.mark.parametrize(("refused_after", "slot"), [(1, 500), (499, 500), (630, 1000), (1700, 2000)])
def test_records_that_cannot_be_used_are_told_of_at_the_end_of_a_slot(
    desk: Desk, refused_after: int, slot: int
) -> None:
    alpha = reading(desk)
    assert alpha.handle(announced(desk)) == []
    assert alpha.handle(DataRefused(desk.trial.plan_hash, "no table"), NOW + refused_after) == []
    assert leaves_at(alpha) == slot
    aborted, declined = alpha.sent[-2:]
    assert isinstance(aborted, SiloFrame)
    assert aborted.frame.step == Step.ABORT
    assert isinstance(declined, PlanAnswer)
    assert not declined.accepted


def test_announcing_again_and_again_does_not_measure_the_reading(desk: Desk) -> None:
    alpha = reading(desk)
    for attempt, after in ((1, 0), (2, 300), (3, 610)):
        assert alpha.handle(announced(desk, attempt), NOW + after) == []
    assert alpha.handle(DataRefused(desk.trial.plan_hash, "no table"), NOW + 620) == []
    assert leaves_at(alpha) == 1000


def test_a_permission_taken_back_while_the_records_were_read(desk: Desk) -> None:
    alpha = reading(desk)
    assert alpha.handle(announced(desk)) == []
    alpha.policy = desk.trial.policy(job_epsilon=1e-3)
    assert alpha.handle(alpha.loaded_event(desk.trial.plan_hash), NOW + 630) == []
    assert leaves_at(alpha) == 1000
    assert not any(isinstance(e.leaf, Reserve) for e in alpha.ledger.leaves())


def test_what_was_not_waited_for_is_refused_at_once(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    alpha.slot_ms = SLOT_MS
    alpha.restart()
    alpha.policy = desk.trial.policy(job_epsilon=1e-3)
    assert [type(event) for event in alpha.handle(announced(desk))] == [SiloFrame, PlanAnswer]


def tuning(make_desk: Make) -> tuple[World, House]:
    """A federation whose first silo tunes its head before the evaluation, which is announced to all."""
    world = world_of(make_desk, 3)
    house = world.houses[NAMES[0]]
    house.hold = Tune
    world.run(until=lambda: any(isinstance(effect, Tune) for effect in house.effects))
    # From here on; the rounds before are of no interest, and would each take a slot.
    object.__setattr__(house.context, "slot_ms", SLOT_MS)
    return world, house


@pytest.mark.parametrize("why", ["permission", "budget"])
def test_a_round_refused_after_tuning_waits_for_its_slot(make_desk: Make, why: str) -> None:
    world, house = tuning(make_desk)
    before = len(house.sent)
    effect = next(effect for effect in house.effects if isinstance(effect, Tune))
    if why == "permission":
        house.policy = world.trial.policy(job_epsilon=1e-3)
    else:
        house.policy = world.trial.policy(rounds_without_release=0)
    later = house.participant._reactions._rounds._asked[2] + 630
    assert house.handle(Tuned(effect.plan_hash, effect.personal), later) == []
    assert leaves_at(house, later - 630) == 1000
    assert [event.frame.step for event in house.sent[before:] if isinstance(event, SiloFrame)] == [Step.ABORT]
