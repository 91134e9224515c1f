"""Tags by which every silo verifies the published sum: tag_u = <r, q_u> + o_u in Z_2^64 (design section 6).

All silos know G, the coordinator does not; weights r and offsets o_u come from it. Sums of tags verify sums of vectors,
and without the offset zeros and multiples would verify as well.

A published sum that differs from the true one by d passes a tag if <r, d> is the change made to that tag. Be 2^v the
largest power of two that divides every entry of d under r, and i an entry that 2^(v+1) does not divide: as r_i is
uniform, <r, d> is a uniform multiple of 2^v, so the tag passes with probability 2^(v-64) at most, however many entries
differ and whatever the others are. The range checks bound v: 30 for a words32 entry, 47 for a words64 entry. Hence four
tags: two over both segments, and two more over words64 alone, which is short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg import labels
from secagg.keys import derive, framed
from secagg.masks import CHUNK_BYTES, Keystream
from secagg.session import TAGS

# Tags from this one on are over words64 alone.
_NARROW: Final = 2
_WORDS: Final = CHUNK_BYTES // 8


def group_secret(session: bytes, transcript: bytes, secrets: Sequence[bytes]) -> bytes:
    """G from all g_u in roster order (32 bytes)."""
    return derive(framed(*secrets), labels.TAG_SECRET, session, transcript)


def products(group: bytes, session: bytes, words32: NDArray[Any], words64: NDArray[Any]) -> NDArray[np.uint64]:
    """<r, q> modulo 2^64 for each tag (uint64[TAGS]), q the concatenation of the tag's segments (signed integers)."""
    streams = [Keystream(derive(group, labels.TAG_WEIGHTS, session, index.to_bytes(1))) for index in range(TAGS)]
    totals = np.zeros(TAGS, dtype=np.uint64)
    _accumulate(totals[:_NARROW], streams[:_NARROW], words32)
    _accumulate(totals, streams, words64)
    return totals


def _accumulate(totals: NDArray[np.uint64], streams: Sequence[Keystream], values: NDArray[Any]) -> None:
    """Add to each total the product of the next words of its stream with `values`."""
    if not len(values):
        return
    weights = np.empty((len(streams), min(_WORDS, len(values))), dtype="<u8")
    rows = [row.data.cast("B") for row in weights]
    chunk = np.empty(weights.shape[1], dtype=np.int64)
    for start in range(0, len(values), _WORDS):
        part = values[start : start + _WORDS]
        entries = chunk[: len(part)]
        np.copyto(entries, part)
        for keystream, row in zip(streams, rows, strict=True):
            keystream.into(row, entries.nbytes)
        totals += np.einsum("ij,j->i", weights[:, : len(part)], entries.view(np.uint64))


def offsets(group: bytes, session: bytes, silos: Iterable[str]) -> NDArray[np.uint64]:
    """The sum of o_u over the silos, modulo 2^64, for each tag (uint64[TAGS])."""
    totals = np.zeros(TAGS, dtype=np.uint64)
    for silo in silos:
        key = derive(group, labels.TAG_OFFSET, session, silo.encode("ascii"))
        totals += Keystream(key).words(TAGS, "<u8")
    return totals


def tags(
    group: bytes, session: bytes, words32: NDArray[Any], words64: NDArray[Any], silos: Iterable[str]
) -> NDArray[np.uint64]:
    """The tags of a vector that is the sum of the silos' vectors (one silo: what it sends; U3: what must come out).

    Args:
        words32, words64: the two segments without tags, signed integers of any width up to 64 bits.

    Returns:
        uint64[TAGS].
    """
    return products(group, session, words32, words64) + offsets(group, session, silos)
