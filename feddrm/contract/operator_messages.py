"""What operators and the coordinator say: jobs, their status, releases. Conventions: see messages.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from feddrm.contract.signed import Signed

HISTORY_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class RosterReceipt:
    """The version of the roster now in service."""

    version: int


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stops a job; its spent budget stays spent."""

    plan: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class JobReceipt:
    """The state of a job after an operator's call."""

    plan: bytes
    state: str


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """Asks for the state of one job; an empty `plan` means the newest."""

    plan: bytes = b""


@dataclass(frozen=True, slots=True)
class SiloStatus:
    """One silo as the coordinator sees it."""

    name: str
    connected: bool
    state: str
    rounds_joined: int
    capacity: int


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """How a round went. `mask_keys_opened` names silos whose mask-key shares were opened since they dropped out.

    `round` is numbered through all stages (feddrm.contract.schedule); `stage` says what it was.
    """

    round: int
    attempt: int
    outcome: str
    cohort: tuple[str, ...]
    survivors: tuple[str, ...]
    mask_keys_opened: tuple[str, ...]
    sum: bytes
    stage: int


@dataclass(frozen=True, slots=True)
class NamedFigure:
    """One figure of the evaluation, in [0, 1], and the standard deviation that its noise has."""

    name: str
    value: float
    deviation: float


@dataclass(frozen=True, slots=True)
class NoiseFound:
    """How much noise the published sums hold, in `places` that hold nothing else (feddrm.method.noise_meter).

    Attributes:
        ratio: variance found over variance planned.
        chance: of so little or less had all of it been drawn, at most.
        needed: places with which one silo that draws none is found, but for one time in a thousand.
        short: noise is missing; wrong once in a million.
    """

    places: int
    ratio: float
    chance: float
    needed: int
    short: bool


@dataclass(frozen=True, slots=True)
class Status:
    """What `feddrm-aggregator status` shows. `history` holds at most the newest HISTORY_LIMIT rounds.

    Rounds are numbered through all stages; `stage` is that of `round`, 0 while there is none. `figures` are those of
    the evaluation, empty before it and where its noise leaves nothing to say; `noise` is None until it can be judged.
    """

    federation: str
    roster_version: int
    plan: bytes
    job: str
    state: str
    round: int
    rounds: int
    attempt: int
    step: str
    waiting_for: tuple[str, ...]
    silos: tuple[SiloStatus, ...]
    history: tuple[RoundSummary, ...]
    detail: str
    release: str
    stage: int
    figures: tuple[NamedFigure, ...]
    noise: NoiseFound | None = None


@dataclass(frozen=True, slots=True)
class ReleaseSummary:
    """A release as the operator lists it: plan and statement say all that its model card says."""

    id: str
    plan: bytes
    signatures: int
    threshold: int
    published: bool
    signed_plan: Signed
    statement: Signed


@dataclass(frozen=True, slots=True)
class ReleaseList:
    """All releases of the federation, newest first."""

    releases: tuple[ReleaseSummary, ...]


@dataclass(frozen=True, slots=True)
class PublishRelease:
    """Puts a release into service."""

    id: str
