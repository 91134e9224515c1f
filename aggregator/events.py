"""What goes into the coordinator's state machine and what comes out of it.

Every input is a fact that the store has made durable before it is acted on; every effect is carried out by the shell
(aggregator.engine) in the order given, so that a sum is on disk before anybody is told of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from feddrm.contract.messages import CoordinatorEvent, SiloEvent
from feddrm.contract.signed import Signed

# inputs


@dataclass(frozen=True, slots=True)
class FromSilo:
    """An event on a silo's control stream. A masked input comes with its attachment, read from the uploads."""

    silo: str
    event: SiloEvent


@dataclass(frozen=True, slots=True)
class Detached:
    """A silo's control stream ended and no newer one replaced it."""

    silo: str


@dataclass(frozen=True, slots=True)
class JobStarted:
    """An operator starts a signed plan; `Coordinator.admit` has checked it."""

    plan: Signed


@dataclass(frozen=True, slots=True)
class JobStopped:
    """An operator stops the running job."""

    plan: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class RosterChanged:
    """An operator publishes a newer roster."""

    roster: Signed


@dataclass(frozen=True, slots=True)
class ReleaseOrdered:
    """An operator publishes a release by its id."""

    release: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The coordinator's process starts: all streams of before are gone."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """A deadline has passed."""


Event = FromSilo | Detached | JobStarted | JobStopped | RosterChanged | ReleaseOrdered | Restarted | Ticked


@dataclass(frozen=True, slots=True)
class Stamp:
    """When an event was accepted (milliseconds since the epoch), and 32 fresh random bytes for what it leads to.

    Both are stored with the event, so that replaying it gives the same announcement with the same nonce.
    """

    now_ms: int
    seed: bytes = field(repr=False)


# effects


@dataclass(frozen=True, slots=True)
class Send:
    """Queue an event on a silo's control stream; dropped when the silo is not connected."""

    silo: str
    event: CoordinatorEvent


@dataclass(frozen=True, slots=True)
class StoreBlob:
    """Keep a blob durably, before any later effect. Idempotent: a blob is named by its hash."""

    kind: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PublishRelease:
    """Put a release in service: queriers get its trunk and the router its head."""

    release: str


@dataclass(frozen=True, slots=True)
class Journal:
    """A line of the operator's log."""

    text: str


Effect = Send | StoreBlob | PublishRelease | Journal


class BlobReader(Protocol):
    """Content-addressed reading, which is a pure function of the hash."""

    def get(self, kind: str, blob: bytes) -> bytes:
        """The blob's bytes, their hash checked."""
        ...
