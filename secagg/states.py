"""What all states of a silo's session share: who it is, whether the session lives, and the rule of one request a state.

A state answers one request. The byte-identical request again gets the identical answer; a different one kills the
session, since two answers to one step are what an active coordinator needs. A violation kills it as well. A dead
session answers nothing but `abort`, and never lives again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.aborts import abort_frame
from secagg.bodies import NO_SESSION
from secagg.checks import B, Fault, Roll, Signed, read
from secagg.errors import MisuseError, ProtocolViolation
from secagg.evidence import find_conflict, judge
from secagg.exhibits import Conflict, WrongFrame, encode_exhibit, is_exhibit, loose
from secagg.hashing import blob_hash
from secagg.session import Announcement
from secagg.wire import COORDINATOR, Frame, Step


@dataclass(slots=True)
class Life:
    """The only thing that the states of a session share and change."""

    dead: bool = False
    released: bool = False
    session: bytes = NO_SESSION
    roll: Roll = ()
    abort: Frame | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """Fixed from R0 on. `keys` holds the identity keys of the cohort, in its order; `announced` is SHA-256 of R0."""

    announcement: Announcement
    announce_body: bytes
    announced: bytes
    keys: Mapping[str, bytes]
    server_key: bytes
    me: str
    signer: Ed25519PrivateKey = field(repr=False)
    life: Life = field(default_factory=Life)


D = TypeVar("D")
R = TypeVar("R")


class State(Generic[D]):
    """A state with its own data, which it forgets when it is left."""

    __slots__ = ("_context", "_data")

    def __init__(self, context: Context, data: D) -> None:
        self._context = context
        self._data: D | None = data

    def _take(self) -> D:
        """Leave the state: its data, once."""
        if self._context.life.dead:
            raise MisuseError("this session is dead")
        if self._data is None:
            raise MisuseError("this state was used")
        data, self._data = self._data, None
        return data

    def abort(self, reason: str, blamed: str = COORDINATOR, evidence: bytes = b"") -> Frame:
        """End the session and say so, with whether an R5 share was released. Again: the same frame.

        Evidence that does not convict `blamed` is left out: signed, it would convict this silo (secagg.evidence).
        """
        context, life = self._context, self._context.life
        life.dead = True
        self._data = None
        if is_exhibit(evidence) and blamed != judge(evidence, context.announce_body, context.keys).guilty:
            evidence = b""
        if life.abort is None:
            life.abort = abort_frame(
                announcement=context.announced,
                session=life.session,
                me=context.me,
                signer=context.signer,
                released=life.released,
                reason=reason,
                blamed=blamed,
                evidence=evidence,
            )
        return life.abort


class RequestState(State[D], Generic[D, R]):
    """A state that is left by a request from the coordinator."""

    __slots__ = ("_digests", "_request", "_result")

    def __init__(self, context: Context, data: D) -> None:
        super().__init__(context, data)
        self._request: frozenset[tuple[int, str, bytes, bytes, bytes]] | None = None
        self._result: R | None = None
        # The hashes of the frames' attachments, in order: a sum of megabytes is hashed once.
        self._digests: tuple[bytes, ...] = ()

    @abstractmethod
    def _respond(self, data: D, frames: Sequence[Frame]) -> R:
        """Check the request and compute the answer. Raises ProtocolViolation."""

    def _receive(self, frames: Sequence[Frame]) -> R:
        life = self._context.life
        digests = tuple(blob_hash(frame.attachment) for frame in frames)
        # With its hash in an attachment's place a frame tells requests apart, without the bytes.
        request = frozenset(
            (frame.step, frame.sender, frame.body, frame.signature, digest)
            for frame, digest in zip(frames, digests, strict=True)
        )
        if self._request is not None:
            if life.dead:
                raise MisuseError("this session is dead")
            if request != self._request or self._result is None:
                life.dead = True
                raise self._second_request([Frame(*fields) for fields in self._request], frames)
            return self._result
        data = self._take()
        self._request, self._digests = request, digests
        alive = False
        try:
            self._result = self._respond(data, frames)
            alive = True
        finally:
            if not alive:
                life.dead = True
        return self._result

    def _second_request(self, before: Iterable[Frame], after: Sequence[Frame]) -> ProtocolViolation:
        """Whose fault it is: of a silo that signed two frames of one step, or else the coordinator's."""
        context = self._context
        found = find_conflict(
            before, after, roll=context.life.roll, announce_body=context.announce_body, members=context.keys
        )
        if found is not None:
            return ProtocolViolation(found[0], "signed two different messages of one step", found[1])
        return ProtocolViolation(COORDINATOR, "a second, different request for one step")


def read_request(
    context: Context,
    frames: Sequence[Frame],
    step: Step,
    senders: Sequence[str],
    binding: bytes,
    decode: Any,
    sent: Frame,
) -> dict[str, Signed[Any]]:
    """Read all frames of a request: at most one a silo, each verified but `sent`, which this silo signed itself.

    Returns:
        By sender, in roster order.

    Raises:
        ProtocolViolation: what an honest coordinator would not have relayed is its fault; what a silo signed itself is
            that silo's, with evidence that convicts it.
    """
    keys = {name: context.keys[name] for name in senders}
    found: dict[str, Signed[Any]] = {}
    for frame in frames:
        try:
            signed = read(frame, step, keys, binding, decode, sent)
        except Fault as fault:
            raise blame(context, frame, fault) from fault
        twin = found.get(frame.sender)
        if twin is not None:
            if twin.frame.body == frame.body:
                raise ProtocolViolation(COORDINATOR, f"two {step.name} in one session", loose([frame]))
            both = Conflict(twin.frame, signed.frame, context.life.roll)
            raise ProtocolViolation(frame.sender, f"two {step.name} in one session", encode_exhibit(both))
        found[frame.sender] = signed
    return {name: found[name] for name in context.announcement.cohort if name in found}


def blame(context: Context, frame: Frame, fault: Fault) -> ProtocolViolation:
    """The verdict on a relayed frame with a fault."""
    signed = frame.without_attachment()
    if fault.by_sender:
        evidence = encode_exhibit(WrongFrame(signed, context.life.roll))
        return ProtocolViolation(frame.sender, fault.reason, evidence)
    return ProtocolViolation(COORDINATOR, fault.reason, loose([signed]))


def require_own(found: Mapping[str, Signed[B]], context: Context, sent: Frame) -> None:
    """Refuse a request that leaves out or replaces what this silo itself sent."""
    own = found.get(context.me)
    if own is None or own.frame.body != sent.body or own.frame.signature != sent.signature:
        raise ProtocolViolation(COORDINATOR, f"a request without the {Step(sent.step).name} that this silo sent")


def require_quorum(found: Mapping[str, Any], context: Context, step: Step) -> None:
    """Refuse to go on with fewer than max(t, minimum cohort) silos, t being the plan's."""
    if len(found) < context.announcement.quorum:
        raise ProtocolViolation(
            COORDINATOR, f"{len(found)} {step.name} where at least {context.announcement.quorum} are needed"
        )
