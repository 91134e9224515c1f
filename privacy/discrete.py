"""Discrete Gaussian noise N_Z(0, S**2) in integers only, so that what is accounted for is what is drawn.

The law on the integers with probabilities proportional to exp(-x**2 / (2 S**2)) (Canonne, Kamath and Steinke 2020,
arXiv 2004.00010). Rounding a continuous Gaussian gives another law, and floating point another one again.

S is in the millions here, too wide for a table, so that x is put together from digits (Micciancio and Walter 2017,
CRYPTO, after Peikert 2010): x = d_0 + a d_1 + ... + a**(L-1) d_(L-1), the digits independent draws of N_Z(0, s**2) with
s**2 = S**2 / (1 + a**2 + ... + a**(2L-2)), from one table. Distance (total variation) to the exact law, for one x:

- A digit. The table ends at B, where the mass beyond, at most 2 exp(-(B+1)**2 / (2 s**2)), is below 2**-111; the
  probabilities are multiples of 2**-128, which costs 2 B * 2**-128 < 2**-116. What is left over is added at zero.
- A join d + a y of d in N_Z(0, s**2) and y in N_Z(0, V), V >= s**2. The probability of a value z is proportional to
  exp(-z**2 / (2 (s**2 + a**2 V))) times the sum over all integers t of exp(-(t - c)**2 / (2 T)), where c depends on z
  and 1/T = 1/V + a**2/s**2. By Poisson's summation formula that sum is sqrt(2 pi T) (1 + e) with |e| below
  2.1 exp(-2 pi**2 T): the same for all z but for e. T >= s**2 / (1 + a**2), and a is chosen so that this is at least
  4: |e| < 2**-112.

At most 8 digits and 7 joins remain below 2**-107. A test holds the law of the tables themselves against the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from privacy.noise import Entropy, Keystream, Words

# A bound on the total variation distance between one sample's law and the exact one.
DISTANCE: Final = 2.0**-100
LARGEST_SCALE: Final = 1 << 40

Integers = npt.NDArray[np.int64]
_More = Callable[[int], Words]

_COLUMN_BITS: Final = 11
_COLUMNS: Final = 1 << _COLUMN_BITS
_FRACTION_BITS: Final = 64 - _COLUMN_BITS
# Of a column's mass: what the rest of the first word decides, and a second word where that is not enough.
_COLUMN_MASS: Final = 1 << (_FRACTION_BITS + 64)
_MASS: Final = _COLUMNS * _COLUMN_MASS
_PRECISION: Final = 256
# A table ends where the exponent reaches this: 2 exp(-78) < 2**-111.
_TAIL: Final = 78
_CHUNK: Final = 1 << 14


class DiscreteGaussianSource:
    """Draws discrete Gaussian noise under fresh AES-256-CTR keys.

    Every call takes its own key from `entropy` and forgets it (see `privacy.noise.GaussianSource`).

    Args:
        entropy: returns the number of random bytes asked for; `os.urandom` in production.
    """

    __slots__ = ("_entropy",)

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def sample(self, count: int, scale: int) -> Integers:
        """Return int64[count] of N_Z(0, scale**2), within `DISTANCE` of the exact law each.

        No sample exceeds 16 * (scale + 1) in size.

        Raises:
            ValueError: count below 0; scale not from 1 to `LARGEST_SCALE`; or `entropy` returned too few bytes.
        """
        if count < 0:
            raise ValueError("a count cannot be negative")
        digits = digits_of(scale)
        stream = Keystream(self._entropy)
        result = np.empty(count, dtype=np.int64)
        for start in range(0, count, _CHUNK):
            part = result[start : start + _CHUNK]
            part[:] = digits.table.look_up(stream.words(len(part)), stream.words)
            for _ in range(digits.length - 1):
                part *= digits.base
                part += digits.table.look_up(stream.words(len(part)), stream.words)
        return result


@dataclass(frozen=True, slots=True)
class Digits:
    """How x is put together: `length` digits to base `base`, all from one table."""

    base: int
    length: int
    table: Table = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Walker's alias table (1974; built after Vose 1991) of one digit's law, with integer masses that sum to 2**128.

    All columns are equally likely; a column is its own value where the fraction is below its threshold, and its
    alias's otherwise.

    Attributes:
        values: int64[2048], the value of each column.
        threshold: uint64[2048], upper bits of the thresholds, 0 to 2**53.
        remainder: uint64[2048], their lower 64 bits.
        alias: int64[2048], the value of each column's alias.
    """

    values: Integers
    threshold: Words
    remainder: Words
    alias: Integers

    def look_up(self, words: Words, more: _More) -> Integers:
        """One digit, int64[n], for each of n uniform words uint64[n].

        Args:
            words: uint64[n].
            more: returns further uint64 words for fractions that equal the upper bits of the threshold.
        """
        columns = (words >> np.uint64(_FRACTION_BITS)).astype(np.intp)
        fractions = words & np.uint64((1 << _FRACTION_BITS) - 1)
        thresholds = self.threshold[columns]
        own = fractions < thresholds
        ties = np.flatnonzero(fractions == thresholds)
        if ties.size:
            own[ties] = more(ties.size) < self.remainder[columns[ties]]
        return np.where(own, self.values[columns], self.alias[columns])


