"""How far integer noise is from the Gaussian that its charge stands for. docs/privacy.md has the proof.

With rho_v(x) = exp(-x**2 / (2 v)), the sum of rho_v over all integers, shifted by anything, differs from sqrt(2 pi v)
by at most the part eta(v) = 2 exp(-2 pi**2 v) (1 + next to nothing) of it (Poisson's summation formula).
"""

from __future__ import annotations

import math
from typing import Final

from privacy.events import DistributedDiscreteGaussian, Event, LocalDiscreteGaussian, PoissonSubsampledGaussian

# What a discrete Gaussian gives away of its variance to be a function of a continuous one: the less, the larger the
# ratio by which the two still differ. Four is 1.6 % of the least variance that an event may have, and leaves a ratio of
# 1 + 2e-34 a coordinate.
SMOOTHING_VARIANCE: Final = 4
# Total variation distance of one drawn discrete Gaussian to the exact one: privacy.discrete.DISTANCE, without numpy.
SAMPLER_DISTANCE: Final = 2.0**-100


def gaussian_mu(event: Event) -> float | None:
    """Sensitivity over standard deviation of the one Gaussian release that all steps of the event together amount to;
    None where patients are sampled."""
    match event:
        case PoissonSubsampledGaussian():
            square = event.steps / event.noise_multiplier**2
            return math.sqrt(square) if event.sampling_rate == 1 else None
        case LocalDiscreteGaussian():
            variance = event.scale**2
        case DistributedDiscreteGaussian():
            variance = event.shares * event.scale**2
    return math.sqrt(event.steps * event.sensitivity**2 / (variance - SMOOTHING_VARIANCE))


def log_ratio(event: Event) -> float:
    """Largest |log| of the ratio between the probabilities of what the event releases and of a function of that one
    Gaussian; 0 for continuous noise, at most 1e-18 for any event of 2**50 coordinates and steps."""
    if isinstance(event, PoissonSubsampledGaussian):
        return 0.0
    return event.dimension * event.steps * coordinate_ratio(event.scale**2, _shares(event), SMOOTHING_VARIANCE)


def coordinate_ratio(variance: float, shares: int, smoothing: float) -> float:
    """`log_ratio` of one coordinate: the sum of `shares` draws of N_Z(0, variance) against what a discrete Gaussian of
    variance `smoothing` around a continuous one makes of N(0, shares * variance - smoothing).

    All of the variances that occur must be at least 1/4.
    """
    joins = (_spread(variance * k / (k + 1)) for k in range(1, shares))
    return _spread(smoothing) + math.fsum(joins)


def sampling_distance(event: Event) -> float:
    """Total variation distance of all that is drawn for the event to the noise that it promises; 0 for continuous
    noise, whose floating point docs/privacy.md treats apart."""
    if isinstance(event, PoissonSubsampledGaussian):
        return 0.0
    return SAMPLER_DISTANCE * _shares(event) * event.dimension * event.steps


def tau(variance: float, shares: int) -> float:
    """How far the sum of `shares` discrete Gaussians is from being one, as Kairouz, Liu and Steinke 2021 measure it
    (proposition 14). From scale 16 on it is below the smallest float."""
    return 10 * math.fsum(math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, shares))


def _spread(variance: float) -> float:
    """log((1 + eta) / (1 - eta))."""
    return 2 * math.atanh(2.001 * math.exp(-2 * math.pi**2 * variance))


def _shares(event: LocalDiscreteGaussian | DistributedDiscreteGaussian) -> int:
    return event.shares if isinstance(event, DistributedDiscreteGaussian) else 1
