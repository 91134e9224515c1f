"""What all states of the coordinator's session share: collecting one frame of each expected silo."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.checks import B, Fault, Roll, Signed, read
from secagg.errors import Failed, Rejected
from secagg.exhibits import Conflict, WrongFrame, encode_exhibit
from secagg.hashing import blob_hash
from secagg.session import Announcement
from secagg.wire import Frame, Step

Outgoing = Mapping[str, tuple[Frame, ...]]


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Fixed from R0 on. `keys` holds the identity keys of the cohort, in its order; `announced` is SHA-256 of R0.

    `roll` names U1 (secagg.checks.roll_of) from R2 on, and is empty before.
    """

    announcement: Announcement
    announce: Frame
    announced: bytes
    keys: Mapping[str, bytes]
    signer: Ed25519PrivateKey = field(repr=False)
    roll: Roll = ()


class Collecting(Generic[B]):
    """Collects the frames of one step from `expected`, in whatever order they come.

    `session` is the sid, or SHA-256 of the R0 body before there is one; `outgoing` is what each member needs to send
    the frame that is collected here.
    """

    step: Step
    __slots__ = ("_closed", "_context", "_digests", "_found", "_members", "expected", "outgoing", "session")

    def __init__(self, context: ServerContext, session: bytes, expected: tuple[str, ...], outgoing: Outgoing) -> None:
        self._context = context
        self._members = {name: context.keys[name] for name in expected}
        self._found: dict[str, Signed[B]] = {}
        self._digests: dict[str, bytes] = {}
        self._closed = False
        self.session = session
        self.expected = expected
        self.outgoing = outgoing

    @property
    def missing(self) -> frozenset[str]:
        """Expected silos whose frame has not come."""
        return frozenset(self.expected) - frozenset(self._found)

    @property
    def needed(self) -> int:
        """How many frames make the step ready."""
        return self._context.announcement.quorum

    @property
    def ready(self) -> bool:
        """Whether the step may be closed without the missing."""
        return len(self._found) >= self.needed

    def receive(self, frame: Frame) -> None:
        """Count a frame. The byte-identical frame again changes nothing.

        Raises:
            Rejected: it is not counted; a second, different one leaves the first in place and is evidence.
        """
        if self._closed:
            raise Rejected(frame.sender, f"{self.step.name} came after the step was closed")
        try:
            signed = read(frame, self.step, self._members, self.session, self._decode)
            attachment = blob_hash(frame.attachment)
            earlier = self._found.get(frame.sender)
            if earlier is not None:
                self._check_repeat(earlier.frame, signed.frame, attachment)
                return
            self._check(signed, frame.attachment, attachment)
        except Fault as fault:
            raise Rejected(frame.sender, fault.reason, self._evidence(frame, fault)) from fault
        self._found[frame.sender] = signed
        self._digests[frame.sender] = attachment

    def _evidence(self, frame: Frame, fault: Fault) -> bytes:
        if fault.evidence is not None or not fault.by_sender:
            return fault.evidence or b""
        return encode_exhibit(WrongFrame(frame.without_attachment(), self._context.roll))

    def _check_repeat(self, earlier: Frame, later: Frame, attachment: bytes) -> None:
        if earlier.body != later.body:
            evidence = encode_exhibit(Conflict(earlier, later, self._context.roll))
            raise Rejected(later.sender, f"signed two {self.step.name}", evidence)
        if earlier.signature != later.signature or self._digests[later.sender] != attachment:
            raise Rejected(later.sender, f"sent one {self.step.name} in two ways")

    def _close(self) -> dict[str, Signed[B]]:
        """End the step: what was found, in roster order. Raises Failed when it is not ready or was closed."""
        if self._closed or not self.ready:
            raise Failed(frozenset(), f"{self.step.name}: {len(self._found)} of {self.needed} needed, or closed before")
        self._closed = True
        return {name: self._found[name] for name in self._context.announcement.cohort if name in self._found}

    @abstractmethod
    def _decode(self, body: bytes) -> B:
        """Parse a body. Raises WireError."""

    @abstractmethod
    def _check(self, signed: Signed[B], attachment: bytes, digest: bytes, /) -> None:
        """The step's own checks, and keeping what is needed of the attachment (`digest`: its hash). Raises Fault."""

    @abstractmethod
    def close(self) -> Any:
        """End the step without the missing. Raises Failed."""
