"""R0: what a session is about, and whether its parameters are sound.

The threshold t and the bound c on colluding silos are the plan's and are never scaled to the silos present: a smaller
cohort K' with the same t only widens the margins, until K' falls below max(t, minimum cohort) and is refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from secagg.errors import UnsoundError
from secagg.wire import HASH_SIZE, MAXIMUM_SILOS, Reader, Writer, check_name

RING_BOUND: Final = 1 << 30
WORD64_BOUND: Final = 1 << 40
MAXIMUM_WORDS32: Final = 1 << 28
MAXIMUM_WORDS64: Final = 1 << 24
TAGS: Final = 2
TAG_PRIME: Final = (1 << 56) - 5


def vector_size(words32: int, words64: int) -> int:
    """Bytes of a masked vector and of a published sum: u32 entries, u64 entries, tags."""
    return 4 * words32 + 8 * (words64 + TAGS)


@dataclass(frozen=True, slots=True)
class Announcement:
    """The body of R0, checked when it is made and when it is read.

    `cohort` is in roster order. Hashes and the nonce have 32 bytes. `words32` and `words64` count the entries of a
    silo's two segments without the tags. `value_bound` is the largest |q| of a words32 entry; a words64 entry is
    bounded by WORD64_BOUND. `parameters` hashes all else that the plan fixes; `previous` names the outcome of the
    round before, or is 32 zero bytes.

    Raises:
        WireError: a field is outside its format.
        UnsoundError: threshold, cohort and colluders do not fit, or a sum could leave the ring (design section 6).
    """

    federation: str
    plan: bytes
    stage: int
    round: int
    attempt: int
    cohort: tuple[str, ...]
    roster: bytes
    model: bytes
    layout: bytes
    words32: int
    words64: int
    value_bound: int
    threshold: int
    minimum_cohort: int
    colluders: int
    parameters: bytes
    deadline_ms: int
    previous: bytes
    nonce: bytes

    def __post_init__(self) -> None:
        check_name(self.federation)
        for name in self.cohort:
            check_name(name)
        for value in (
            self.plan,
            self.roster,
            self.model,
            self.layout,
            self.parameters,
            self.previous,
            self.nonce,
        ):
            if len(value) != HASH_SIZE:
                raise UnsoundError("hashes and nonce of an announcement have 32 bytes")
        if self.attempt < 1 or self.stage < 1 or self.round < 0:
            raise UnsoundError("stages and attempts count from 1, rounds from 0")
        self._check_cohort()
        self._check_ring()

    def _check_cohort(self) -> None:
        size = len(self.cohort)
        if len(set(self.cohort)) != size:
            raise UnsoundError("a silo appears twice in the cohort")
        if size > MAXIMUM_SILOS:
            raise UnsoundError(f"a cohort of {size} exceeds the limit of {MAXIMUM_SILOS}")
        if self.minimum_cohort < 3:
            raise UnsoundError("a sum of fewer than 3 silos shows a silo the other's vector")
        if size < self.quorum:
            raise UnsoundError(f"a cohort of {size} is below max(threshold, minimum cohort) = {self.quorum}")
        largest = min(2 * self.threshold - size - 1, self.threshold - 2)
        if not 1 <= self.colluders <= largest:
            raise UnsoundError(
                f"threshold {self.threshold} in a cohort of {size} withstands 1 to {largest} colluders, "
                f"not {self.colluders}"
            )

    def _check_ring(self) -> None:
        if not (0 <= self.words32 <= MAXIMUM_WORDS32 and 0 <= self.words64 <= MAXIMUM_WORDS64):
            raise UnsoundError("a segment exceeds its limit")
        if self.words32 + self.words64 == 0:
            raise UnsoundError("there is nothing to sum")
        if self.value_bound < 0 or len(self.cohort) * (self.value_bound + 1) >= RING_BOUND:
            raise UnsoundError("cohort * (value bound + 1) must stay below 2**30, or the sum would wrap")

    @property
    def quorum(self) -> int:
        """The fewest silos that any of U1, U2, U3 may have."""
        return max(self.threshold, self.minimum_cohort)

    @property
    def vector_size(self) -> int:
        """Bytes of a masked vector and of a published sum: u32 entries, u64 entries, tags."""
        return vector_size(self.words32, self.words64)

    def encode(self) -> bytes:
        """The bytes that the coordinator signs."""
        return (
            Writer()
            .name(self.federation)
            .fixed(self.plan, HASH_SIZE)
            .uint(self.stage, 1)
            .uint(self.round, 4)
            .uint(self.attempt, 4)
            .names(self.cohort)
            .fixed(self.roster, HASH_SIZE)
            .fixed(self.model, HASH_SIZE)
            .fixed(self.layout, HASH_SIZE)
            .uint(self.words32, 4)
            .uint(self.words64, 4)
            .uint(self.value_bound, 4)
            .uint(self.threshold, 2)
            .uint(self.minimum_cohort, 2)
            .uint(self.colluders, 2)
            .fixed(self.parameters, HASH_SIZE)
            .uint(self.deadline_ms, 8)
            .fixed(self.previous, HASH_SIZE)
            .fixed(self.nonce, HASH_SIZE)
            .done()
        )

    def hash(self) -> bytes:
        """SHA-256 of the R0 body: names the session until there is a sid."""
        return hashlib.sha256(self.encode()).digest()

    @classmethod
    def decode(cls, body: bytes) -> Announcement:
        """Read the bytes of R0, whose signature the caller has verified.

        Raises:
            WireError: not of that form.
            UnsoundError: as the constructor.
        """
        reader = Reader(body)
        announcement = cls(
            federation=reader.name(),
            plan=reader.fixed(HASH_SIZE),
            stage=reader.uint(1),
            round=reader.uint(4),
            attempt=reader.uint(4),
            cohort=reader.names(),
            roster=reader.fixed(HASH_SIZE),
            model=reader.fixed(HASH_SIZE),
            layout=reader.fixed(HASH_SIZE),
            words32=reader.uint(4),
            words64=reader.uint(4),
            value_bound=reader.uint(4),
            threshold=reader.uint(2),
            minimum_cohort=reader.uint(2),
            colluders=reader.uint(2),
            parameters=reader.fixed(HASH_SIZE),
            deadline_ms=reader.uint(8),
            previous=reader.fixed(HASH_SIZE),
            nonce=reader.fixed(HASH_SIZE),
        )
        reader.end()
        return announcement
