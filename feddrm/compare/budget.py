"""How much noise a whole epsilon buys: the accountant of the ledger, asked backwards.

A method with a second stage pays for it from the same epsilon, so that every method at one epsilon costs a patient
the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from feddrm.contract.errors import InputError
from feddrm.contract.stages import DiscreteEvent, fit_sensitivity, noise_event
from privacy.accounting import epsilon
from privacy.events import Event, PoissonSubsampledGaussian

FRACTION_BITS: Final = 16
# What privacy.events takes.
_LEAST, _MOST = 0.3, 1000.0
_STEPS: Final = 14


@dataclass(frozen=True, slots=True)
class Terms:
    """What the charge depends on.

    Args:
        epsilon, delta: of the whole job.
        sampling_rate, steps: of stage 1, of a silo that takes part in every round.
        sums: of stage 2; 0 for a method without it.
        words: entries of such a sum.
        shares: silos whose noise counts in it.
        fit_share: of epsilon, for stage 2.
    """

    epsilon: float
    delta: float
    sampling_rate: float
    steps: int
    sums: int = 0
    words: int = 0
    shares: int = 1
    fit_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Args:
    training: noise multiplier of stage 1.
    fit: the mechanism of one sum of stage 2.
    epsilon: what all of it comes to, at most what was asked for.
    """

    training: float
    fit: DiscreteEvent | None
    epsilon: float


@lru_cache(maxsize=256)
def noise_for(terms: Terms) -> Noise:
    """The least noise that keeps to the epsilon.

    Raises:
        InputError: even the largest noise does not, or the least one would leave epsilon unused many times over.
    """
    fit: DiscreteEvent | None = None
    fit_events: list[Event] = []
    if terms.sums:
        multiplier = _least(
            lambda sigma: [_sum_event(terms, sigma)] * terms.sums, terms.fit_share * terms.epsilon, terms.delta
        )
        fit = _sum_event(terms, multiplier)
        fit_events = [fit] * terms.sums

    def whole(sigma: float) -> Sequence[Event]:
        return [PoissonSubsampledGaussian(sigma, terms.sampling_rate, terms.steps), *fit_events]

    training = _least(whole, terms.epsilon, terms.delta)
    return Noise(training, fit, epsilon(whole(training), terms.delta).pld)


def _sum_event(terms: Terms, multiplier: float) -> DiscreteEvent:
    sensitivity = fit_sensitivity(terms.words, FRACTION_BITS)
    return noise_event(multiplier, sensitivity=sensitivity, shares=terms.shares, dimension=terms.words)


def _least(events: Callable[[float], Sequence[Event]], limit: float, delta: float) -> float:
    """The least noise multiplier, to a hundredth of it, whose events stay within epsilon `limit`."""
    low, high = math.log(_LEAST), math.log(_MOST)
    if epsilon(events(_MOST), delta).pld > limit:
        raise InputError(f"No noise keeps this plan within epsilon {limit:g}.", remedy="Take fewer steps or sums.")
    if epsilon(events(_LEAST), delta).pld <= limit:
        return _LEAST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if epsilon(events(round(math.exp(middle), 4)), delta).pld <= limit:
            high = middle
        else:
            low = middle
        if high - low < 0.005:
            break
    return round(math.exp(high), 4)
