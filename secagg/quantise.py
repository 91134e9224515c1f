"""From reals to the integers that are summed."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg.errors import MisuseError
from secagg.session import RING_BOUND

# Entries of 4 MiB.
_HUGE_PAGES: Final = 1 << 20
# Entries of a turn. With a buffer between, it stays in cache; without, fewer turns count for more.
_BUFFERED: Final = 1 << 16
_IN_PLACE: Final = 1 << 19


def value_bound(clip: float, fraction_bits: int) -> int:
    """The largest |q| that `quantise` returns: ceil(clip * 2**fraction_bits)."""
    return math.ceil(math.ldexp(clip, fraction_bits))


def _room(count: int) -> int:
    """Entries to allocate: numpy asks the kernel for huge pages from 4 MiB on, which a million entries just miss."""
    return max(count, _HUGE_PAGES) if count > _HUGE_PAGES // 2 else count


def quantise(values: NDArray[np.floating[Any]], clip: float, fraction_bits: int) -> NDArray[np.int32]:
    """Clip to [-clip, clip], scale by 2**fraction_bits and round half to even.

    Args:
        values: float64[n], or a narrower type; finite.

    Returns:
        int32[n] with |q| <= value_bound(clip, fraction_bits); exact, since scaling by a power of two is.

    Raises:
        MisuseError: an entry is NaN or infinite: training went wrong, and a number in its place would hide that; or
            the bound does not fit the ring.
    """
    if not (math.isfinite(clip) and clip > 0 and 0 <= fraction_bits <= 52):
        raise MisuseError("clip must be positive and finite, and fraction_bits 0 to 52")
    if value_bound(clip, fraction_bits) >= RING_BOUND:
        raise MisuseError("clip * 2**fraction_bits leaves the ring, which has 2**30")
    if values.ndim != 1 or values.dtype.kind != "f" or values.dtype.itemsize > 8:
        raise MisuseError(f"a vector has one dimension and real entries, not shape {values.shape} of {values.dtype}")
    # All steps but rint are exact in float32 too, if the clip is a float32, and then take a third of the time.
    narrow = values.dtype == np.float32 and float(np.float32(clip)) == clip
    kind = np.dtype(np.float32 if narrow else np.float64)
    low, high, scale = (kind.type(value) for value in (-clip, clip, math.ldexp(1.0, fraction_bits)))
    result = np.empty(_room(len(values)), dtype=np.int32)[: len(values)]
    # float32 is as wide as the result, whose own memory then holds the reals until they are integers.
    step = _IN_PLACE if narrow else _BUFFERED
    room = result.view(kind) if narrow else np.empty(min(step, len(values)), dtype=kind)
    for start in range(0, len(values), step):
        part = values[start : start + step]
        # The extremes of what holds a NaN are NaN.
        least, largest = float(part.min()), float(part.max())
        if not (math.isfinite(least) and math.isfinite(largest)):
            raise MisuseError("an entry is NaN or infinite")
        reals = room[start : start + step] if narrow else room[: len(part)]
        if least < -clip or largest > clip:
            part = np.clip(part, low, high, out=reals, dtype=kind)
        np.multiply(part, scale, out=reals, dtype=kind)
        np.rint(reals, out=reals)
        np.copyto(result[start : start + step], reals, casting="unsafe")
    return result
