"""The leaves of a round: charged, committed to, and ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from privacy.events import Event

# Each hospital fits its own target head; nothing is summed and nothing leaves (design section 5).
LOCAL_STAGE: Final = 3


class AbortReason(StrEnum):
    """Why a charged round ended without a release of which the silo knows."""

    CRASHED = "crashed"
    LOST = "lost"
    DROPPED = "dropped"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Reserve:
    """One round is charged, before anything is read. `model` is the hash of the model that it starts from."""

    TYPE: ClassVar = "RESERVE"
    plan: bytes
    stage: int
    round: int
    event: Event
    model: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """The round's update exists; `reserve` is the leaf number of its reservation, `update` a keyed commitment."""

    TYPE: ClassVar = "COMMIT"
    plan: bytes
    stage: int
    round: int
    reserve: int
    update: bytes


@dataclass(frozen=True, slots=True)
class Abort:
    """A charged round ended without a known release. Stage 0 and round 0 end the job itself."""

    TYPE: ClassVar = "ABORT"
    plan: bytes
    stage: int
    round: int
    reason: AbortReason

    def __post_init__(self) -> None:
        if (self.stage == 0) != (self.round == 0):
            raise ValueError("stage and round are both 0 or neither")

    @property
    def ends_job(self) -> bool:
        """Whether this leaf ends the job rather than a round."""
        return self.stage == 0


@dataclass(frozen=True, slots=True)
class Release:
    """The sum of a round was published and acknowledged by t silos: hashes of it and of the model that it led to."""

    TYPE: ClassVar = "RELEASE"
    plan: bytes
    stage: int
    round: int
    sum: bytes
    model: bytes

    def __post_init__(self) -> None:
        if self.stage == LOCAL_STAGE:
            raise ValueError("a round of the personal heads' stage has no sum and no release")


@dataclass(frozen=True, slots=True)
class Keep:
    """A round of the one stage that no other hospital takes part in came to its end: what COMMIT names stays here."""

    TYPE: ClassVar = "KEEP"
    plan: bytes
    stage: int
    round: int

    def __post_init__(self) -> None:
        if self.stage != LOCAL_STAGE:
            raise ValueError("only a round of the personal heads' stage is kept")
