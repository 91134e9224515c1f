"""An evaluation that is lost costs neither the release nor more than the plan says: there is a spare round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from silo_harness import NAMES, Desk
from silo_world import World
from test_stages_with_coordinator import EVALUATION, STAGES, check, world_of

from aggregator.events import Stamp, Ticked
from aggregator.job import Room
from aggregator.phases import Acknowledging, Ended, Proposing, Running
from aggregator.status import status_of
from feddrm.contract.announce import announcement_of, outcome_hash
from feddrm.contract.charge import charge
from feddrm.contract.errors import MalformedError
from feddrm.contract.messages import Announce, SiloFrame
from feddrm.contract.release import Statement
from feddrm.contract.schedule import describe, last_round, rounds_shown
from feddrm.method.progress import advance
from privacy.accounting import epsilon
from privacy.leaves import Reserve
from secagg.server import open_session
from secagg.wire import Step
from silo.context import Work, place_of

FIRST = 6


def lose(world: World, number: int, *, opened: bool = False) -> None:
    """Lose a round: all silos but one go away for longer than it waits, or restart once its sum is open."""
    for _ in range(20_000):
        phase = world.job.phase
        if (
            isinstance(phase, Acknowledging if opened else Running)
            and phase.round == number
            and (opened or masked(world))
        ):
            break
        assert world.step()
    for name in NAMES[1:]:
        (world.crash if opened else world.disconnect)(name)
        if opened:
            world.connect(name)
    while len(world.job.outcomes) < number:
        assert world.step()
    assert world.job.outcomes[-1].lost is not None
    for name in NAMES[1:]:
        if name not in world.connected:
            world.connect(name)


def masked(world: World) -> bool:
    """Whether a silo may have masked: from now on the session cannot simply be repeated."""
    house, plan = world.houses[NAMES[0]], world.trial.plan_hash
    return any(entered.masked for entered in house.state.entered(plan, 4, len(world.job.outcomes) + 1))


def play(world: World) -> None:
    while not isinstance(world.job.phase, Proposing | Ended) and world.step():
        pass
    while world.pending():
        world.step()


def begun(make_desk: Callable[..., Desk], **evaluation: Any) -> World:
    world = world_of(make_desk, 4, evaluation={**EVALUATION, **evaluation})
    world.run(until=lambda: len(world.job.outcomes) == FIRST - 1)
    return world


def evaluations(world: World) -> list[list[int]]:
    return [
        [e.leaf.round for e in house.ledger.leaves() if isinstance(e.leaf, Reserve) and e.leaf.stage == 4]
        for house in world.houses.values()
    ]


def test_a_lost_evaluation_is_tried_again_and_the_job_is_released(make_desk: Callable[..., Desk]) -> None:
    world = begun(make_desk, required=True)
    lose(world, FIRST)
    play(world)
    check(world)
    assert [outcome.lost is None for outcome in world.job.outcomes] == [True] * 5 + [False, True]
    statement = Statement.model_validate_json(world.job.phase.statement)
    assert statement.evaluation is not None
    assert statement.evaluation.total == (15,) * 4
    assert len(world.job.phase.signatures) == 4
    assert evaluations(world) == [[6, 7]] * 4
    # Both were charged, and that is what the plan had said: once with the spare round, which is not much more.
    plan = world.trial.plan
    charged = [e.leaf.event for e in world.houses[NAMES[0]].ledger.leaves() if isinstance(e.leaf, Reserve)]
    assert epsilon(charged, plan.privacy.delta).pld == pytest.approx(charge(plan).epsilon, abs=2e-6)


def test_no_second_sum_is_opened_beside_one_that_may_be_known(make_desk: Callable[..., Desk]) -> None:
    """A coordinator that keeps a sum to itself, and then has another one over other silos, could subtract them."""
    world = begun(make_desk, required=True)
    lose(world, FIRST, opened=True)
    play(world)
    assert evaluations(world) == [[FIRST]] * 4
    assert isinstance(world.job.phase, Ended)


@pytest.mark.parametrize("restarted", [False, True])
def test_an_opened_evaluation_waits_for_its_acknowledgements_as_long_as_they_may_come(
    make_desk: Callable[..., Desk], restarted: bool
) -> None:
    """Nobody may repeat it, so it is not given up at a deadline. Who restarts after it applied the sum acknowledges all
    the same."""
    world = begun(make_desk, required=True)
    while not isinstance(world.job.phase, Acknowledging):
        assert world.step()
    if restarted:
        for name in NAMES[1:]:
            while world.down[name]:
                world.deliver_down(name)
            world.crash(name)
    else:
        for name in NAMES[1:]:
            world.disconnect(name)
    while world.step():
        pass
    world.now += 30 * 24 * 3_600_000
    world.submit(Ticked())
    assert isinstance(world.job.phase, Acknowledging)
    room = Room(Stamp(world.now, b""), world.trial.round_key, world.coordinator.presences)
    assert "its sum was opened, cannot be had again, and counts once" in status_of(world.coordinator, room, {}).detail
    for name in NAMES[1:]:
        world.connect(name)
    play(world)
    check(world)
    assert world.job.outcomes[-1].lost is None
    statement = Statement.model_validate_json(world.job.phase.statement)
    assert statement.evaluation is not None
    assert statement.evaluation.total == (15,) * 4
    assert evaluations(world) == [[FIRST]] * 4


def test_an_opened_evaluation_that_nobody_acknowledges_is_left_out_where_the_plan_allows(
    make_desk: Callable[..., Desk],
) -> None:
    world = begun(make_desk, required=False)
    lose(world, FIRST, opened=True)
    play(world)
    assert evaluations(world) == [[FIRST]] * 4
    statement = Statement.model_validate_json(world.job.phase.statement)
    assert statement.evaluation is None
    assert len(world.job.phase.signatures) == 4


def test_an_evaluation_that_was_published_is_not_repeated_whatever_the_coordinator_says(
    make_desk: Callable[..., Desk],
) -> None:
    """A spare round is in the plan: only the silo itself keeps a coordinator from having one more figure of it."""
    world = world_of(make_desk, 4, evaluation=EVALUATION)
    world.run()
    job = world.job
    assert (len(job.outcomes), job.rounds, job.rounds_shown) == (FIRST, FIRST + 1, FIRST)
    house = world.houses[NAMES[0]]
    mine = house.state.job(world.trial.plan_hash)
    assert mine is not None
    work = Work.of(mine.signed.body)
    place = place_of(house.context, work, mine, outcome_hash(job.outcomes[-1]))
    assert place.round == FIRST + 1
    announcement = announcement_of(
        world.trial.plan, place, attempt=1, cohort=NAMES, deadline_ms=world.now + 60_000, nonce=bytes(32)
    )
    keys = {name: member.identity_public for name, member in world.trial.keys.items()}
    _, frame = open_session(announcement, world.trial.round_key, keys)
    before = house.ledger.size
    sent = house.handle(Announce(frame, (), job.outcomes[-1], ()), world.now)
    (refusal,) = sent
    assert isinstance(refusal, SiloFrame)
    assert refusal.frame.step == Step.ABORT
    assert house.ledger.size == before
    assert evaluations(world) == [[FIRST]] * 4


def test_without_a_spare_round_a_lost_evaluation_ends_the_job_where_it_is_required(
    make_desk: Callable[..., Desk],
) -> None:
    world = begun(make_desk, required=True, attempts=1)
    lose(world, FIRST)
    play(world)
    assert isinstance(world.job.phase, Ended)
    assert "the evaluation was lost" in world.job.phase.reason


def test_lost_twice_it_is_released_without_where_the_plan_allows(make_desk: Callable[..., Desk]) -> None:
    world = begun(make_desk, required=False)
    lose(world, FIRST)
    lose(world, FIRST + 1)
    play(world)
    statement = Statement.model_validate_json(world.job.phase.statement)
    assert statement.evaluation is None
    assert len(world.job.phase.signatures) == 4


def test_a_second_sum_never_replaces_the_first(make_desk: Callable[..., Desk]) -> None:
    world = world_of(make_desk, 4)
    world.run()
    plan, layout, state = world.trial.plan, world.job.layout, world.job.model
    with pytest.raises(MalformedError):
        advance(plan, layout, 4, state, np.zeros(0, np.int64), np.ones(4, np.int64), 4)


def test_people_see_the_rounds_that_are_to_be_expected(make_desk: Callable[..., Desk]) -> None:
    plan = make_desk(**STAGES).trial.plan
    assert last_round(plan) == FIRST + 1
    assert [rounds_shown(plan, n, evaluated=False) for n in (0, 5, 6, 7)] == [6, 6, 7, 7]
    assert rounds_shown(plan, 6, evaluated=True) == 6
    assert describe(plan, 6) == "round 6 (evaluation)"
    assert describe(plan, 7) == "round 7 (evaluation, tried again)"
