"""How much noise a whole epsilon buys: the accountant of the ledger, asked backwards.

A method with later stages pays for them from the same epsilon, so that every method at one epsilon costs a patient
the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from feddrm.contract.errors import InputError
from feddrm.contract.stages import LONGEST_RESIDUAL, DiscreteEvent, fit_sensitivity, noise_event
from privacy.accounting import epsilon
from privacy.events import Event, PoissonSubsampledGaussian

FRACTION_BITS: Final = 16
# What privacy.events takes.
_LEAST, _MOST = 0.3, 1000.0
_STEPS: Final = 24
# How much of epsilon may be left over, as a logarithm.
_CLOSE: Final = 0.01
_TINY: Final = 1e-12


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
        clip_norm: of a patient's residual in stage 2.
        tune_steps, tune_rate: of stage 3; 0 steps for a method without it.
        tune_share: of epsilon, for stage 3.
    """

    epsilon: float
    delta: float
    sampling_rate: float
    steps: int
    sums: int = 0
    words: int = 0
    shares: int = 1
    fit_share: float = 0.0
    clip_norm: float = LONGEST_RESIDUAL
    tune_steps: int = 0
    tune_rate: float = 1.0
    tune_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Args:
    training: noise multiplier of stage 1.
    fit: the mechanism of one sum of stage 2.
    epsilon: what all of it comes to, at most what was asked for.
    tuning: noise multiplier of stage 3, where there is one.
    """

    training: float
    fit: DiscreteEvent | None
    epsilon: float
    tuning: float | None = None


@lru_cache(maxsize=256)
def noise_for(terms: Terms) -> Noise:
    """The least noise that keeps to the epsilon.

    Raises:
        InputError: even the largest noise does not.
    """
    fit: DiscreteEvent | None = None
    tuning: float | None = None
    later: list[Event] = []
    if terms.sums:
        multiplier = _least(
            lambda sigma: [_sum_event(terms, sigma)] * terms.sums, terms.fit_share * terms.epsilon, terms.delta
        )
        fit = _sum_event(terms, multiplier)
        later += [fit] * terms.sums
    if terms.tune_steps:
        limit = terms.tune_share * terms.epsilon
        tuning = _least(lambda sigma: [_tuning_event(terms, sigma)], limit, terms.delta)
        later.append(_tuning_event(terms, tuning))

    def whole(sigma: float) -> Sequence[Event]:
        return [PoissonSubsampledGaussian(sigma, terms.sampling_rate, terms.steps), *later]

    training = _least(whole, terms.epsilon, terms.delta)
    return Noise(training, fit, epsilon(whole(training), terms.delta).pld, tuning)


def _sum_event(terms: Terms, multiplier: float) -> DiscreteEvent:
    sensitivity = fit_sensitivity(terms.words, FRACTION_BITS, terms.clip_norm)
    return noise_event(multiplier, sensitivity=sensitivity, shares=terms.shares, dimension=terms.words)


def _tuning_event(terms: Terms, multiplier: float) -> Event:
    return PoissonSubsampledGaussian(multiplier, terms.tune_rate, terms.tune_steps)


def _least(events: Callable[[float], Sequence[Event]], limit: float, delta: float) -> float:
    """A noise multiplier whose events stay within epsilon `limit` and use it up to a hundredth, or the least there is.

    Raises:
        InputError: none does.
    """

    def over(sigma: float) -> float:
        return math.log(max(epsilon(events(sigma), delta).pld, _TINY) / limit)

    # Epsilon is nearly a power of the noise: a line in logarithms, kept between a multiplier that is too small and one
    # that is large enough.
    small: tuple[float, float] | None = None
    large: tuple[float, float] | None = None
    sigma = 2.0
    for _ in range(_STEPS):
        found = over(sigma)
        if found <= 0:
            large = (sigma, found)
            if found > -_CLOSE or sigma == _LEAST:
                return sigma
        else:
            small = (sigma, found)
            if sigma == _MOST:
                raise InputError(
                    f"No noise keeps this plan within epsilon {limit:g}.", remedy="Take fewer steps or sums."
                )
        sigma = round(min(max(_between(small, large), _LEAST), _MOST), 4)
    if large is None:
        raise InputError(f"No noise keeps this plan within epsilon {limit:g}.", remedy="Take fewer steps or sums.")
    return large[0]


def _between(small: tuple[float, float] | None, large: tuple[float, float] | None) -> float:
    if small is None or large is None:
        # Doubled or halved until both are known.
        return small[0] * 2 if small is not None else large[0] / 2 if large is not None else 2.0
    (low, above), (high, below) = small, large
    # Aimed at half of what may be left over, and never onto an end.
    share = (above + _CLOSE / 2) / (above - below)
    share = min(max(share, 0.05), 0.95)
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
