from __future__ import annotations

import math
import tomllib

import pytest

from feddrm.contract.charge import charge, round_event
from feddrm.contract.files import load_document
from feddrm.contract.home import init_member
from feddrm.contract.identity import Role
from feddrm.contract.plan import Plan
from feddrm.contract.policy import AGENT_TEMPLATE, DATA_TEMPLATE, POLICY_FILE, Policy, objections
from feddrm.contract.schedule import STAGE_TRAIN
from silo.home import AgentSettings, DataSettings

OPERATOR = bytes([7] * 32)
GENEROUS = {
    "budget": {
        "job_epsilon": 3.0,
        "job_epsilon_alone": 3.0,
        "job_delta": 1e-5,
        "life_epsilon": 3.0,
        "life_epsilon_alone": 3.0,
        "life_delta": 1e-5,
        "rounds_without_release": 5,
    },
    "jobs": {"operators": [OPERATOR.hex()], "models": ["mlp"], "smallest_cohort": 3, "colluders": 1},
}


def _objections(plan: Plan, policy: Policy, epsilon: float = 3.0, alone: float = 3.0, operator: bytes = OPERATOR):
    return objections(policy, plan, epsilon, alone, operator=operator)


def _without(section: str, key: str) -> Policy:
    sections = {
        name: {k: v for k, v in entries.items() if (name, k) != (section, key)} for name, entries in GENEROUS.items()
    }
    return Policy.model_validate(sections)


def test_a_plan_within_every_limit_is_accepted(plan: Plan) -> None:
    assert _objections(plan, Policy.model_validate(GENEROUS)) == ()


@pytest.mark.parametrize(("section", "key"), [(s, k) for s, entries in GENEROUS.items() for k in entries])
def test_every_missing_key_denies_and_is_named(plan: Plan, section: str, key: str) -> None:
    found = _objections(plan, _without(section, key))
    assert len(found) == 1
    assert f"{section}.{key}" in found[0]


def test_an_empty_policy_and_the_template_deny_everything(plan: Plan, tmp_path) -> None:
    assert len(_objections(plan, Policy(), epsilon=1e-9, alone=1e-9)) == 11
    init_member(tmp_path / "a", "a", Role.SILO)
    written = load_document(tmp_path / "a" / "local" / POLICY_FILE, Policy)
    assert len(_objections(plan, written, epsilon=1e-9, alone=1e-9)) == 9
    assert not written.queries.serve
    assert not written.jobs.evaluation


@pytest.mark.parametrize(
    ("epsilon", "alone", "named"),
    [
        (3.000001, 3.0, ["budget.job_epsilon ", "budget.life_epsilon "]),
        (3.0, 3.000001, ["budget.job_epsilon_alone ", "budget.life_epsilon_alone "]),
        (math.inf, 1.0, ["budget.job_epsilon ", "budget.life_epsilon "]),
        (math.nan, 1.0, ["budget.job_epsilon ", "budget.life_epsilon "]),
    ],
)
def test_caps_are_caps(plan: Plan, epsilon: float, alone: float, named: list[str]) -> None:
    found = _objections(plan, Policy.model_validate(GENEROUS), epsilon, alone)
    assert len(found) == len(named)
    assert all(name in phrase for name, phrase in zip(named, found, strict=True))


def test_another_operator_a_weaker_sum_and_a_larger_delta_are_refused(plan: Plan) -> None:
    policy = Policy.model_validate(GENEROUS)
    assert "jobs.operators" in _objections(plan, policy, operator=bytes(32))[0]
    raw = plan.model_dump(by_alias=True)
    loose = Plan.model_validate(raw | {"privacy": {"delta": 1e-4}})
    assert [phrase.split("exceeds ")[1].split(" ")[0] for phrase in _objections(loose, policy)] == [
        "budget.job_delta",
        "budget.life_delta",
    ]
    strict = GENEROUS | {"jobs": GENEROUS["jobs"] | {"smallest_cohort": 4, "colluders": 2}}
    found = _objections(plan, Policy.model_validate(strict))
    assert "jobs.smallest_cohort = 4" in found[0]
    assert "jobs.colluders = 2" in found[1]


def test_the_charge_follows_from_the_plan_alone(plan: Plan) -> None:
    """The design's known answer: q .02, sigma 1.1, 3000 steps, delta 1e-5 -> PLD 5.877 (section 7)."""
    raw = plan.model_dump(by_alias=True)
    long = Plan.model_validate(raw | {"training": raw["training"] | {"rounds": 600, "local_steps": 5}})
    cost = charge(long)
    assert cost.epsilon == pytest.approx(5.877, abs=1e-3)
    assert cost.epsilon_alone == cost.epsilon
    assert cost.delta == 1e-5
    assert [event.steps for event in cost.events] == [3000]
    event = round_event(long, STAGE_TRAIN)
    assert event is not None
    assert event.steps == 5
    smaller = Plan.model_validate(raw | {"silos": ["a", "b", "c"], "name": "other"})
    assert charge(smaller).epsilon == charge(plan).epsilon < cost.epsilon


def test_a_plan_without_rounds_costs_nothing(plan: Plan) -> None:
    raw = plan.model_dump(by_alias=True)
    idle = Plan.model_validate(raw | {"training": raw["training"] | {"rounds": 0}})
    cost = charge(idle)
    assert (round_event(idle, STAGE_TRAIN), cost.events, cost.epsilon, cost.epsilon_alone) == (None, (), 0.0, 0.0)


def test_the_other_templates_teach_keys_that_exist(tmp_path) -> None:
    """Uncommented, the examples load."""
    for template, model in ((AGENT_TEMPLATE, AgentSettings), (DATA_TEMPLATE, DataSettings)):
        lines = [line[2:] for line in template.splitlines() if line.startswith("# ") and " = " in line]
        assert set(tomllib.loads("\n".join(lines))) == set(model.model_fields)
        path = tmp_path / "x.toml"
        path.write_text("\n".join(lines))
        load_document(path, model)
