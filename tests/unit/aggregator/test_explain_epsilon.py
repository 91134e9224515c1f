"""`plan check` warns where epsilon promises little, and says what the number means."""

from __future__ import annotations

import re

import pytest
from coordinator_harness import make_plan

from aggregator.explain import explain
from feddrm.contract.charge import charge

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
