"""The participant against the coordinator's own state machine, in one process, under random faults.

Silo i adds 2**i to every coordinate, so that any update that is counted twice or left out shows in the sum.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from silo_harness import NAMES, Desk
from silo_world import World

from feddrm.contract.messages import AckEvent, ReleaseSignature
from feddrm.contract.rounds import Ack
from feddrm.method.update import apply, model_hash
from privacy.leaves import Release, Reserve
from secagg.vector import decode_sum


def check(world: World) -> None:
    """Sums are those of the survivors, once each; everybody who is up to date has the coordinator's model."""
    job = world.job
    plan = world.trial.plan
    from feddrm.method.layout import initial_model, layout_of

    layout = layout_of(plan)
    model = initial_model(layout, world.trial.plan_hash)
    for number, outcome in enumerate(job.outcomes, start=1):
        if outcome.lost is not None:
            continue
        ack = Ack.model_validate_json(outcome.acks[0].body)
        words, _, _ = decode_sum(world.trial.sums[outcome.sum], layout.shared_size, 0)
        assert len(set(words.tolist())) == 1
        total = int(words[0])
        assert total < 1 << len(NAMES)
        assert total.bit_count() == ack.count
        model = apply(model, words, ack.count, 20, plan.training.server_learning_rate)
        assert model_hash(model) == ack.model
        for index, name in enumerate(NAMES):
            leaves = [record.leaf for record in world.houses[name].ledger.leaves()]
            charged = {leaf.round for leaf in leaves if isinstance(leaf, Reserve)}
            released = {leaf.round for leaf in leaves if isinstance(leaf, Release)}
            # Whoever is in a sum has charged it, and nobody claims a release that it never charged.
            assert not total >> index & 1 or number in charged
            assert released <= charged
    for house in world.houses.values():
        assert all(house.trained.count(number) <= 1 for number in house.trained)


def simulate(make_desk: Callable[..., Desk], seed: int, faults: float) -> World:
    desk = make_desk(rounds=3)
    world = World(desk.trial, desk.houses, random.Random(seed))
    world.run(faults=faults)
    return world


def test_a_whole_job_without_faults(make_desk: Callable[..., Desk]) -> None:
    world = simulate(make_desk, 1, 0.0)
    check(world)
    assert [outcome.lost for outcome in world.job.outcomes] == [None] * 3
    for house in world.houses.values():
        assert house.state.last_release() is not None
        assert house.trained == [1, 2, 3]
        assert {type(e) for e in house.sent} <= {AckEvent, ReleaseSignature}


@pytest.mark.parametrize("seed", range(24))
def test_random_faults_never_count_an_update_twice(make_desk: Callable[..., Desk], seed: int) -> None:
    world = simulate(make_desk, seed, 0.02)
    check(world)
    assert len(world.job.outcomes) == 3
    for name in NAMES:
        if name not in world.connected:
            world.connect(name)
    while world.pending():
        world.step()
    models = {house.state.job(world.trial.plan_hash) for house in world.houses.values()}
    assert all(job is not None and job.round == 3 for job in models)
    last = {model_hash(np.asarray(house.state.model(world.trial.plan_hash, 3))) for house in world.houses.values()}
    assert len(last) == 1
