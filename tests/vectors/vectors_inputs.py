"""Where everything in the session vectors comes from: one extendable-output function over labels, and nothing else.

`xof(label)` is the byte stream SHAKE-256("feddrm secagg vectors 1/" + label). Identities, nonces, random inputs and all
entropy of a silo are read from such streams, front to back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from secagg.session import WORD64_BOUND, Announcement
from secagg.wire import Step

PREFIX = "feddrm secagg vectors 1/"
COORDINATOR_NAME = "coordinator"
# More than any silo of these vectors draws.
STREAM_BYTES = 1 << 14

Words = NDArray[np.int64]


def xof(label: str, size: int) -> bytes:
    """The first `size` bytes of a label's stream."""
    return hashlib.shake_256((PREFIX + label).encode("ascii")).digest(size)


def identity(name: str) -> Ed25519PrivateKey:
    """A silo's identity key, or the coordinator's round key."""
    return Ed25519PrivateKey.from_private_bytes(xof(f"identity/{name}", 32))


class Entropy:
    """The entropy of one silo in one session; remembers what was drawn, in order."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.draws: list[bytes] = []
        self._stream = xof(label, STREAM_BYTES)
        self._at = 0

    def __call__(self, size: int) -> bytes:
        value = self._stream[self._at : self._at + size]
        self._at += size
        self.draws.append(value)
        return value


def random_words(label: str, count: int, bound: int, width: int) -> Words:
    """Entries in [-bound, bound]: little-endian words of `width` bytes modulo (2 bound + 1), less bound."""
    words = np.frombuffer(xof(label, width * count), dtype=f"<u{width}")
    return (words % np.array(2 * bound + 1, dtype=words.dtype)).astype(np.int64) - bound


@dataclass(frozen=True)
class Attempt:
    """One session: who is announced, who vanishes before sending which step, and the last step that is sent.

    `aborting` silos then sign an ABORT.
    """

    cohort: tuple[str, ...]
    lost: Mapping[Step, tuple[str, ...]] = field(default_factory=dict)
    until: Step = Step.PUBLISH
    aborting: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """One file of vectors. `values` is "random", "highest", "lowest" or "powers" (silo i: +-2^i)."""

    name: str
    about: str
    attempts: tuple[Attempt, ...]
    threshold: int
    minimum_cohort: int = 3
    colluders: int = 1
    words32: int = 5
    words64: int = 2
    value_bound: int = 1 << 20
    values: str = "random"
    stage: int = 1
    round: int = 1

    @property
    def roster(self) -> tuple[str, ...]:
        """All silos, in roster order: the first attempt announces all of them."""
        return self.attempts[0].cohort

    def announcement(self, attempt: int) -> Announcement:
        """R0 of an attempt, counted from 1. Hashes of things outside the protocol are SHA-256 of their field's name."""
        outside: dict[str, Any] = {
            name: hashlib.sha256(name.encode()).digest() for name in ("plan", "roster", "model", "layout", "parameters")
        }
        return Announcement(
            federation="vectors",
            stage=self.stage,
            round=self.round,
            attempt=attempt,
            cohort=self.attempts[attempt - 1].cohort,
            words32=self.words32,
            words64=self.words64,
            value_bound=self.value_bound,
            threshold=self.threshold,
            minimum_cohort=self.minimum_cohort,
            colluders=self.colluders,
            deadline_ms=1_700_000_000_000 + attempt,
            previous=bytes(32),
            nonce=xof(f"{self.name}/{attempt}/nonce", 32),
            **outside,
        )

    def entropy(self, attempt: int, silo: str) -> Entropy:
        """A silo's entropy in an attempt."""
        return Entropy(f"{self.name}/{attempt}/entropy/{silo}")

    def words(self, silo: str) -> tuple[Words, Words]:
        """A silo's two segments, the same in every attempt."""
        if self.values == "random":
            return (
                random_words(f"{self.name}/words32/{silo}", self.words32, self.value_bound, 4),
                random_words(f"{self.name}/words64/{silo}", self.words64, WORD64_BOUND, 8),
            )
        make: Mapping[str, Callable[[int], int]] = {
            "highest": lambda bound: bound,
            "lowest": lambda bound: -bound,
            "powers": lambda bound: (-1 if bound == WORD64_BOUND else 1) << self.roster.index(silo),
        }
        small, large = make[self.values](self.value_bound), make[self.values](WORD64_BOUND)
        return np.full(self.words32, small, dtype=np.int64), np.full(self.words64, large, dtype=np.int64)


