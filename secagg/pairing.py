"""Mask keys: which streams a silo adds and subtracts, and the same streams as the coordinator removes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from secagg import labels
from secagg.keys import derive
from secagg.masks import apply
from secagg.vector import Segments

SEGMENTS: Final = (labels.SEGMENT32, labels.SEGMENT64)


@dataclass(slots=True)
class Streams:
    """Keys to add and to subtract, per segment: never one key for two segments."""

    add: dict[bytes, list[bytes]] = field(default_factory=lambda: {segment: [] for segment in SEGMENTS}, repr=False)
    subtract: dict[bytes, list[bytes]] = field(
        default_factory=lambda: {segment: [] for segment in SEGMENTS}, repr=False
    )

    def self_mask(self, session: bytes, silo: str, seed: bytes, *, add: bool) -> None:
        """The stream of b_u."""
        side = self.add if add else self.subtract
        for segment in SEGMENTS:
            side[segment].append(derive(seed, labels.SELF_MASK, session, silo.encode("ascii"), segment))

    def pair_mask(self, session: bytes, lower: str, higher: str, secret: bytes, *, add: bool) -> None:
        """The stream of one pair; `lower` comes first in the roster, adds it, and `higher` subtracts it."""
        side = self.add if add else self.subtract
        names = (lower.encode("ascii"), higher.encode("ascii"))
        for segment in SEGMENTS:
            side[segment].append(derive(secret, labels.PAIR_MASK, session, *names, segment))

    def apply(self, segments: Segments) -> None:
        """Add and subtract all streams in place."""
        apply(segments.words64, self.add[labels.SEGMENT64], self.subtract[labels.SEGMENT64], segments.tags)
        apply(segments.words32, self.add[labels.SEGMENT32], self.subtract[labels.SEGMENT32])


def own_streams(session: bytes, me: str, u2: Sequence[str], seed: bytes, secrets: Mapping[str, bytes]) -> Streams:
    """What a silo masks with: its own stream, and one with every other member of U2 (`secrets`: raw X25519)."""
    streams = Streams()
    streams.self_mask(session, me, seed, add=True)
    position = u2.index(me)
    for other, silo in enumerate(u2):
        if other > position:
            streams.pair_mask(session, me, silo, secrets[silo], add=True)
        elif other < position:
            streams.pair_mask(session, silo, me, secrets[silo], add=False)
    return streams
