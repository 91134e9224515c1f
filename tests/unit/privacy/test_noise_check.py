"""The test of planned noise: seldom wrong about a true sum, and powerful with as many places as it asks for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2

from privacy.noise_check import FALSE_ALARM, NoiseCheck, places_needed


def found(places: np.ndarray, variance: float = 1.0) -> NoiseCheck:
    check = NoiseCheck()
    check.add(places, variance)
    return check


@pytest.mark.parametrize("count", [1, 10, 1000, 100_000])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.7, 0.99, 1.0, 1.5])
def test_the_chance_is_never_below_that_of_a_chi_square(count: int, ratio: float) -> None:
    finding = found(np.full(count, math.sqrt(ratio))).finding()
    assert finding.ratio == pytest.approx(ratio)
    assert finding.chance >= chi2.cdf(count * ratio, count) * (1 - 1e-9)
    if 0 < ratio < 0.9 and count == 1000:
        # And not far above, on the scale on which a test decides.
        assert math.log(finding.chance) < 0.9 * chi2.logcdf(count * ratio, count)


@pytest.mark.parametrize("silos", [3, 4, 6, 10])
def test_places_needed_are_enough_to_find_one_silo_that_draws_nothing(silos: int) -> None:
    rng = np.random.default_rng(silos)
    count = places_needed(1 / silos)
    for _ in range(50):
        shares = rng.standard_normal((silos, count))
        assert not found(shares.sum(axis=0), silos).finding().short
        assert found(shares[1:].sum(axis=0), silos).finding().short
    assert places_needed(1 / silos) > places_needed(1 / silos, false_alarm=1e-3)
    assert places_needed(1 / silos) > places_needed(2 / silos)


def test_half_of_the_places_are_not_enough() -> None:
    """So the number is no idle one."""
    rng = np.random.default_rng(1)
    count = places_needed(1 / 3) // 3
    missed = [not found(rng.standard_normal((2, count)).sum(axis=0), 3.0).finding().short for _ in range(50)]
    assert sum(missed) > 25


def test_a_true_sum_is_hardly_ever_accused() -> None:
    rng = np.random.default_rng(2)
    accused = sum(found(rng.standard_normal(20)).finding(1e-2).short for _ in range(20_000))
    assert accused <= 200 + 5 * math.sqrt(200)


def test_what_stands_beside_the_noise_can_only_hide_that_some_is_missing() -> None:
    rng = np.random.default_rng(3)
    noise = rng.standard_normal(2000)
    assert found(noise + 0.5).finding().chance >= found(noise).finding().chance
    assert found(0.2 * noise).finding().short
    assert not found(0.2 * noise + 2).finding().short


def test_sums_of_different_plans_count_together() -> None:
    rng = np.random.default_rng(4)
    true, weak = NoiseCheck(), NoiseCheck()
    for number in range(1, 60):
        variance = 10.0 ** (number % 7)
        places = math.sqrt(variance) * rng.standard_normal(17)
        true.add(places, variance)
        weak.add(places * 0.7, variance)
    assert true.finding().count == 59 * 17
    assert not true.finding().short
    assert weak.finding().short
    assert weak.finding().chance < FALSE_ALARM


def test_sums_without_any_noise_are_found_at_once() -> None:
    assert found(np.zeros(1)).finding().chance == 0.0
    assert found(np.zeros(1)).finding().short
    assert places_needed(1.0) == 1


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(ValueError, match="no place"):
        NoiseCheck().finding()
    for places, variance in (([math.nan], 1.0), ([math.inf], 1.0), ([1.0], 0.0), ([1.0], math.nan)):
        with pytest.raises(ValueError, match="finite"):
            NoiseCheck().add(places, variance)
    for missing, alarm in ((0.0, 1e-6), (1.1, 1e-6), (0.5, 0.0), (0.5, 1.0)):
        with pytest.raises(ValueError, match="between"):
            places_needed(missing, false_alarm=alarm)
