"""The proof of what discrete noise is charged, held against the laws themselves, computed by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import brentq

from privacy import lattice
from privacy.accounting import DISCRETISATION, epsilon, epsilon_alone
from privacy.discrete import DISTANCE
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian

Law = npt.NDArray[np.float64]


def discrete_gaussian(variance: float, reach: int) -> Law:
    """N_Z(0, variance) on -reach, ..., reach."""
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    return np.asarray(weights / weights.sum())


def sum_of_shares(variance: float, shares: int, reach: int) -> Law:
    """The law of the sum of `shares` draws on -reach, ..., reach. Only positive terms are added: no cancellation."""
    one = law = discrete_gaussian(variance, reach)
    for _ in range(shares - 1):
        law = np.convolve(law, one)[reach:-reach]
    return law


def smoothed_gaussian(variance: float, smoothing: float, reach: int) -> Law:
    """The law of a discrete Gaussian of variance `smoothing` around x of N(0, variance - smoothing), integrated by the
    trapezoid rule, which for these functions is exact to the last digits."""
    step = 1 / 32
    x = np.arange(-reach - 40, reach + 40 + step, step)
    weight = np.exp(-(x**2) / (2 * (variance - smoothing))) / math.sqrt(2 * math.pi * (variance - smoothing)) * step
    grid = np.arange(-60, 61)
    fraction = x - np.round(x)
    total = np.exp(-((grid[None, :] - fraction[:, None]) ** 2) / (2 * smoothing)).sum(axis=1)
    values = np.arange(-reach, reach + 1)
    kernel = np.exp(-((values[:, None] - x[None, :]) ** 2) / (2 * smoothing))
    return np.asarray(kernel @ (weight / total))


def distance(scale: float, shares: int, smoothing: float) -> float:
    """Largest |log| of the ratio between the two laws, within six standard deviations."""
    reach = math.ceil(6 * scale * math.sqrt(shares)) + 2
    law = sum_of_shares(scale**2, shares, 3 * reach)[2 * reach : 4 * reach + 1]
    return float(np.abs(np.log(law / smoothed_gaussian(shares * scale**2, smoothing, reach))).max())


@pytest.mark.parametrize("smoothing", [0.3, 0.5, 1.0])
@pytest.mark.parametrize(("scale", "shares"), [(0.8, 2), (0.8, 5), (1.2, 1), (1.2, 3), (3.0, 4), (16.0, 2)])
def test_shares_are_as_near_to_a_function_of_a_gaussian_as_charged(scale: float, shares: int, smoothing: float) -> None:
    assert distance(scale, shares, smoothing) <= lattice.coordinate_ratio(scale**2, shares, smoothing) + 1e-12


@pytest.mark.parametrize("shares", [2, 3])
def test_joining_shares_costs_about_what_is_charged(shares: int) -> None:
    """Without that term the bound, next to nothing for this smoothing, would be far below the distance."""
    bound = lattice.coordinate_ratio(0.64, shares, 1.0)
    assert (
        1e4 * lattice.coordinate_ratio(0.64, 1, 1.0) < distance(0.8, shares, 1.0) < bound < 10 * distance(0.8, 2, 1.0)
    )


def test_what_the_smallest_event_gives_away() -> None:
    event = DistributedDiscreteGaussian(16, 16, 1, 1, 1)
    assert lattice.coordinate_ratio(256, 100, lattice.SMOOTHING_VARIANCE) < 5e-34
    assert lattice.gaussian_mu(event) == pytest.approx(1 / math.sqrt(1 - 4 / 256))
    assert lattice.log_ratio(DistributedDiscreteGaussian(16, 16, 100, 2**31, 10**6)) < 1e-17


def delta_of(value: float, laws: list[tuple[Law, Law]]) -> float:
    """The exact delta at epsilon `value` of releases whose laws with and without the patient are given."""
    first, second = laws[0]
    for one, other in laws[1:]:
        first, second = np.outer(first, one).ravel(), np.outer(second, other).ravel()
    return float(np.maximum(first - math.exp(value) * second, 0).sum())


def shifted(law: Law, by: int) -> tuple[Law, Law]:
    zeros = np.zeros(by)
    return np.concatenate([law, zeros]), np.concatenate([zeros, law])


@pytest.mark.parametrize("delta", [1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize(
    ("scale", "shares", "steps", "shift"),
    [(16, 1, 1, (16,)), (16, 3, 1, (20,)), (16, 5, 1, (7,)), (16, 2, 2, (9, 9)), (16, 2, 1, (6, 8)), (20, 4, 1, (40,))],
)
def test_the_claim_is_above_the_exact_epsilon_and_not_far(
    scale: int, shares: int, steps: int, shift: tuple[int, ...], delta: float
) -> None:
    """The exact one, by enumerating all outcomes: `shift` is what one patient adds, in one step of as many coordinates
    or in as many steps of one."""
    sensitivity = math.isqrt(sum(by**2 for by in shift) // steps)
    assert sensitivity**2 * steps == sum(by**2 for by in shift)
    event = DistributedDiscreteGaussian(scale, sensitivity, shares, len(shift) // steps, steps)
    law = sum_of_shares(scale**2, shares, math.ceil(7 * scale * math.sqrt(shares)))
    laws = [shifted(law, by) for by in shift]
    assert delta_of(0.0, laws) > delta
    exact = brentq(lambda value: delta_of(value, laws) - delta, 0.0, 60.0, xtol=1e-9)
    claimed = epsilon([event], delta)
    assert exact <= claimed.pld <= exact * 1.02 + 2 * DISCRETISATION
    assert claimed.rdp >= exact


def test_alone_the_claim_is_above_the_exact_epsilon_of_one_share() -> None:
    event = DistributedDiscreteGaussian(16, 16, 5, 1, 1)
    laws = [shifted(discrete_gaussian(256, 16 * 8), 16)]
    exact = brentq(lambda value: delta_of(value, laws) - 1e-5, 0.0, 60.0, xtol=1e-9)
    assert exact <= epsilon_alone([event], 1e-5).pld <= exact * 1.02 + 2 * DISCRETISATION
    assert epsilon([event], 1e-5).pld < exact / 2


@pytest.mark.parametrize(("scale", "shares", "shift"), [(0.5, 2, 1), (0.6, 3, 1), (0.7, 5, 2), (1.0, 8, 3)])
@pytest.mark.parametrize("order", [1.5, 2.0, 4.0, 16.0])
def test_tau_bounds_the_renyi_divergence_of_a_sum(scale: float, shares: int, shift: int, order: float) -> None:
    """Proposition 14, which the Rényi figure uses: visible at scales far below those of an event."""
    reach = math.ceil(9 * scale * math.sqrt(shares)) + shift + 8
    law = sum_of_shares(scale**2, shares, 2 * reach)[reach : 3 * reach + 1]
    with np.errstate(divide="ignore"):
        log = np.log(law)
    pairs = order * log[: len(log) - shift] + (1 - order) * log[shift:]
    divergence = math.log(np.exp(pairs[np.isfinite(pairs)]).sum()) / (order - 1)
    gaussian = order * shift**2 / (2 * shares * scale**2)
    assert divergence <= gaussian + lattice.tau(scale**2, shares) + 1e-9
    assert lattice.tau(scale**2, 1) == 0
    assert lattice.tau(256, 100) == 0.0


def test_the_sampler_keeps_to_the_distance_that_is_charged() -> None:
    assert DISTANCE <= lattice.SAMPLER_DISTANCE
    event = DistributedDiscreteGaussian(2**20, 2**20, 4, 1000, 50)
    assert lattice.sampling_distance(event) == 4 * 1000 * 50 * 2.0**-100
    assert lattice.sampling_distance(event.alone()) == 1000 * 50 * 2.0**-100


def test_alone_is_one_share() -> None:
    for scale, shares in itertools.product((16, 1000, 2**40), (1, 2, 100)):
        event = DistributedDiscreteGaussian(scale, scale, shares, 10, 3)
        assert event.alone() == LocalDiscreteGaussian(scale, scale, 10, 3)
        assert event.alone().alone() == event.alone()
        mus = lattice.gaussian_mu(event), lattice.gaussian_mu(event.alone())
        assert mus[0] is not None
        assert mus[1] is not None
        assert mus[1] / mus[0] == pytest.approx(math.sqrt(shares), rel=0.01)
