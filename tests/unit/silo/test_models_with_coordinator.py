"""Jobs of other partitions and with consolidation, participants against the coordinator's own state machine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from silo_harness import Desk
from silo_world import World
from test_stages_with_coordinator import HEAD, STAGES, check

from feddrm.method.layout import layout_of
from feddrm.method.progress import Parts


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ({"personal": []}, {}),
        ({"personal": []}, {"personal_head": {**HEAD, "tensors": ["*"]}}),
        ({}, {"ewc": {"strength": 0.01, "memory": 2}, "proximal_mu": 0.1, "momentum": 0.5, "decay": "cosine"}),
        ({"personal": ["target_head.bias"]}, {"local_steps": 2, "head_steps": 1}),
    ],
    ids=["all shared", "all shared and tuned", "consolidated", "in turns"],
)
def test_a_whole_job_of_any_partition_ends_with_one_state(
    make_desk: Callable[..., Desk], model: dict[str, Any], changes: dict[str, Any]
) -> None:
    desk = make_desk(**{**STAGES, "model": {"kind": "mlp", "hidden": [3], **model}, **changes})
    world = World(desk.trial, desk.houses, random.Random(1))
    world.run()
    check(world)
    plan = world.trial.plan
    layout = layout_of(plan)
    assert [outcome.lost for outcome in world.job.outcomes] == [None] * 6
    parts = Parts.of(plan, layout, world.job.model)
    assert len(parts.shared) == plan.parameters - layout.personal_size
    if plan.training.ewc is not None:
        anchor, importance = np.split(parts.kept, 2)
        assert importance.any()
        assert not np.array_equal(anchor, parts.shared)
    for house in world.houses.values():
        kept = house.state.personal(world.trial.plan_hash)
        assert kept is not None
        assert len(kept[1]) in (layout.personal_size, sum(tensor.size for tensor in layout.own))
