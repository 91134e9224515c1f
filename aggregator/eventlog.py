"""The stored form of every input event (aggregator.events)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from aggregator.events import (
    Detached,
    Event,
    FromSilo,
    JobStarted,
    JobStopped,
    ReleaseOrdered,
    Restarted,
    RosterChanged,
    Ticked,
)
from feddrm.contract.codec import SIGNED, SILO_EVENT
from feddrm.contract.errors import VerificationError
from feddrm.contract.messages import SMALL_VECTOR, SiloFrame
from secagg.wire import Frame, Step


def encode(event: Event) -> tuple[str, bytes]:
    """An event's kind and body. A large masked input is left out: it is an upload, named by its hash."""
    match event:
        case FromSilo(silo, message):
            if isinstance(message, SiloFrame) and _uploaded(message.frame):
                message = replace(message, frame=message.frame.without_attachment())
            name = silo.encode()
            return "from-silo", bytes((len(name),)) + name + SILO_EVENT.encode(message)
        case Detached(silo):
            return "detached", silo.encode()
        case JobStarted(plan):
            return "job-started", SIGNED.encode(plan)
        case JobStopped(plan_hash, reason):
            return "job-stopped", plan_hash + reason.encode()
        case RosterChanged(roster):
            return "roster-changed", SIGNED.encode(roster)
        case ReleaseOrdered(release):
            return "release-ordered", release.encode()
        case Restarted():
            return "restarted", b""
        case Ticked():
            return "ticked", b""


def _uploaded(frame: Frame) -> bool:
    return frame.step == Step.MASKED and len(frame.attachment) > SMALL_VECTOR


def _from_silo(body: bytes) -> FromSilo:
    end = 1 + body[0]
    return FromSilo(body[1:end].decode(), SILO_EVENT.decode(body[end:]))


_DECODERS: Final[dict[str, Callable[[bytes], Event]]] = {
    "from-silo": _from_silo,
    "detached": lambda body: Detached(body.decode()),
    "job-started": lambda body: JobStarted(SIGNED.decode(body)),
    "job-stopped": lambda body: JobStopped(body[:32], body[32:].decode()),
    "roster-changed": lambda body: RosterChanged(SIGNED.decode(body)),
    "release-ordered": lambda body: ReleaseOrdered(body.decode()),
    "restarted": lambda _: Restarted(),
    "ticked": lambda _: Ticked(),
}


def decode(kind: str, body: bytes) -> Event:
    """The event that `encode` stored; a large masked input comes without its attachment.

    Raises:
        VerificationError: this software does not know the kind.
    """
    if kind not in _DECODERS:
        raise VerificationError(f"The state holds an event of unknown kind {kind}; it is of a newer version.")
    return _DECODERS[kind](body)
