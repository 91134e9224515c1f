"""What all states of a silo's session share: who it is, whether the session lives, and the rule of one request a state.

A state answers one request. The byte-identical request again gets the identical answer; a different one kills the
session, since two answers to one step are what an active coordinator needs. A violation kills it as well. A dead
session answers nothing but `abort`, and never lives again.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.aborts import abort_frame
from secagg.bodies import NO_SESSION
from secagg.checks import B, Fault, Signed, read
from secagg.errors import MisuseError, ProtocolViolation
from secagg.session import Announcement
from secagg.wire import COORDINATOR, Frame, Step, encode_frames


@dataclass(slots=True)
class Life:
    """The only thing that the states of a session share and change."""

    dead: bool = False
    released: bool = False
    session: bytes = NO_SESSION
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

    def in_order(self, names: Mapping[str, Any]) -> tuple[str, ...]:
        """The names in roster order."""
        return tuple(name for name in self.announcement.cohort if name in names)


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
        """End the session and say so, with whether an R5 share was released. Again: the same frame."""
        life = self._context.life
        life.dead = True
        self._data = None
        if life.abort is None:
            life.abort = abort_frame(
                announcement=self._context.announced,
                session=life.session,
                me=self._context.me,
                signer=self._context.signer,
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
        self._request: frozenset[bytes] | None = None
        self._result: R | None = None
        # SHA-256 of the frames' attachments, in order: a sum of megabytes is hashed once.
        self._digests: tuple[bytes, ...] = ()

    @abstractmethod
    def _respond(self, data: D, frames: Sequence[Frame]) -> R:
        """Check the request and compute the answer. Raises ProtocolViolation."""

    def _receive(self, frames: Sequence[Frame]) -> R:
        life = self._context.life
        digests = tuple(hashlib.sha256(frame.attachment).digest() for frame in frames)
        request = frozenset(encode_frames([frame]) + digest for frame, digest in zip(frames, digests, strict=True))
        if self._request is not None:
            if life.dead:
                raise MisuseError("this session is dead")
            if request != self._request or self._result is None:
                life.dead = True
                raise ProtocolViolation(COORDINATOR, "a second, different request for one step")
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


def read_request(
    context: Context,
    frames: Sequence[Frame],
    step: Step,
    senders: Sequence[str],
    binding: bytes,
    decode: Any,
) -> dict[str, Signed[Any]]:
    """Read all frames of a request: at most one a silo, each verified.

    Returns:
        By sender, in roster order.

    Raises:
        ProtocolViolation: what an honest coordinator would not have relayed is its fault; what a silo signed itself is
            that silo's, with the frames as evidence.
    """
    keys = {name: context.keys[name] for name in senders}
    found: dict[str, Signed[Any]] = {}
    for frame in frames:
        try:
            signed = read(frame, step, keys, binding, decode)
        except Fault as fault:
            peer = frame.sender if fault.by_sender else COORDINATOR
            raise ProtocolViolation(peer, fault.reason, encode_frames([frame])) from fault
        twin = found.get(frame.sender)
        if twin is not None:
            both = encode_frames([twin.frame, signed.frame])
            guilty = frame.sender if twin.frame.body != frame.body else COORDINATOR
            raise ProtocolViolation(guilty, f"two {step.name} in one session", both)
        found[frame.sender] = signed
    return {name: found[name] for name in context.announcement.cohort if name in found}


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
