"""All stages of a job, silos' participants against the coordinator's own state machine, with and without faults.

In every sum silo i adds 2**i to every entry, so that what is counted twice or left out shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from silo_harness import NAMES, Desk
from silo_world import World

from feddrm.contract.release import Statement
from feddrm.contract.rounds import Ack
from feddrm.contract.schedule import STAGE_EVALUATE, STAGE_PERSONAL, STAGE_ROUTING, STAGE_TRAIN
from feddrm.method.layout import layout_of
from feddrm.method.progress import Parts, advance, answering_model, initial_state, segments, shared_model
from feddrm.method.update import model_hash
from privacy.leaves import Commit, Keep, Release, Reserve
from secagg.vector import decode_sum

FIT: dict[str, Any] = {
    "sums": 3,
    "noise_multiplier": 8.0,
    "step_size": 1.0,
    "public_sizes": dict.fromkeys(NAMES, 100),
    "minimum_sums": 1,
}
HEAD: dict[str, Any] = {"steps": 2, "sampling_rate": 0.1, "noise_multiplier": 4.0, "learning_rate": 0.1}
EVALUATION: dict[str, Any] = {"noise_multiplier": 8.0, "required": False}
STAGES: dict[str, Any] = {"rounds": 2, "routing_fit": FIT, "personal_head": HEAD, "evaluation": EVALUATION}


def world_of(make_desk: Callable[..., Desk], seed: int, **changes: object) -> World:
    desk = make_desk(**{**STAGES, **changes})
    return World(desk.trial, desk.houses, random.Random(seed))


def check(world: World) -> None:
    """Every sum is that of its survivors, once each; the coordinator's state is what the published sums lead to."""
    plan, layout = world.trial.plan, layout_of(world.trial.plan)
    state = initial_state(plan, layout, world.trial.plan_hash)
    for number, outcome in enumerate(world.job.outcomes, start=1):
        assert world.job.models[number - 1] == model_hash(state)
        if outcome.lost is not None:
            continue
        ack = Ack.model_validate_json(outcome.acks[0].body)
        words32, words64, _ = decode_sum(world.trial.sums[outcome.sum], *segments(plan, layout, ack.stage))
        values = {*words32.tolist(), *words64.tolist()}
        assert len(values) == 1
        assert values.pop().bit_count() == ack.count >= plan.smallest_cohort
        state = advance(plan, layout, ack.stage, state, words32, words64, ack.count)
        assert model_hash(state) == ack.model
    assert np.array_equal(state, world.job.model)
    for house in world.houses.values():
        assert all(house.trained.count(number) == 1 for number in house.trained)
        leaves = [record.leaf for record in house.ledger.leaves()]
        reserved = [(leaf.stage, leaf.round) for leaf in leaves if isinstance(leaf, Reserve)]
        assert reserved == sorted(set(reserved))
        ended = {(leaf.stage, leaf.round) for leaf in leaves if isinstance(leaf, Release | Keep)}
        assert ended <= {(leaf.stage, leaf.round) for leaf in leaves if isinstance(leaf, Commit)} <= set(reserved)


@pytest.mark.parametrize("shared", [False, True])
def test_a_whole_job_goes_through_all_stages(make_desk: Callable[..., Desk], shared: bool) -> None:
    world = world_of(make_desk, 1, routing_fit={**FIT, "shared_target": shared})
    world.run()
    check(world)
    job, plan = world.job, world.trial.plan
    assert [outcome.lost for outcome in job.outcomes] == [None] * 6
    stages = [Ack.model_validate_json(outcome.acks[0].body).stage for outcome in job.outcomes]
    assert stages == [STAGE_TRAIN] * 2 + [STAGE_ROUTING] * 3 + [STAGE_EVALUATE]
    statement = Statement.model_validate_json(job.phase.statement)
    assert (statement.rounds, statement.sums) == (2, 3)
    assert statement.evaluation is not None
    assert (statement.evaluation.silos, statement.evaluation.total) == (4, (15,) * 4)
    assert len(job.phase.signatures) == 4
    before, after = Parts.of(plan, job.layout, job.model).shared, shared_model(plan, job.layout, job.model)
    changed = {
        name for name, tensor in job.layout.split(after).items() if (tensor != job.layout.split(before)[name]).any()
    }
    assert changed <= {"routing_head.weight", "routing_head.bias"}
    for house in world.houses.values():
        release = house.state.last_release()
        assert release is not None
        models = house.state.release_models(release)
        assert models is not None
        assert np.array_equal(models[0][: len(after)], after)
        assert np.array_equal(models[0], answering_model(plan, job.layout, job.model))
        assert len(models[0]) == len(after) + 8 * shared
        # Two rounds add 1 each, the tuning 1000: answers come from the tuned head.
        first = house.state.personal(world.trial.plan_hash)
        assert first is not None
        assert np.array_equal(models[1], first[1])
        leaves = [record.leaf for record in house.ledger.leaves()]
        places = [(leaf.stage, leaf.round) for leaf in leaves if isinstance(leaf, Reserve)]
        assert places == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5), (3, 6), (4, 6)]
        kept = [(leaf.stage, leaf.round) for leaf in leaves if isinstance(leaf, Keep)]
        assert kept == [(STAGE_PERSONAL, 6)]


@pytest.mark.parametrize("seed", range(12))
def test_faults_in_any_stage_count_nothing_twice(make_desk: Callable[..., Desk], seed: int) -> None:
    world = world_of(make_desk, seed)
    world.run(faults=0.02, most=20)
    check(world)
    # The spare round of the evaluation is begun where the first is lost.
    done = len(world.job.outcomes)
    assert done == 6 + (world.job.outcomes[5].lost is not None)
    for name in NAMES:
        if name not in world.connected:
            world.connect(name)
    while world.pending():
        world.step()
    last = {model_hash(np.asarray(house.state.model(world.trial.plan_hash, done))) for house in world.houses.values()}
    assert last == {model_hash(world.job.model)}


def test_heads_are_tuned_before_a_release_where_nothing_is_evaluated(make_desk: Callable[..., Desk]) -> None:
    world = world_of(make_desk, 2, evaluation=None, routing_fit=None)
    world.run()
    assert len(world.job.phase.signatures) == 4
    for house in world.houses.values():
        places = [(e.leaf.stage, e.leaf.round) for e in house.ledger.leaves() if isinstance(e.leaf, Reserve)]
        assert places == [(1, 1), (1, 2), (3, 3)]
