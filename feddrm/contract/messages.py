"""What travels between silos and the coordinator, as frozen dataclasses; codec.py turns them into protobuf and back.

What queriers and operators say is in query_messages.py and operator_messages.py, under the same conventions.

Fields named `plan`, `release`, `sum`, `model`, `roster`, `blob` and `query` are 32-byte SHA-256 hashes of what they
name. A signed body is opaque until its signature has been verified over the bytes as received.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from feddrm.contract.names import SiloId
from feddrm.contract.signed import Signed
from secagg.wire import Frame

SMALL_VECTOR: Final = 64 << 10
"""A masked input or a sum of at most so many bytes is attached to its frame, which spares a call and a file for each;
a larger one travels in chunks, resumable. The frame's signed body binds the bytes either way."""


class DeclineReason(IntEnum):
    """Why a silo declines a plan, in the generic form that leaves the hospital."""

    POLICY = 1
    BUDGET = 2
    ROSTER = 3
    DATA = 4
    BUSY = 5
    LEDGER = 6


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a blob; `digest` is the BLAKE3 of `data`."""

    blob: bytes
    size: int
    offset: int
    data: bytes = field(repr=False)
    digest: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks for a blob from `offset` on."""

    blob: bytes
    offset: int = 0


@dataclass(frozen=True, slots=True)
class UploadReceipt:
    """How many bytes of a blob the coordinator holds, durably."""

    blob: bytes
    held: int
    complete: bool


@dataclass(frozen=True, slots=True)
class HelloRequest:
    """Any member's greeting, with its software's name and version."""

    software: str


@dataclass(frozen=True, slots=True)
class Hello:
    """The coordinator's answer to any member: its clock (milliseconds since the epoch) and the newest roster."""

    software: str
    federation: str
    time_ms: int
    roster: Signed


# silo -> coordinator


@dataclass(frozen=True, slots=True)
class Ready:
    """First event of a control stream, and again after every applied or lost round.

    `boot` is 16 random bytes of this agent process: another boot means that sessions held in RAM are gone.
    `witnessed` holds the size of the newest ledger head held of each peer.
    """

    boot: bytes
    plan: bytes
    round: int
    model: bytes
    witnessed: tuple[tuple[SiloId, int], ...]
    roster: bytes


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """Whether a silo takes part in a plan."""

    plan: bytes
    accepted: bool
    reason: DeclineReason | None = None


@dataclass(frozen=True, slots=True)
class SiloFrame:
    """A secure aggregation step of the sender. A masked input of more than SMALL_VECTOR bytes travels by Upload, before
    its frame."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class AckEvent:
    """A signed feddrm.contract.rounds.Ack."""

    ack: Signed


@dataclass(frozen=True, slots=True)
class ReleaseSignature:
    """A silo's signature on the release statement it recomputed."""

    statement: Signed


SiloEvent = Ready | PlanAnswer | SiloFrame | AckEvent | ReleaseSignature

# coordinator -> silo


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """How a round ended: `sum` certified by at least t acks, or `lost` signed by the coordinator. Never both."""

    round: int
    acks: tuple[Signed, ...] = ()
    sum: bytes = b""
    lost: Signed | None = None


@dataclass(frozen=True, slots=True)
class JobOffer:
    """The operator-signed plan."""

    plan: Signed


@dataclass(frozen=True, slots=True)
class Announce:
    """R0. Attempts after the first carry the abort certificate of the attempt before; `previous` is the outcome of
    the round before. `witnessed` holds the ledger sizes of the recipient that its peers know, so that the proof in
    its R1 can start from each of them; a coordinator that leaves one out only makes that peer refuse."""

    frame: Frame
    abort_certificate: tuple[Frame, ...] = ()
    previous: RoundOutcome | None = None
    witnessed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepFrames:
    """All frames of `step` that the recipient needs for its next one. `session` is the sid, or SHA-256 of the R0 body
    while there is no sid yet (step KEYS)."""

    session: bytes
    step: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """R6; the sum is attached to the frame, or fetched by its hash if it has more than SMALL_VECTOR bytes."""

    frame: Frame
    sum: bytes


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """Asks for the signed statement that no share of this session was or will be released."""

    session: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeEvent:
    """A round's outcome for a silo that was away; it replays them in order."""

    outcome: RoundOutcome


@dataclass(frozen=True, slots=True)
class ReleaseProposal:
    """The release statement's body; a silo signs only what it recomputed itself."""

    statement: bytes


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over for this silo."""

    plan: bytes
    reason: str
    completed: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the silo's log."""

    text: str


@dataclass(frozen=True, slots=True)
class RosterOffer:
    """A newer roster, signed by the operator. It waits for a person's approval at the silo, never applies by itself."""

    roster: Signed


CoordinatorEvent = (
    JobOffer
    | Announce
    | StepFrames
    | Publish
    | AbortRequest
    | OutcomeEvent
    | ReleaseProposal
    | JobEnded
    | Notice
    | RosterOffer
)
