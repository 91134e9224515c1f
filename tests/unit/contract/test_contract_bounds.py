"""Numbers of a plan or a policy that would overflow, vanish or exhaust whoever reads them are refused by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError
from small_plan import plan_document

from feddrm.contract.plan import Plan
from feddrm.contract.policy import Policy
from privacy.leaves import Caps

PLAN = plan_document(
    ("a", "b", "c"),
    schema__columns=[
        {"kind": "numeric", "name": "x", "lower": 0, "upper": 1},
        {"kind": "binned", "name": "z", "edges": [0, 1]},
    ],
    model__hidden=[4, 3],
    privacy__delta=1e-8,
)


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(PLAN)
    *folders, name = path.split(".")
    place: Any = document
    for folder in folders:
        place = place[int(folder)] if folder.isdigit() else place[folder]
    place[name] = value
    return document


def test_the_plan_as_it_stands_is_accepted_and_counts_its_parameters() -> None:
    plan = Plan.model_validate(PLAN)
    # 2 + 4 features; (6 + 1) * 4 + (4 + 1) * 3 in the trunk, (3 + 1) * (3 silos + 2 classes) in the heads
    assert plan.parameters == 28 + 15 + 20


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("privacy.delta", value) for value in (0, 5e-324, 1e-15, 9.9e-9, 0.01, 1)),
        *(("training.clip_norm", value) for value in (1e-320, 9e-7, 1.1e6, 1e308)),
        *(("training.learning_rate", value) for value in (5e-324, 9e-10, 1.1e6, 1e308)),
        *(("secure_aggregation.clip", value) for value in (5e-324, 9e-10, 1.1e6, 1e308)),
        *(("deadlines", {"step_seconds": value}) for value in (0, 1e-320)),
        ("schema.target.value", 1e31),
        ("schema.columns.0.upper", 1e308),
        ("schema.columns.0.lower", -1e31),
        ("schema.columns.0.upper", 5e-324),
        ("schema.columns.1.edges", [0, 1e300]),
        *(("schema.patient", name) for name in (" id", "id ", "i\nd", "\x1b[2J", "")),
        ("model.hidden", [4096] * 3),
        ("model.hidden", [4096] * 8),
    ],
)
def test_a_number_out_of_its_range_is_refused(path: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        Plan.model_validate(changed(path, value))


def test_every_cap_that_a_policy_may_say_is_one_that_the_gate_takes() -> None:
    """1e6 passed the policy and then killed the agent."""
    with pytest.raises(ValidationError):
        Policy.model_validate({"budget": {"job_epsilon": 1e6}})
    largest = Policy.model_validate({"budget": {"job_epsilon": 999_999.9}}).budget.job_epsilon
    assert Caps(largest, 0, 0, 0, 0, 0, 0).job_epsilon == largest
