"""`plan check` warns where epsilon promises little, and says what the number means."""

from __future__ import annotations

import re

import pytest
from coordinator_harness import make_plan

from aggregator.explain import explain
from feddrm.contract.charge import charge
from feddrm.contract.plan import Plan
from feddrm.contract.policy import Policy, objections

SILOS = ("site-1", "site-2", "site-3", "site-4")


@pytest.mark.parametrize(("noise", "weak"), [(3.0, False), (0.9, True), (0.6, True)])
def test_an_epsilon_above_ten_is_called_weak_and_explained(noise: float, weak: bool) -> None:
    plan = make_plan(SILOS, training__noise_multiplier=noise, training__rounds=20, training__sampling_rate=0.5)
    epsilon = charge(plan).epsilon
    assert (epsilon > 10) is weak, epsilon
    text = explain(plan, None).text()
    assert ("weak protection" in text) is weak
    if weak:
        times = re.search(r"up to ([\d,]+) times surer", text)
        assert times, text
        assert float(times[1].replace(",", "")) == pytest.approx(2.718281828**epsilon, rel=0.05)


def test_an_absurd_epsilon_is_put_in_words() -> None:
    plan = make_plan(SILOS, training__noise_multiplier=0.3, training__rounds=50, training__sampling_rate=1.0)
    (warning,) = [warning for warning in explain(plan, None).warnings if "weak protection" in warning]
    assert "a million billion or more times surer" in warning


FIT = {"sums": 50, "step_size": 1.0, "public_sizes": dict.fromkeys(SILOS, 100), "minimum_sums": 1}


def test_an_epsilon_that_cannot_be_stated_is_not_given_as_a_number() -> None:
    """Where one share of discrete noise is worth so little that its sampler's distance outweighs delta."""
    weak = make_plan(SILOS, training__noise_multiplier=3.0, routing_fit={**FIT, "noise_multiplier": 1.5})
    cost = charge(weak)
    assert cost.epsilon < 50
    assert cost.epsilon_alone == 1e9
    meaning = explain(weak, None)
    text = meaning.text()
    assert "cost no more than epsilon without a bound" in text
    assert "1000000000" not in text
    assert any("without secure aggregation no epsilon can be stated (1e9" in one for one in meaning.warnings)
    assert any("without a bound exceeds budget.job_epsilon_alone" in one for one in refused(weak))
    none = make_plan(SILOS, training__noise_multiplier=3.0, routing_fit={**FIT, "noise_multiplier": 0.5})
    assert charge(none).epsilon == 1e9
    assert any(one.startswith("no epsilon can be stated") for one in explain(none, None).warnings)


def refused(plan: Plan) -> tuple[str, ...]:
    cost = charge(plan)
    return objections(Policy(), plan, cost.epsilon, cost.epsilon_alone, operator=bytes(32))
