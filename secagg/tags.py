"""Tags by which every silo verifies the published sum: tag_u = F(q_u) + o_u modulo p = 2^56 - 5 (design section 6).

All silos know G, the coordinator does not; the linear function F and the offsets o_u come from it. Sums of tags verify
sums of vectors, and without the offset zeros and multiples would verify as well.

F has two levels. A vector is cut into blocks of LENGTH entries; each gives COLUMNS inner products with the same short
weights R, and F is the inner product of all of these with long weights A, modulo p. The first level, where the work
is, needs no keystream as long as the vector and is a product of small float64 matrices that is exact: entries below
2^30 times weights of at most 2^13, 2^10 of them, stay within 2^53 in any order of addition. A sign is one bit of
each weight for nothing, and wide weights in short blocks need few columns, which is how often an entry is multiplied.

A published sum that differs from the true one by d, some entry of it not divisible by p, passes a tag if F(d) is the
change made to that tag. For a block with such an entry each column of R is hit with at most one of 2^14 values of the
entry's weight, so that all columns vanish with probability 2^-112; if one does not, its weight in A is hit with at most
two of 2^56 values, in each of two tags: 2^-110. It does not matter how many entries differ, and by what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg import labels
from secagg.keys import derive, framed
from secagg.masks import Keystream
from secagg.session import TAG_PRIME, TAGS

LENGTH: Final = 1024
COLUMNS: Final = 8
SHORT_BITS: Final = 14
_LIMB_BITS: Final = 24
# OpenBLAS starts threads for products beyond 2^18 multiplications: slower here, and not ours to take from training.
_BLOCKS: Final = 32
_THIRD: Final = 18
_LOW_THIRD: Final = (1 << _THIRD) - 1
_HALF: Final = 28
_LOW_HALF: Final = (1 << _HALF) - 1
_TERMS: Final = 1 << 12

Limb = Callable[[NDArray[Any]], NDArray[Any]]


def group_secret(session: bytes, transcript: bytes, secrets: Iterable[bytes]) -> bytes:
    """G from all g_u in roster order (32 bytes)."""
    return derive(framed(*secrets), labels.TAG_SECRET, session, transcript)


def products(group: bytes, session: bytes, words32: NDArray[Any], words64: NDArray[Any]) -> tuple[int, ...]:
    """F of a vector for each tag, below p. Arguments as of `tags`."""
    # All weights before the first pass over the vector, which leaves no code and no table in the caches.
    keys = [derive(group, labels.TAG_WEIGHTS, session, bytes([number])) for number in range(1 + TAGS)]
    short = _short_weights(keys[0], min(LENGTH, max(len(words32), len(words64))))
    streams = [Keystream(key) for key in keys[1:]]
    long32, long64 = (
        [_long_weights(stream, _columns(len(words))) for stream in streams] for words in (words32, words64)
    )
    totals = _dots(long32, _inner(words32, short))
    if len(words64):
        limbs: tuple[tuple[Limb, int], ...] = (
            (lambda part: part & ((1 << _LIMB_BITS) - 1), 0),
            (lambda part: part >> _LIMB_BITS, _LIMB_BITS),
        )
        for limb, shift in limbs:
            more = _dots(long64, _inner(words64, short, limb))
            totals = [total + (value << shift) for total, value in zip(totals, more, strict=True)]
    return tuple(total % TAG_PRIME for total in totals)


def _columns(entries: int) -> int:
    """How many inner products the blocks of a segment give."""
    return -(-entries // LENGTH) * COLUMNS


def _short_weights(key: bytes, rows: int) -> NDArray[np.float64]:
    """R: float64[rows, COLUMNS], integers in [-2^(SHORT_BITS - 1), 2^(SHORT_BITS - 1))."""
    words = Keystream(key).words(rows * COLUMNS, "<u2")
    short = (words & ((1 << SHORT_BITS) - 1)).astype(np.float64)
    short -= 1 << (SHORT_BITS - 1)
    return short.reshape(rows, COLUMNS)


def _long_weights(stream: Keystream, count: int) -> NDArray[np.uint64]:
    """The next `count` of A: uint64[count], below 2^56."""
    return stream.words(count, "<u8") >> np.uint64(8)


def _inner(values: NDArray[Any], short: NDArray[np.float64], limb: Limb | None = None) -> NDArray[np.float64]:
    """The first level: float64[blocks * COLUMNS], exact integers. `limb` takes the part of each entry that is meant."""
    whole, rest = divmod(len(values), LENGTH)
    found = np.empty((whole + (rest > 0), COLUMNS))
    blocks = values[: whole * LENGTH].reshape(whole, LENGTH)
    buffer = np.empty((min(_BLOCKS, whole), LENGTH))
    for at in range(0, whole, _BLOCKS):
        part = blocks[at : at + _BLOCKS]
        entries = buffer[: len(part)]
        np.copyto(entries, part if limb is None else limb(part))
        np.matmul(entries, short, out=found[at : at + len(part)])
    if rest:
        last = values[whole * LENGTH :]
        np.matmul((last if limb is None else limb(last)).astype(np.float64), short[:rest], out=found[whole])
    return found.ravel()


def _dots(weights: Sequence[NDArray[np.uint64]], values: NDArray[np.float64]) -> list[int]:
    """The inner product of each of the weights (below 2^56) with the values (integers of at most 2^53), as integers.

    In thirds of a value, of at most 2^18, and halves of a weight, below 2^28, so that the 2^12 products of a turn
    are summed exactly in 64 bits (up to 2^17 would be); fewer at once, so that they stay in cache.
    """
    totals = [0] * len(weights)
    for start in range(0, len(values), _TERMS):
        part = values[start : start + _TERMS].astype(np.int64)
        thirds = (part & _LOW_THIRD, (part >> _THIRD) & _LOW_THIRD, part >> (2 * _THIRD))
        for index, row in enumerate(weights):
            factors = row[start : start + _TERMS].view(np.int64)
            halves = (factors & _LOW_HALF, factors >> _HALF)
            totals[index] += sum(
                int(third.dot(half)) << (_THIRD * i + _HALF * j)
                for i, third in enumerate(thirds)
                for j, half in enumerate(halves)
            )
    return totals


def offsets(group: bytes, session: bytes, silos: Iterable[str]) -> tuple[int, ...]:
    """The sum of o_u over the silos, each below 2^56 and uniform modulo p up to 5 * 2^-56, for each tag."""
    totals = [0] * TAGS
    for silo in silos:
        stream = Keystream(derive(group, labels.TAG_OFFSET, session, silo.encode("ascii")))
        for tag, word in enumerate(stream.words(TAGS, "<u8").tolist()):
            totals[tag] += word >> 8
    return tuple(totals)


def tags(
    group: bytes, session: bytes, words32: NDArray[Any], words64: NDArray[Any], silos: Iterable[str]
) -> NDArray[np.uint64]:
    """The tags of a vector that is the sum of the silos' vectors (one silo: what it sends; U3: what must come out).

    Args:
        words32: the segment without tags, signed integers of any width, |q| < 2^30 (RING_BOUND).
        words64: the same, |q| < 2^47.

    Returns:
        uint64[TAGS], below p. Silos' tags are masked and summed modulo p: a sum of the integers would show how often it
        wrapped, which depends on every single vector, to whoever knows G.
    """
    own = offsets(group, session, silos)
    pairs = zip(products(group, session, words32, words64), own, strict=True)
    return np.array([(product + offset) % TAG_PRIME for product, offset in pairs], dtype=np.uint64)
