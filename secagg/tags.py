"""Two tags by which every silo verifies the published sum: tag_u = <r, q_u> + o_u in Z_2^64 (design section 6).

All silos know G, the coordinator does not; weights r and offsets o_u come from it. Sums of tags verify sums of vectors,
and without the offset zeros and multiples would verify as well. A change d to one entry passes one tag with
probability 2^(v-64), 2^v the largest power of two that divides d; the range checks on the sum bound v.
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

_WORDS: Final = CHUNK_BYTES // 8


def group_secret(session: bytes, transcript: bytes, secrets: Sequence[bytes]) -> bytes:
    """G from all g_u in roster order (32 bytes)."""
    return derive(framed(*secrets), labels.TAG_SECRET, session, transcript)


def products(group: bytes, session: bytes, segments: Iterable[NDArray[Any]]) -> tuple[int, ...]:
    """<r, q> modulo 2^64 for each tag, q the concatenation of the segments (signed integers)."""
    pieces = tuple(segments)
    totals = []
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    weights = np.frombuffer(buffer, dtype="<u8")
    for index in range(TAGS):
        stream = Keystream(derive(group, labels.TAG_WEIGHTS, session, index.to_bytes(1)))
        total = 0
        for piece in pieces:
            for start in range(0, len(piece), _WORDS):
                part = piece[start : start + _WORDS].astype(np.int64, copy=False).view(np.uint64)
                stream.into(view, part.nbytes)
                total += int(np.dot(weights[: len(part)], part))
        totals.append(total % (1 << 64))
    return tuple(totals)


def offsets(group: bytes, session: bytes, silos: Iterable[str]) -> tuple[int, ...]:
    """The sum of o_u over the silos, modulo 2^64, for each tag."""
    totals = np.zeros(TAGS, dtype=np.uint64)
    for silo in silos:
        key = derive(group, labels.TAG_OFFSET, session, silo.encode("ascii"))
        totals += Keystream(key).words(TAGS, "<u8")
    return tuple(int(total) for total in totals)


def tags(group: bytes, session: bytes, segments: Iterable[NDArray[Any]], silos: Iterable[str]) -> NDArray[np.uint64]:
    """The tags of a vector that is the sum of the silos' vectors (one silo: what it sends; U3: what must come out)."""
    pairs = zip(products(group, session, segments), offsets(group, session, silos), strict=True)
    return np.array([(product + offset) % (1 << 64) for product, offset in pairs], dtype=np.uint64)
