"""The bytes of a masked vector and of a published sum: little-endian u32 entries, u64 entries, u64 tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.errors import MisuseError, WireError
from secagg.masks import Words
from secagg.session import WORD64_BOUND, Announcement, vector_size


@dataclass(frozen=True, slots=True)
class Segments:
    """Writable views into one buffer: `words32` is <u4[n], `words64` is <u8[m + TAGS], the tags last."""

    words32: Words
    words64: Words

    @classmethod
    def over(cls, buffer: bytearray, words32: int) -> Segments:
        """The segments of a buffer of Announcement.vector_size bytes."""
        return cls(
            np.frombuffer(buffer, dtype="<u4", count=words32), np.frombuffer(buffer, dtype="<u8", offset=4 * words32)
        )


def signed_input(values: NDArray[np.integer[Any]], count: int, bound: int, bits: int) -> NDArray[np.signedinteger[Any]]:
    """One segment of a silo's own vector as signed integers, without a copy.

    Args:
        values: int64[count], or unsigned of `bits` bits[count] in two's complement.

    Raises:
        MisuseError: another type or length, or an entry beyond `bound`: the sum could wrap unseen.
    """
    array = np.asarray(values)
    if array.shape != (count,):
        raise MisuseError(f"a segment has {count} entries, not shape {array.shape}")
    if array.dtype == np.dtype(f"u{bits // 8}"):
        array = np.ascontiguousarray(array).view(np.dtype(f"i{bits // 8}"))
    elif array.dtype != np.int64:
        raise MisuseError(f"a segment holds int64 or uint{bits}, not {array.dtype}")
    if count and (int(array.max()) > bound or int(array.min()) < -bound):
        raise MisuseError(f"an entry lies outside [-{bound}, {bound}]")
    return array


def decode_sum(
    data: bytes, words32: int, words64: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """A published sum's entries, lifted to signed, and its tags: int64[words32], int64[words64], uint64[TAGS].

    Nothing is verified here: AwaitingSum.receive does that, or whoever holds t acks of SHA-256(data).

    Raises:
        WireError: not exactly as long as such a sum is.
    """
    if len(data) != vector_size(words32, words64):
        raise WireError("a sum of the wrong length")
    small = np.frombuffer(data, dtype="<i4", count=words32).astype(np.int64)
    large = np.frombuffer(data, dtype="<i8", offset=4 * words32)
    return small, large[:words64].astype(np.int64), large[words64:].astype(np.int64).view(np.uint64)


def in_range(announcement: Announcement, count: int, words32: NDArray[np.int64], words64: NDArray[np.int64]) -> bool:
    """Whether a sum of `count` silos keeps the bounds that each of them keeps."""
    return _within(words32, count * announcement.value_bound) and _within(words64, count * WORD64_BOUND)


def _within(values: NDArray[np.int64], bound: int) -> bool:
    return not len(values) or (int(values.max()) <= bound and int(values.min()) >= -bound)
