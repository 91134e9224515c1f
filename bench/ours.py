"""Our side of the comparison: the unmodified state machines, every silo of the cohort real, in one process.

Signatures, the consistency round, tags and every check are on, and every silo verifies the sum. A silo's work begins
with its update in reals, as Flower's does, and ends with the verified sum in integers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from os import urandom
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.inputs import CLIP, update
from secagg.client import AwaitingKeys, join
from secagg.quantise import quantise, value_bound
from secagg.server import open_session
from secagg.session import Announcement
from secagg.wire import Frame, Step

FRACTION_BITS: Final = 20
_COUNTS: Final = np.zeros(0, dtype=np.int64)


class Meter(Protocol):
    """Measures what one silo, or the coordinator, does between enter and exit, step after step."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def produced(self, size: int) -> None:
        """Inside: `size` bytes of what was just allocated are the vector or the sum that the step is there for."""


class Clock:
    """A meter of CPU seconds."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._start = 0.0

    def __enter__(self) -> Self:
        self._start = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.spent += time.process_time() - self._start

    def produced(self, size: int) -> None:
        """All time counts."""


M = TypeVar("M", bound=Meter)


@dataclass(frozen=True, slots=True)
class Measured(Generic[M]):
    """One meter for each survivor, and two for the coordinator: before R5, and R5 with R6."""

    silos: tuple[M, ...]
    collecting: M
    unmasking: M


@dataclass(slots=True)
class _Silo(Generic[M]):
    index: int
    meter: M
    state: Any = None


def announcement(names: tuple[str, ...], words32: int, threshold: int) -> Announcement:
    """A session over all of `names`."""
    digest = bytes(32)
    return Announcement(
        federation="bench",
        plan=digest,
        stage=1,
        round=1,
        attempt=1,
        cohort=names,
        roster=digest,
        model=digest,
        layout=digest,
        words32=words32,
        words64=len(_COUNTS),
        value_bound=value_bound(CLIP, FRACTION_BITS),
        threshold=threshold,
        minimum_cohort=3,
        colluders=1,
        parameters=digest,
        deadline_ms=0,
        previous=digest,
        nonce=urandom(32),
    )


def session(length: int, cohort: int, threshold: int, dropouts: int, meter: Callable[[], M]) -> Measured[M]:
    """One sum of `cohort` silos' updates, of which the first `dropouts` vanish before their masked input.

    Raises:
        RuntimeError: a silo got another sum than that of the survivors' quantised updates.
    """
    names = tuple(f"silo-{index:03d}" for index in range(cohort))
    signers = {name: Ed25519PrivateKey.generate() for name in names}
    members = {name: signer.public_key().public_bytes_raw() for name, signer in signers.items()}
    round_key = Ed25519PrivateKey.generate()
    silos = {name: _Silo(index, meter()) for index, name in enumerate(names)}
    collecting, unmasking = meter(), meter()
    expected = np.zeros(length, dtype=np.int64)

    def enter(name: str, announce: Frame) -> tuple[AwaitingKeys, Frame]:
        return join(
            announce,
            server_key=round_key.public_key().public_bytes_raw(),
            members=members,
            me=name,
            signer=signers[name],
            entropy=urandom,
            ledger_proof=b"",
        )

    def answer(silo: _Silo[M], name: str, step: Step, frames: tuple[Frame, ...]) -> Frame:
        nonlocal expected
        frame: Frame
        reals = update(silo.index, length) if step is Step.MASKED else None
        with silo.meter as measuring:
            if step is Step.KEYS:
                silo.state, frame = enter(name, frames[0])
                return frame
            state = silo.state.receive(frames)
            if step is Step.SHARES:
                silo.state, frame = state.share()
                return frame
            if reals is None:
                silo.state, frame = state
                return frame
            vector = quantise(reals, CLIP, FRACTION_BITS)
            measuring.produced(vector.nbytes)
            silo.state, frame = state.mask(vector, _COUNTS)
            measuring.produced(len(frame.attachment))
        expected += vector
        return frame

    with collecting:
        server: Any
        server, _ = open_session(announcement(names, length, threshold), round_key, members)
    for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY, Step.UNMASK):
        measured = unmasking if step is Step.UNMASK else collecting
        for name, frames in server.outgoing.items():
            if step is Step.MASKED and silos[name].index < dropouts:
                continue
            frame = answer(silos[name], name, step, frames)
            with measured:
                server.receive(frame)
        with measured:
            server = server.close()
    survivors = [silos[name] for name in server.survivors]
    for silo in survivors:
        with silo.meter as measuring:
            verified = silo.state.receive(server.frame)
            measuring.produced(verified.words32.nbytes)
        if not np.array_equal(verified.words32, expected) or len(survivors) != cohort - dropouts:
            raise RuntimeError("the verified sum is not that of the survivors")
        silo.state = verified = None
    return Measured(tuple(silo.meter for silo in survivors), collecting, unmasking)
