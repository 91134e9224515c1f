"""A federation in one process: real state machines, deterministic keys, and hands that can be dishonest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from secagg import keys
from secagg.client import join
from secagg.errors import MisuseError, ProtocolViolation, Rejected
from secagg.evidence import Verdict, judge
from secagg.exhibits import Loose, decode_exhibit
from secagg.server import open_session
from secagg.session import Announcement
from secagg.wire import Frame, Step

STEPS = (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY, Step.UNMASK)


def stream(*context: object) -> Callable[[int], bytes]:
    """Deterministic entropy: a different stream for every context."""
    counter = 0

    def draw(size: int) -> bytes:
        nonlocal counter
        counter += 1
        return hashlib.shake_256(repr((context, counter)).encode()).digest(size)

    return draw


@dataclass
class Federation:
    size: int = 5
    threshold: int = 4
    minimum_cohort: int = 3
    colluders: int = 1
    words32: int = 7
    words64: int = 2
    name: str = "fed"
    names: tuple[str, ...] = field(init=False)
    identity: dict[str, Ed25519PrivateKey] = field(init=False)
    members: dict[str, bytes] = field(init=False)
    round_key: Ed25519PrivateKey = field(init=False)

    def __post_init__(self) -> None:
        self.names = tuple(f"silo-{index}" for index in range(self.size))
        draw = stream("identities", self.name)
        self.identity = {name: Ed25519PrivateKey.from_private_bytes(draw(32)) for name in self.names}
        self.members = {name: key.public_key().public_bytes_raw() for name, key in self.identity.items()}
        self.round_key = Ed25519PrivateKey.from_private_bytes(draw(32))

    @property
    def server_key(self) -> bytes:
        return self.round_key.public_key().public_bytes_raw()

    def announcement(self, **changes: Any) -> Announcement:
        base = Announcement(
            federation=self.name,
            plan=b"P" * 32,
            stage=1,
            round=1,
            attempt=1,
            cohort=self.names,
            roster=b"R" * 32,
            model=b"M" * 32,
            layout=b"L" * 32,
            words32=self.words32,
            words64=self.words64,
            value_bound=1 << 20,
            threshold=self.threshold,
            minimum_cohort=self.minimum_cohort,
            colluders=self.colluders,
            parameters=b"D" * 32,
            deadline_ms=1000,
            previous=bytes(32),
            nonce=b"N" * 32,
        )
        return replace(base, **changes)

    def announce(self, announcement: Announcement) -> Frame:
        return keys.sign(Step.ANNOUNCE, "", announcement.encode(), self.round_key)

    def sign(self, name: str, body: Any, attachment: bytes = b"") -> Frame:
        """A frame that a silo really signs, whatever it says."""
        step = Step[type(body).__name__.upper()]
        return keys.sign(step, name, body.encode(), self.identity[name], attachment)

    def sign_raw(self, name: str, step: Step, body: bytes) -> Frame:
        return keys.sign(step, name, body, self.identity[name])

    def join(self, name: str, announce: Frame, salt: object = 0) -> tuple[Any, Frame]:
        return join(
            announce,
            server_key=self.server_key,
            members=self.members,
            me=name,
            signer=self.identity[name],
            entropy=stream("silo", self.name, name, announce.body, salt),
            ledger_proof=b"proof of " + name.encode(),
        )

    def start(self, **changes: Any) -> Session:
        return Session(self, self.announcement(**changes))

    def words(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Silo i contributes +-2^i everywhere, so that any double count or omission shows."""
        value = 1 << self.names.index(name)
        signs = np.where(np.arange(self.words32) % 2 == 0, 1, -1).astype(np.int64)
        return signs * value, np.full(self.words64, value << 20, dtype=np.int64)

    def total(self, survivors: Collection[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        pairs = [self.words(name) for name in survivors]
        return np.sum([a for a, _ in pairs], axis=0), np.sum([b for _, b in pairs], axis=0)


class Session:
    """One session, moved step by step. `clients` and `server` hold the states; tests may meddle with all of it."""

    def __init__(self, federation: Federation, announcement: Announcement) -> None:
        self.federation = federation
        self.announcement = announcement
        self.server: Any
        self.server, self.announce = open_session(announcement, federation.round_key, federation.members)
        self.clients: dict[str, Any] = {}
        self.states: dict[Step, dict[str, Any]] = {step: {} for step in Step}
        self.sent: dict[Step, dict[str, Frame]] = {step: {} for step in Step}
        self.published: Any = None

    def respond(self, step: Step, name: str, request: tuple[Frame, ...] | None = None) -> Frame:
        """Let one honest silo answer a request (by default the coordinator's) with its frame of `step`."""
        if name in self.sent[step]:
            return self.sent[step][name]
        frames = self.server.outgoing[name] if request is None else request
        state = self.clients.get(name)
        self.states[step][name] = state
        frame: Frame
        if step == Step.KEYS:
            self.clients[name], frame = self.federation.join(name, frames[0])
        elif step == Step.SHARES:
            assert state is not None
            self.clients[name], frame = state.receive(frames).share()
        elif step == Step.MASKED:
            assert state is not None
            self.clients[name], frame = state.receive(frames).mask(*self.federation.words(name))
        else:
            assert state is not None
            self.clients[name], frame = state.receive(frames)
        self.sent[step][name] = frame
        return frame

    def collect(self, step: Step, without: Collection[str] = ()) -> None:
        """Every expected silo but `without` answers, and the coordinator receives it."""
        for name in self.server.expected:
            if name not in without:
                self.server.receive(self.respond(step, name))

    def advance(self, step: Step, without: Collection[str] = ()) -> None:
        self.collect(step, without)
        result = self.server.close()
        if step == Step.UNMASK:
            self.published = result
        else:
            self.server = result

    def run(self, until: Step = Step.UNMASK, lost: Mapping[Step, Collection[str]] | None = None) -> Session:
        """Advance through `until`, silos in `lost[step]` failing before they send that step."""
        gone: set[str] = set()
        for step in STEPS:
            gone |= set((lost or {}).get(step, ()))
            self.advance(step, gone)
            if step == until:
                break
        return self


def refused(session: Session, name: str, frames: tuple[Frame, ...], match: str, peer: str = "") -> ProtocolViolation:
    """The silo refuses, and its session is dead: not even the honest request is answered any more.

    What it says about a silo convinces anybody, alone and in its abort; about the coordinator nothing is judged.
    """
    honest = session.server.outgoing[name]
    state = session.clients[name]
    with pytest.raises(ProtocolViolation, match=match) as caught:
        state.receive(frames)
    assert caught.value.peer == peer
    with pytest.raises(MisuseError, match="dead"):
        state.receive(honest)
    assert verdict(session, caught.value.evidence).guilty == peer
    last_word = state.abort(caught.value.reason, peer, caught.value.evidence)
    assert (last_word.attachment == caught.value.evidence) or not peer
    assert verdict(session, last_word).guilty == peer
    return caught.value


def verdict(session: Session, exhibit: Frame | bytes) -> Verdict:
    """What a third party says who knows R0 and the roster and nothing else."""
    return judge(exhibit, session.announce.body, session.federation.members)


def frames_in(evidence: bytes) -> list[Frame]:
    """The frames that evidence holds."""
    exhibit = decode_exhibit(evidence)
    if isinstance(exhibit, Loose):
        return list(exhibit.frames)
    values = [getattr(exhibit, name) for name in exhibit.__slots__]
    return [value for value in values if isinstance(value, Frame)]


def without(frames: tuple[Frame, ...], *names: str) -> tuple[Frame, ...]:
    return tuple(frame for frame in frames if frame.sender not in names)


def swap(frames: tuple[Frame, ...], new: Frame) -> tuple[Frame, ...]:
    return tuple(new if frame.sender == new.sender else frame for frame in frames)


def of(frames: tuple[Frame, ...], name: str) -> Frame:
    return next(frame for frame in frames if frame.sender == name)


def rejected(session: Session, frame: Frame, match: str, *, evidence: tuple[Frame, ...] = ()) -> None:
    """The coordinator does not count the frame; evidence, if any, convicts the sender and holds these frames."""
    missing = session.server.missing
    with pytest.raises(Rejected, match=match) as caught:
        session.server.receive(frame)
    assert caught.value.peer == frame.sender
    if evidence:
        assert verdict(session, caught.value.evidence).guilty == frame.sender
        held = frames_in(caught.value.evidence)
        assert all(item.without_attachment() in held for item in evidence)
    else:
        assert caught.value.evidence == b""
    assert session.server.missing == missing


def at(federation: Federation, step: Step, **lost: Any) -> Session:
    """A session in which `step` is being collected and every honest silo is about to send it."""
    session = federation.start()
    if step != Step.KEYS:
        session.run(STEPS[STEPS.index(step) - 1], **lost)
    return session
