"""What a job is doing: one type for each phase, holding only what that phase needs (design section 5)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from aggregator.session import Session
from feddrm.contract.signed import Signature, Signed
from secagg.wire import Frame


@dataclass(slots=True)
class Gathering:
    """Waiting until the silos of the next attempt are ready.

    `certificate` is the abort certificate of the attempt before, empty where no member of it can have masked anything.
    `resting` holds silos that sit out this round, and why. Nobody is announced to before `not_before_ms`. `shown` is
    what the sessions of this round before showed of ledgers (aggregator.session).
    """

    round: int
    attempt: int
    since_ms: int
    not_before_ms: int
    certificate: tuple[Frame, ...] = ()
    resting: dict[str, str] = field(default_factory=dict)
    shown: dict[str, set[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Running:
    """A session is open."""

    round: int
    attempt: int
    session: Session
    resting: dict[str, str]
    certificate: tuple[Frame, ...]


@dataclass(slots=True)
class Aborting:
    """A session broke after its members may have masked: their signed aborts are collected."""

    round: int
    attempt: int
    session: Session
    reason: str
    deadline_ms: int
    resting: dict[str, str]

    def waiting(self) -> tuple[str, ...]:
        """Members whose signed abort may still come, in cohort order."""
        session = self.session
        return tuple(s for s in session.members if s not in session.aborts and s not in session.offenders)


@dataclass(slots=True)
class Acknowledging:
    """A sum is published: the silos that applied it sign what they got.

    `boots` holds the agent process of each silo it was published to; a silo that comes back with another one before it
    applied the sum can no longer verify it, so it is `gone`.
    """

    round: int
    attempt: int
    session: Session
    frame: Frame
    sum: bytes
    survivors: tuple[str, ...]
    opened: tuple[str, ...]
    model: npt.NDArray[np.int64]
    model_hash: bytes
    body: bytes
    deadline_ms: int
    acks: dict[str, Signed] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)

    def recipients(self) -> tuple[str, ...]:
        """The members that the sum is sent to, in cohort order: those that took part until R4."""
        return tuple(s for s in self.session.announcement.cohort if s in self.session.outbox)

    def waiting(self) -> tuple[str, ...]:
        """Recipients whose ack may still come."""
        return tuple(s for s in self.recipients() if s not in self.acks and s not in self.gone)


@dataclass(slots=True)
class Proposing:
    """All rounds are done: silos sign the release statement they recomputed. `published` once the operator said so."""

    statement: bytes
    since_ms: int
    signatures: dict[str, Signature] = field(default_factory=dict)


@dataclass(slots=True)
class Ended:
    """The job is over."""

    completed: bool
    reason: str


Phase = Gathering | Running | Aborting | Acknowledging | Proposing | Ended
