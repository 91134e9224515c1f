"""Probabilities in integers: the same bytes on every machine and in whatever company a row is."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.stages import RESIDUAL_BITS

Integers = npt.NDArray[np.int64]

# Of logits: those of features (20 bits) times weights (24).
LOGIT_BITS: Final = 44
P_BITS: Final = RESIDUAL_BITS
_EXP_BITS: Final = 31
_EXP_STEPS: Final = 10
_FACTOR_BITS: Final = 30


def shortened(residual: Integers, limit: int) -> Integers:
    """Rows int64[n, K + C] in P_BITS, of a norm of at most 2: those that are longer than `limit` allows times a factor,
    each entry rounded towards zero, so that no row is longer afterwards.

    Args:
        limit: the square of the longest, in P_BITS twice (feddrm.contract.stages.residual_limit).
    """
    squares = (residual * residual).sum(axis=1)
    longer = squares > limit
    if not longer.any():
        return residual
    # IEEE 754 rounds a root correctly, whatever else is in the array; one more is above the true one.
    norms = np.sqrt(squares[longer].astype(np.float64)).astype(np.int64) + 1
    factors = ((math.isqrt(limit) << _FACTOR_BITS) // norms)[:, None]
    rows = residual[longer]
    result = residual.copy()
    result[longer] = np.sign(rows) * ((np.abs(rows) * factors) >> _FACTOR_BITS)
    return result


@cache
def log_sizes(sizes: tuple[int, ...]) -> Integers:
    """log m_k less the largest, int64[K] in LOGIT_BITS."""
    largest = math.log(max(sizes))
    return np.array([round((math.log(size) - largest) * 2.0**LOGIT_BITS) for size in sizes], dtype=np.int64)


@cache
def _exponentials() -> tuple[Integers, Integers]:
    """exp(-i / 2**10) until it vanishes, and exp(-j / 2**20) for j < 2**10, both in _EXP_BITS."""
    step = 1 << _EXP_STEPS
    coarse = [round(math.exp(-i / step) * 2.0**_EXP_BITS) for i in range(22 * step)]
    fine = [round(math.exp(-j / step**2) * 2.0**_EXP_BITS) for j in range(step)]
    return np.array([*coarse, 0], dtype=np.int64), np.array(fine, dtype=np.int64)


def softmax(logits: Integers) -> Integers:
    """Probabilities int64[n, K] in P_BITS, rounded down, of logits int64[n, K] in LOGIT_BITS, each row by itself.

    By tables instead of np.exp, whose last bit may depend on an entry's place in its array.
    """
    coarse, fine = _exponentials()
    below = (logits.max(axis=1, keepdims=True) - logits) >> (LOGIT_BITS - 2 * _EXP_STEPS)
    upper = np.minimum(below >> _EXP_STEPS, len(coarse) - 1)
    odds = (coarse[upper] * fine[below & ((1 << _EXP_STEPS) - 1)]) >> _EXP_BITS
    probabilities: Integers = (odds << P_BITS) // odds.sum(axis=1, keepdims=True)
    return probabilities