def _silos(count: int) -> tuple[str, ...]:
    return tuple(f"silo-{index}" for index in range(count))


_RING3 = ((1 << 30) - 1) // 3 - 1
_ODD = ("zeta", "a" * 32, "0", "m-1-x")

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("k3-full", "Three silos, nobody drops out.", (Attempt(_silos(3)),), 3),
    Scenario(
        "k5-full", "Five silos, nobody drops out; silo i sums +2^i and -2^i.",
        (Attempt(_silos(5)),), 4, values="powers",
    ),
    Scenario("k6-full", "Six silos, threshold 5, two colluders withstood.", (Attempt(_silos(6)),), 5, colluders=2),
    Scenario(
        "k4-names", "Names of 1 and of 32 characters, and a roster order that is not the alphabet's.",
        (Attempt(_ODD),), 3,
    ),
    Scenario(
        "k5-lost-before-keys", "silo-1 is announced and never answers: U1 is smaller than the cohort.",
        (Attempt(_silos(5), {Step.KEYS: ("silo-1",)}),), 4,
    ),
    Scenario(
        "k5-lost-before-shares", "silo-0 sends R1 and no R2: it is in U1, and positions of U2 have a gap.",
        (Attempt(_silos(5), {Step.SHARES: ("silo-0",)}),), 4,
    ),
    Scenario(
        "k5-lost-before-masked", "silo-2 deals shares and sends no vector: its mask key is opened.",
        (Attempt(_silos(5), {Step.MASKED: ("silo-2",)}),), 4, values="powers",
    ),
    Scenario(
        "k5-lost-after-masked", "silo-3 vanishes after R3: it stays in the sum.",
        (Attempt(_silos(5), {Step.CONSISTENCY: ("silo-3",)}),), 4,
    ),
    Scenario(
        "k5-lost-after-consistency", "silo-4 vanishes after R4: four openings suffice.",
        (Attempt(_silos(5), {Step.UNMASK: ("silo-4",)}),), 4,
    ),
    Scenario(
        "k6-lost-in-two-steps", "The first silo vanishes before R3 and the last after R3.",
        (Attempt(_silos(6), {Step.MASKED: ("silo-0",), Step.CONSISTENCY: ("silo-5",)}),), 4,
    ),
    Scenario(
        "k3-words32-only", "No words64; all at the highest value that fits the ring.",
        (Attempt(_silos(3)),), 3, words64=0, value_bound=_RING3, values="highest",
    ),
    Scenario(
        "k3-words64-only", "No words32; all at the lowest value.",
        (Attempt(_silos(3)),), 3, words32=0, values="lowest",
    ),
    Scenario(
        "k3-lowest", "Both segments at their lowest values.",
        (Attempt(_silos(3)),), 3, value_bound=_RING3, values="lowest",
    ),
    Scenario(
        "k3-long", "Vectors of more than 256 KiB, given by their hashes.",
        (Attempt(_silos(3)),), 3, words32=70_001, words64=20_003,
    ),
    Scenario(
        "k5-retry",
        "The session dies after R3. Four silos sign that they released nothing, which is a certificate; the same "
        "vectors are masked again, with fresh keys, among four.",
        (
            Attempt(_silos(5), until=Step.MASKED, aborting=("silo-0", "silo-1", "silo-2", "silo-3")),
            Attempt(_silos(4)),
        ),
        4,
    ),
    Scenario(
        "k3-abort-after-release",
        "All released their shares; two then abort, and say so: no certificate comes of it.",
        (Attempt(_silos(3), until=Step.UNMASK, aborting=("silo-0", "silo-2")),),
        3,
    ),
)  # fmt: skip
