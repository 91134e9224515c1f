"""The bytes of a masked vector and of a published sum: little-endian u32 entries, u64 entries, u64 tags."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.errors import MisuseError, WireError
from secagg.masks import Words
from secagg.session import TAG_PRIME, TAGS, WORD64_BOUND, Announcement, vector_size


class Segments:
    """A vector of zeros to compute in: `words32` is <u4[n], `words64` is <u8[m], `tags` is <u8[TAGS], below TAG_PRIME.

    All are writable views of one buffer, which BytesIO gives away as bytes without a copy once no view is left.
    """

    __slots__ = ("_buffer", "tags", "words32", "words64")

    def __init__(self, words32: int, words64: int) -> None:
        self._buffer = BytesIO(bytes(vector_size(words32, words64)))
        self._view(words32, words64)

    @classmethod
    def of(cls, words32: Words, words64: Words) -> Segments:
        """The vector itself, from signed integers, of which the low bits count; its tags are zero."""
        if words32.dtype != np.dtype("<i4") or words64.dtype != np.dtype("<i8"):
            segments = cls(len(words32), len(words64))
            np.copyto(segments.words32, words32, casting="unsafe")
            np.copyto(segments.words64, words64, casting="unsafe")
            return segments
        segments = cls.__new__(cls)
        # Written once: no zeros before. In one expression, or the buffer would have two owners and be copied.
        parts = (np.ascontiguousarray(words32).data, np.ascontiguousarray(words64).data, bytes(8 * TAGS))
        segments._buffer = BytesIO(b"".join(parts))
        segments._view(len(words32), len(words64))
        return segments

    def _view(self, words32: int, words64: int) -> None:
        view = self._buffer.getbuffer()
        self.words32: Words = np.frombuffer(view, dtype="<u4", count=words32)
        self.words64: Words = np.frombuffer(view, dtype="<u8", offset=4 * words32, count=words64)
        self.tags: Words = np.frombuffer(view, dtype="<u8", offset=4 * words32 + 8 * words64)

    def add(self, data: bytes) -> None:
        """Add another vector of the same form, modulo the rings and the tags' prime."""
        words32, words64, tags = view_sum(data, len(self.words32), len(self.words64))
        np.add(self.words32, words32.view("<u4"), out=self.words32)
        np.add(self.words64, words64.view("<u8"), out=self.words64)
        self.tags[:] = [(int(one) + int(other)) % TAG_PRIME for one, other in zip(self.tags, tags, strict=True)]

    def signed(self) -> tuple[Words, Words]:
        """Both segments as signed integers, without the tags: <i4[n], <i8[m]. No view may outlive `take`."""
        return self.words32.view("<i4"), self.words64.view("<i8")

    def take(self) -> bytes:
        """The finished bytes, once. A view that somebody kept costs a copy, so that they never change."""
        del self.words32, self.words64, self.tags
        return self._buffer.getvalue()


def signed_input(values: NDArray[np.integer[Any]], count: int, bound: int, bits: int) -> NDArray[np.signedinteger[Any]]:
    """One segment of a silo's own vector as signed integers, without a copy.

    Args:
        values: int64[count], signed of `bits` bits[count], or unsigned of `bits` bits in two's complement.

    Raises:
        MisuseError: another type or length, or an entry beyond `bound`: the sum could wrap unseen.
    """
    array = np.asarray(values)
    if array.shape != (count,):
        raise MisuseError(f"a segment has {count} entries, not shape {array.shape}")
    if array.dtype == np.dtype(f"u{bits // 8}"):
        array = np.ascontiguousarray(array).view(np.dtype(f"i{bits // 8}"))
    elif array.dtype not in (np.int64, np.dtype(f"i{bits // 8}")):
        raise MisuseError(f"a segment holds int64, int{bits} or uint{bits}, not {array.dtype}")
    if count and (int(array.max()) > bound or int(array.min()) < -bound):
        raise MisuseError(f"an entry lies outside [-{bound}, {bound}]")
    return array


def view_sum(data: bytes, words32: int, words64: int) -> tuple[Words, Words, Words]:
    """A published sum's entries as signed integers, and its tags, all in place: <i4[words32], <i8[words64], <u8[TAGS].

    Raises:
        WireError: not exactly as long as such a sum is.
    """
    if len(data) != vector_size(words32, words64):
        raise WireError("a sum of the wrong length")
    end = 4 * words32 + 8 * words64
    return (
        np.frombuffer(data, dtype="<i4", count=words32),
        np.frombuffer(data, dtype="<i8", offset=4 * words32, count=words64),
        np.frombuffer(data, dtype="<u8", offset=end),
    )


def decode_sum(
    data: bytes, words32: int, words64: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """The same as arrays of their own: int64[words32], int64[words64], uint64[TAGS].

    Nothing is verified here: AwaitingSum.receive does that, or whoever holds t acks of its hash.

    Raises:
        WireError: not exactly as long as such a sum is.
    """
    small, large, tags = view_sum(data, words32, words64)
    return small.astype(np.int64), large.astype(np.int64), tags.astype(np.uint64)


def in_range(announcement: Announcement, count: int, words32: Words, words64: Words) -> bool:
    """Whether a sum of `count` silos (signed integers) keeps the bounds that each of them keeps."""
    return _within(words32, count * announcement.value_bound) and _within(words64, count * WORD64_BOUND)


def _within(values: Words, bound: int) -> bool:
    return not len(values) or (int(values.max()) <= bound and int(values.min()) >= -bound)
