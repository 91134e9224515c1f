"""A whole round in one process: silos and a coordinator with durable and volatile memory, and a network that delivers,
loses, duplicates and reorders. Every decision comes from one seed, so every run can be repeated.

The actors do what the caller of secagg must do: write down what must be durable before they send, enter an announcement
once, mask the same vector again only with an abort certificate.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.bodies import Unmask
from secagg.client import abort_certificate_valid, abort_frame, join
from secagg.errors import ProtocolViolation, Rejected
from secagg.server import Published, open_session
from secagg.session import Announcement
from secagg.wire import Frame, Step

Frames = tuple[Frame, ...]
ATTEMPTS = 4


@dataclass(frozen=True)
class Message:
    to: str
    kind: str
    announced: bytes
    frames: Frames
    certificate: Frames = ()


@dataclass
class Disk:
    """What a silo writes before it sends."""

    attempt: int = 0
    entered: dict[bytes, bool] = field(default_factory=dict)  # announcement -> an R5 share may have left
    masked: bytes = b""


class Silo:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.disk = Disk()
        self.crash()

    def crash(self) -> None:
        self.announced = b""
        self.states: dict[Step, Any] = {}
        self.latest: Any = None
        self.answers: dict[tuple[str, Frames], Frame] = {}

    def entropy(self, size: int) -> bytes:
        return self.world.random.randbytes(size)

    def handle(self, message: Message) -> Frame | None:
        if message.kind == "ABORT":
            return self.abort(message.announced)
        known = self.answers.get((message.kind, message.frames))
        if known is not None:
            return known
        if message.kind == "ANNOUNCE":
            frame = self.enter(message)
        elif message.announced == self.announced:
            frame = self.step(message)
        else:
            frame = None
        if frame is not None:
            self.answers[message.kind, message.frames] = frame
        return frame

    def enter(self, message: Message) -> Frame | None:
        announce = message.frames[0]
        announcement = Announcement.decode(announce.body)
        if announcement.attempt <= self.disk.attempt:
            return None
        if self.disk.masked:
            try:
                abort_certificate_valid(message.certificate, announce_body=self.disk.masked, members=self.world.members)
            except ProtocolViolation:
                return None
        self.crash()
        self.disk.attempt = announcement.attempt
        self.disk.entered[message.announced] = False
        self.announced = message.announced
        self.latest, frame = join(
            announce,
            server_key=self.world.round_key.public_key().public_bytes_raw(),
            members=self.world.members,
            me=self.name,
            signer=self.world.identity[self.name],
            entropy=self.entropy,
            ledger_proof=b"proof",
        )
        self.states[Step.KEYS] = self.latest
        return frame

    def step(self, message: Message) -> Frame | None:
        step = Step[message.kind]
        state = self.states.get(step)
        if state is None:
            return None
        frame: Frame | None = None
        if step == Step.KEYS:
            self.latest, frame = state.receive(message.frames).share()
        elif step == Step.SHARES:
            ready = state.receive(message.frames)
            self.disk.masked = self.world.bodies[message.announced]
            self.latest, frame = ready.mask(*self.world.words(self.name))
        elif step == Step.PUBLISH:
            verified = self.latest.receive(message.frames[0])
            self.world.check_verified(self.name, message.announced, verified)
            return None
        else:
            if step == Step.CONSISTENCY:
                self.disk.entered[message.announced] = True
            self.latest, frame = state.receive(message.frames)
        following = Step(step + 1) if step < Step.CONSISTENCY else Step.PUBLISH
        self.states[following] = self.latest
        assert frame is not None
        if step == Step.CONSISTENCY:
            self.world.check_released(self.name, message.announced, frame)
        return frame

    def abort(self, announced: bytes) -> Frame | None:
        if announced not in self.disk.entered:
            return None
        if announced == self.announced:
            frame: Frame = self.latest.abort("asked to")
            self.crash()
            return frame
        return abort_frame(
            announcement=announced,
            me=self.name,
            signer=self.world.identity[self.name],
            released=self.disk.entered[announced],
            reason="restarted",
        )


class Coordinator:
    def __init__(self, world: World) -> None:
        self.world = world
        self.attempt = 0
        self.server: Any = None
        self.announced = b""
        self.aborts: dict[str, Frame] = {}
        self.aborting = self.done = False
        self.start(())

    def start(self, certificate: Frames) -> None:
        world = self.world
        self.attempt += 1
        least = max(world.announcement.threshold, world.announcement.minimum_cohort)
        count = world.random.randint(least, len(world.names)) if self.attempt > 1 else len(world.names)
        chosen = set(world.random.sample(world.names, count))
        cohort = tuple(name for name in world.names if name in chosen)
        nonce = world.random.randbytes(32)
        announcement = replace(world.announcement, attempt=self.attempt, cohort=cohort, nonce=nonce)
        self.server, announce = open_session(announcement, world.round_key, world.members)
        self.announced = hashlib.sha256(announce.body).digest()
        world.bodies[self.announced] = announce.body
        self.aborts, self.aborting = {}, False
        for name in cohort:
            world.send(Message(name, "ANNOUNCE", self.announced, (announce,), certificate))

    def receive(self, frame: Frame) -> None:
        if self.done:
            return
        if frame.step == Step.ABORT:
            if self.aborting:
                self.aborts[frame.sender] = frame
            return
        if self.server is None or frame.step != self.server.step:
            return
        try:
            self.server.receive(frame)
        except Rejected as error:
            if error.evidence:
                raise AssertionError("an honest silo was blamed") from error
        if not self.server.missing and self.world.random.random() < 0.9:
            self.close()

    def deadline(self) -> None:
        if self.done:
            return
        if self.aborting:
            self.conclude()
        elif self.server is not None and self.server.ready:
            self.close()
        elif not self.world.network or self.world.random.random() < 0.3:
            self.stop()

    def close(self) -> None:
        step = self.server.step
        result = self.server.close()
        if isinstance(result, Published):
            self.done = True
            self.world.check_published(self.announced, result)
            for name in result.survivors:
                self.world.send(Message(name, "PUBLISH", self.announced, (result.frame,)))
            return
        self.server = result
        for name, frames in result.outgoing.items():
            self.world.send(Message(name, step.name, self.announced, frames))

    def stop(self) -> None:
        """Give up the session, or forget it in a crash: what is durable is its announcement."""
        if not self.done:
            self.server, self.aborting = None, True
            for name in Announcement.decode(self.world.bodies[self.announced]).cohort:
                self.world.send(Message(name, "ABORT", self.announced, ()))

    def conclude(self) -> None:
        certificate = tuple(self.aborts.values())
        try:
            abort_certificate_valid(
                certificate, announce_body=self.world.bodies[self.announced], members=self.world.members
            )
        except ProtocolViolation:
            if self.world.random.random() < 0.5:
                self.stop()
            else:
                self.done = True
                self.world.outcomes["lost"] += 1
            return
        if self.attempt == ATTEMPTS:
            self.done = True
            self.world.outcomes["gave up"] += 1
            return
        self.world.outcomes["retried"] += 1
        self.start(certificate)


class World:
    """One round. Invariants are checked as things happen; `outcomes` counts how runs went."""

    def __init__(self, seed: int, outcomes: Counter[str]) -> None:
        self.random = Random(seed)
        self.outcomes = outcomes
        size = self.random.randint(3, 7)
        lowest = (size + 3) // 2
        self.names = tuple(f"silo-{index}" for index in range(size))
        self.identity = {n: Ed25519PrivateKey.from_private_bytes(self.random.randbytes(32)) for n in self.names}
        self.members = {n: key.public_key().public_bytes_raw() for n, key in self.identity.items()}
        self.round_key = Ed25519PrivateKey.from_private_bytes(self.random.randbytes(32))
        blank = b"h" * 32
        self.announcement = Announcement(
            federation="fed", plan=blank, stage=1, round=1, attempt=1, cohort=self.names, roster=blank, model=blank,
            layout=blank, words32=3, words64=1, value_bound=1 << 10,
            threshold=max(lowest, self.random.randint(0, size)), minimum_cohort=3, colluders=1,
            parameters=blank, deadline_ms=1, previous=blank, nonce=blank,
        )  # fmt: skip
        self.bodies: dict[bytes, bytes] = {}
        self.network: list[Message | Frame] = []
        self.released: dict[bytes, set[str]] = defaultdict(set)
        self.sums: dict[bytes, Published] = {}
        self.silos = {name: Silo(self, name) for name in self.names}
        self.coordinator = Coordinator(self)

    def words(self, name: str) -> tuple[Any, Any]:
        value = 1 << self.names.index(name)
        return np.array([value, -value, 0], dtype=np.int64), np.array([value << 30], dtype=np.int64)

    def send(self, item: Message | Frame | None) -> None:
        if item is not None:
            self.network.append(item)

    def run(self, operations: int) -> None:
        choices: list[tuple[Callable[[], None], int]] = [
            (self.deliver, 1000),
            (self.lose, 12),
            (self.duplicate, 80),
            (self.crash_silo, 5),
            (self.coordinator.deadline, 14),
            (self.crash_coordinator, 3),
        ]
        actions, weights = zip(*choices, strict=True)
        for _ in range(operations):
            if self.coordinator.done and not self.network:
                return
            if not self.network:
                self.coordinator.deadline()
            else:
                self.random.choices(actions, weights)[0]()

    def _pick(self) -> int:
        return self.random.randrange(len(self.network))

    def deliver(self) -> None:
        item = self.network.pop(self._pick())
        if isinstance(item, Frame):
            self.coordinator.receive(item)
        else:
            self.send(self.silos[item.to].handle(item))

    def lose(self) -> None:
        self.network.pop(self._pick())

    def duplicate(self) -> None:
        self.network.append(self.network[self._pick()])

    def crash_silo(self) -> None:
        self.silos[self.random.choice(self.names)].crash()

    def crash_coordinator(self) -> None:
        self.coordinator.stop()

    # Invariants.

    def check_released(self, name: str, announced: bytes, frame: Frame) -> None:
        """In no two sessions of one round do t silos release shares: the same vectors would be opened twice."""
        assert Unmask.decode(frame.body).sender == name
        self.released[announced].add(name)
        opened = [a for a, names in self.released.items() if len(names) >= self.announcement.threshold]
        assert len(opened) <= 1

    def check_published(self, announced: bytes, published: Published) -> None:
        assert not self.sums, "two sums of one round"
        self.sums[announced] = published
        expected = sum(1 << self.names.index(name) for name in published.survivors)
        assert published.words32.tolist() == [expected, -expected, 0]
        assert published.words64.tolist() == [expected << 30]
        announcement = Announcement.decode(self.bodies[announced])
        assert len(published.survivors) >= announcement.quorum
        assert not set(published.opened) & set(published.survivors)
        self.outcomes["published"] += 1
        self.outcomes["published after a retry"] += announcement.attempt > 1
        self.outcomes["published with dropouts"] += bool(published.opened)

    def check_verified(self, name: str, announced: bytes, verified: Any) -> None:
        published = self.sums[announced]
        assert verified.survivors == published.survivors
        assert verified.sum == published.sum
        assert verified.words32.tolist() == published.words32.tolist()
        assert verified.words64.tolist() == published.words64.tolist()
        assert name in published.survivors
        self.outcomes["verified"] += 1