@lru_cache(maxsize=8)
def digits_of(scale: int) -> Digits:
    """Base, number of digits and table for a scale.

    Raises:
        ValueError: scale not from 1 to `LARGEST_SCALE`.
    """
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(f"the scale must be from 1 to {LARGEST_SCALE}")
    variance = Fraction(scale**2)
    length, base = 1, 1
    while 2 * _last(variance) + 1 > _COLUMNS:
        length += 1
        base, variance = _largest_base(scale, length)
    return Digits(base, length, _table(variance))


def _largest_base(scale: int, length: int) -> tuple[int, Fraction]:
    """The largest a whose digit's variance s**2 is at least 4 (1 + a**2), and that variance."""
    low, high = 1, scale
    while low < high:
        middle = (low + high + 1) // 2
        if _digit_variance(scale, middle, length) >= 4 * (1 + middle**2):
            low = middle
        else:
            high = middle - 1
    return low, _digit_variance(scale, low, length)


def _digit_variance(scale: int, base: int, length: int) -> Fraction:
    return Fraction(scale**2, sum(base ** (2 * place) for place in range(length)))


def _last(variance: Fraction) -> int:
    """B, the largest value of a digit: the least with (B + 1)**2 > 2 * variance * _TAIL."""
    return math.isqrt(int(2 * variance * _TAIL))


def masses(variance: Fraction) -> list[int]:
    """Masses of -B, ..., B in N_Z(0, variance): integers rounded down, and at zero what is left of 2**128."""
    last = _last(variance)
    weights = _weights(variance, last)
    total = weights[0] + 2 * sum(weights[1:])
    side = [weight * _MASS // total for weight in weights[1:]]
    return [*side[::-1], _MASS - 2 * sum(side), *side]


def _weights(variance: Fraction, last: int) -> list[int]:
    """exp(-x**2 / (2 variance)) * 2**256 for x = 0, ..., last, each within 2**28 of the exact value.

    By q = exp(-1 / (2 variance)) and exp(-(x+1)**2 / (2 variance)) = exp(-x**2 / (2 variance)) * q**(2x + 1).
    """
    q = _exp_of_minus(1 / (2 * variance))
    square = q * q >> _PRECISION
    weights, step = [1 << _PRECISION], q
    for _ in range(last):
        weights.append(weights[-1] * step >> _PRECISION)
        step = step * square >> _PRECISION
    return weights


def _exp_of_minus(x: Fraction) -> int:
    """exp(-x) * 2**256 for 0 <= x <= 1/2, within 2**7: an alternating series, whose error is below its next term."""
    total = term = 1 << _PRECISION
    order = 0
    while term:
        order += 1
        term = term * x.numerator // (x.denominator * order)
        total += -term if order % 2 else term
    return total


def _table(variance: Fraction) -> Table:
    mass = masses(variance)
    last = len(mass) // 2
    mass += [0] * (_COLUMNS - len(mass))
    values = np.arange(_COLUMNS, dtype=np.int64) - last
    alias = values.copy()
    small = [column for column in range(_COLUMNS) if mass[column] < _COLUMN_MASS]
    large = [column for column in range(_COLUMNS) if mass[column] >= _COLUMN_MASS]
    # Every small column is filled up by one large one. Integers: nothing is lost, and the last one is exactly full.
    while small:
        column, giver = small.pop(), large[-1]
        alias[column] = values[giver]
        mass[giver] -= _COLUMN_MASS - mass[column]
        if mass[giver] < _COLUMN_MASS:
            small.append(large.pop())
    threshold = np.array([part >> 64 for part in mass], dtype=np.uint64)
    remainder = np.array([part & ((1 << 64) - 1) for part in mass], dtype=np.uint64)
    return Table(values, threshold, remainder, alias)
