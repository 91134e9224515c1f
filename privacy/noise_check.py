"""Was the noise drawn that was planned? A chi-square test on sums, in places where there is nothing but noise.

For N independent Gaussians of the planned variance V, the sum of their squares over V is chi-square with N degrees of
freedom. Only too small a sum speaks of missing noise, so the test looks at the lower tail alone, by Chernoff's bound

    P[X <= N x] <= exp(-N/2 (x - 1 - ln x))        for x <= 1,

which holds for every N and needs no tables. It also holds where the places carry something beside the noise that the
noise does not influence: a shifted Gaussian has the larger square, in the sense of distributions. Discrete Gaussians
N_Z(0, V) count as Gaussians: for them the bound grows by (1 + 2 exp(-2 pi**2 x V))**N (Poisson's summation formula),
which is nothing at the variances in use, 2**20 and more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

# A true sum fails once in a million tests.
FALSE_ALARM: Final = 1e-6


@dataclass(frozen=True, slots=True)
class NoiseFinding:
    """What the places say.

    Attributes:
        count: of places.
        ratio: variance found over variance planned.
        chance: of so little noise or less had all of it been drawn, at most.
        short: noise is missing.
    """

    count: int
    ratio: float
    chance: float
    short: bool


class NoiseCheck:
    """Gathers places from any number of sums, each with its own planned variance."""

    def __init__(self) -> None:
        self._count = 0
        self._energy = 0.0

    def add(self, places: npt.ArrayLike, variance: float) -> None:
        """Count the places of one sum.

        Args:
            places: numbers that hold noise, and nothing that depends on it.
            variance: planned for each of them, all shares together.

        Raises:
            ValueError: a place is not finite, or the variance is not positive and finite.
        """
        values = np.asarray(places, dtype=np.float64).reshape(-1)
        if not np.isfinite(values).all() or not (math.isfinite(variance) and variance > 0):
            raise ValueError("places and their variance must be finite")
        self._count += values.size
        self._energy += float((values / math.sqrt(variance)) @ (values / math.sqrt(variance)))

    def finding(self, false_alarm: float = FALSE_ALARM) -> NoiseFinding:
        """Judge all places together.

        Raises:
            ValueError: there are none.
        """
        if not self._count:
            raise ValueError("there is no place to judge by")
        ratio = self._energy / self._count
        chance = math.exp(-self._count * _rate(ratio)) if ratio < 1 else 1.0
        return NoiseFinding(self._count, ratio, chance, chance < false_alarm)


def places_needed(missing: float, *, false_alarm: float = FALSE_ALARM, miss: float = 1e-3) -> int:
    """Places with which a missing part of the variance is found, but for a probability of `miss`.

    Args:
        missing: of the variance, in (0, 1]: 1/K where one of K equal shares was not drawn.

    Raises:
        ValueError: a probability is not within (0, 1), or `missing` not within (0, 1].
    """
    if not (0 < missing <= 1 and 0 < false_alarm < 1 and 0 < miss < 1):
        raise ValueError("parts and probabilities lie between 0 and 1")
    left = max(1.0 - missing, 1e-300)
    low, high = left, 1.0
    # The threshold on the ratio at which both errors ask for equally many places; both are monotone in it.
    for _ in range(200):
        threshold = (low + high) / 2
        if math.log(1 / false_alarm) * _rate(threshold / left) < math.log(1 / miss) * _rate(threshold):
            low = threshold
        else:
            high = threshold
    return max(1, math.ceil(math.log(1 / false_alarm) / _rate(low) * (1 + 1e-9)))


def _rate(ratio: float) -> float:
    """Chernoff's exponent of a chi-square, a degree of freedom."""
    return (ratio - 1 - math.log(ratio)) / 2 if ratio > 0 else math.inf
