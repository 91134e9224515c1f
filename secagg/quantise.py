"""From reals to the integers that are summed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.errors import MisuseError


def value_bound(clip: float, fraction_bits: int) -> int:
    """The largest |q| that `quantise` returns: ceil(clip * 2**fraction_bits)."""
    return math.ceil(math.ldexp(clip, fraction_bits))


def quantise(values: NDArray[np.floating[Any]], clip: float, fraction_bits: int) -> NDArray[np.int64]:
    """Clip to [-clip, clip], scale by 2**fraction_bits and round half to even.

    Args:
        values: float64[n]; NaN counts as 0 and an infinity as the clip of its sign, since one bad gradient must not
            stop a federation and must not leave the bound either.

    Returns:
        int64[n] with |q| <= value_bound(clip, fraction_bits).
    """
    if not (math.isfinite(clip) and clip > 0 and 0 <= fraction_bits <= 52):
        raise MisuseError("clip must be positive and finite, and fraction_bits 0 to 52")
    if math.ldexp(clip, fraction_bits) >= 2.0**62:
        raise MisuseError("clip * 2**fraction_bits leaves the integers")
    finite = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=clip, neginf=-clip)
    np.clip(finite, -clip, clip, out=finite)
    return np.rint(np.ldexp(finite, fraction_bits)).astype(np.int64)
