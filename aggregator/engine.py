"""The shell around the state machine: makes events durable, hands them in, carries out what comes out.

Used by one thread at a time. `submit` is the only way in; what it returns has already happened on disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator import checkpoint, eventlog
from aggregator.blobs import MODELS, SUMS
from aggregator.coordinator import Coordinator
from aggregator.events import (
    Detached,
    Effect,
    Event,
    FromSilo,
    Journal,
    PublishRelease,
    Restarted,
    RosterChanged,
    Send,
    Stamp,
    StoreBlob,
    Ticked,
)
from aggregator.job import Room, model_bytes
from aggregator.noise import LOOK_BYTES
from aggregator.phases import Gathering
from aggregator.publishing import Publishing
from aggregator.router import Serving
from aggregator.status import status_of
from aggregator.store import Line, Store
from feddrm.contract.errors import FeddrmError, InputError
from feddrm.contract.messages import SiloFrame
from feddrm.contract.operator_messages import Status
from feddrm.contract.signed import Signed
from secagg.bodies import Masked
from secagg.errors import WireError
from secagg.wire import Step

# A restart replays what came after the checkpoint: so many events, or so many bytes of them, in a second or less.
_EVENTS_BETWEEN_CHECKPOINTS: Final = 300
_BYTES_BETWEEN_CHECKPOINTS: Final = 4 << 20
_LONGEST_WITHOUT_CHECKPOINT: Final = 1000
# What no operator waits for: that such an event happened need not survive what nobody was told of.
_UNANSWERED: Final = (FromSilo, Detached, Restarted, Ticked)


@dataclass(frozen=True, slots=True)
class _Held:
    """An event that was acted on and is not in the log yet, and what is to be carried out once it is."""

    stamp: Stamp
    kind: str
    body: bytes = field(repr=False)
    effects: tuple[Effect, ...]


class StoppedError(FeddrmError):
    """The coordinator's process must be started again."""


class Engine:
    """A coordinator with its store. `clock` gives milliseconds since the epoch."""

    def __init__(
        self, store: Store, coordinator: Coordinator, entropy: Callable[[int], bytes], clock: Callable[[], int]
    ) -> None:
        self.store: Final = store
        self.coordinator = coordinator
        self._entropy: Final = entropy
        self._clock: Final = clock
        self._milestone = coordinator.milestone()
        self._events = 0
        self._bytes = 0
        self._sequence = 0
        self._held: list[_Held] = []
        self._publishing = Publishing(store, coordinator)
        self.failed = False

    @classmethod
    def open(
        cls,
        store: Store,
        *,
        federation: str,
        operator: bytes,
        signer: Ed25519PrivateKey,
        roster: Signed,
        entropy: Callable[[int], bytes],
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> Self:
        """Restore the state that the store holds, replay what came after it, and note the restart.

        Args:
            roster: the roster of the server's directory; a newer one than the state's is taken over.

        Raises:
            VerificationError: the state is damaged.
        """
        saved = store.latest_checkpoint()
        if saved is None:
            first = Coordinator(federation=federation, operator=operator, signer=signer, roster=roster)
            engine = cls(store, first, entropy, clock)
            # The state that the log's events apply to; without it a replay would start from another roster.
            store.checkpoint(0, checkpoint.encode(first))
        else:
            engine = cls(
                store,
                checkpoint.decode(saved[1], federation=federation, operator=operator, signer=signer, blobs=store.blobs),
                entropy,
                clock,
            )
            engine._sequence = saved[0]
        lines: list[Line] = []
        for logged in store.events(engine._sequence):
            event = engine._attach(eventlog.decode(logged.kind, logged.body))
            engine._carry_out(logged.seq, logged.stamp, engine.coordinator.handle(event, logged.stamp), lines)
            engine._bytes += len(logged.body)
        store.settle(engine._sequence, lines, synced=True)
        engine.submit(Restarted())
        if roster.body != engine.coordinator.signed_roster.body:
            # An older one in the directory loses: the state holds what was published since.
            with contextlib.suppress(InputError):
                engine.submit(RosterChanged(roster))
        if engine.serving is None and engine.coordinator.releases.current:
            engine._publishing.serve(engine.coordinator.releases.current)
        return engine

    def absorb(self, event: Event) -> bool:
        """Take a frame that leaves its step open, in memory only; False for any other event, which `submit` takes.

        Nobody is told anything of it, so it need not be on disk before the next event that is: they are logged by one
        write. A kill in between makes it a message that never came, and silos repeat what was not answered. It costs no
        write and no large computation, so that it may be called where nothing may block.

        Raises:
            StoppedError: as `submit`.
        """
        now = self._clock()
        if not isinstance(event, FromSilo) or self._uploaded(event) or not self.coordinator.stays_open(event, now):
            return False
        self._refuse_failed()
        stamp = Stamp(now, self._entropy(32))
        kind, body = eventlog.encode(event)
        self.failed = True
        self._held.append(_Held(stamp, kind, body, self.coordinator.handle(event, stamp)))
        self.failed = False
        return True

    @property
    def owing(self) -> bool:
        """Whether what was absorbed led to something that is to be carried out: `submit_all` of nothing does."""
        return any(held.effects for held in self._held)

    def submit(self, event: Event) -> tuple[Send, ...]:
        """Make an event durable, act on it, and return what is to be sent.

        Raises:
            FeddrmError: an operator's order is refused; nothing was changed.
            StoppedError: an earlier event failed half-way.
        """
        return self.submit_all((event,))

    def submit_all(self, events: Sequence[Event]) -> tuple[Send, ...]:
        """As `submit`, for events in this order, all logged by one write.

        They survive a kill at once. They are synced before this returns if anything is to be sent, or if one is an
        operator's: of any other, of which nobody was told anything, the loss of power makes a message that never came,
        and silos repeat what was not answered.

        Raises:
            FeddrmError: as `submit`. So an order of an operator, which may be refused, must come alone.
        """
        self._refuse_failed()
        now = self._clock()
        for event in events:
            self.coordinator.admit(event, now)
        stamps = [Stamp(now, self._entropy(32)) for _ in events]
        entries = [(held.stamp, held.kind, held.body) for held in self._held]
        entries += [(stamp, *eventlog.encode(event)) for stamp, event in zip(stamps, events, strict=True)]
        answered = not all(isinstance(event, _UNANSWERED) for event in events)
        numbers = self.store.append(entries, synced=answered)
        self._bytes += sum(len(body) for _, _, body in entries)
        # A bug or a full disk between here and the end leaves a state that is neither old nor new: no event may build
        # on it. What is on disk is sound, so the process must end and start again from there.
        self.failed = True
        sends: list[Send] = []
        lines: list[Line] = []
        absorbed, self._held = self._held, []
        for sequence, held in zip(numbers, absorbed, strict=False):
            sends += self._carry_out(sequence, held.stamp, held.effects, lines)
        for sequence, stamp, event in zip(numbers[len(absorbed) :], stamps, events, strict=True):
            effects = self.coordinator.handle(self._attach(event), stamp)
            sends += self._carry_out(sequence, stamp, effects, lines)
        self.store.settle(self._sequence, lines, synced=bool(sends))
        self._checkpoint()
        self.failed = False
        return tuple(sends)

    def tick(self) -> tuple[Send, ...]:
        """Let a deadline that has passed take effect."""
        due = self.coordinator.due_ms()
        return self.submit(Ticked()) if due is not None and self._clock() >= due else ()

    def wait_ms(self) -> int | None:
        """How long until `tick` has something to do."""
        due = self.coordinator.due_ms()
        return None if due is None else max(0, due - self._clock())

    @property
    def serving(self) -> Serving | None:
        """The release in service."""
        return self._publishing.serving

    def status(self, capacity: dict[str, int]) -> Status:
        """What the operator sees."""
        room = Room(Stamp(self._clock(), b""), self.coordinator.signer, self.coordinator.presences)
        return replace(status_of(self.coordinator, room, capacity), noise=self._publishing.noise_found(LOOK_BYTES))

    def _refuse_failed(self) -> None:
        if self.failed:
            raise StoppedError("The coordinator stopped after an internal error; its log has the detail.")

    @staticmethod
    def _uploaded(event: FromSilo) -> bool:
        """Whether an event is a masked input whose bytes were uploaded before."""
        return (
            isinstance(event.event, SiloFrame)
            and event.event.frame.step == Step.MASKED
            and not event.event.frame.attachment
        )

    def _attach(self, event: Event) -> Event:
        """Give a masked input the bytes that its sender uploaded before, unless they came with it. One without either
        stays as it is, and the session rejects it by its hash."""
        if not isinstance(event, FromSilo) or not isinstance(event.event, SiloFrame) or not self._uploaded(event):
            return event
        frame = event.event.frame
        try:
            data = self.store.uploads.get(event.silo, Masked.decode(frame.body).vector)
        except (WireError, InputError):
            return event
        return FromSilo(event.silo, SiloFrame(replace(frame, attachment=data)))

    def _carry_out(
        self, sequence: int, stamp: Stamp, effects: tuple[Effect, ...], lines: list[Line]
    ) -> tuple[Send, ...]:
        self._sequence = sequence
        self._events += 1
        sends = []
        for place, effect in enumerate(effects):
            match effect:
                case Journal(text):
                    lines.append((sequence, place, stamp.now_ms, text))
                case StoreBlob(kind, data) if kind == SUMS:
                    # A replay makes it again, so it need not be durable before the next checkpoint.
                    self.store.blobs.put_soon(kind, data)
                case StoreBlob(kind, data):
                    self.store.blobs.put(kind, data)
                case PublishRelease(release):
                    self._publishing.serve(release)
                case Send():
                    sends.append(effect)
        return tuple(sends)

    def _checkpoint(self) -> None:
        milestone = self.coordinator.milestone()
        if milestone is None:
            return
        changed, self._milestone = milestone != self._milestone, milestone
        if changed:
            # A sum a round while it is fresh, so that the release does not have to read all of them at once.
            self._publishing.noise_found(LOOK_BYTES)
        if not (changed and self._worth_while()) and self._events < _LONGEST_WITHOUT_CHECKPOINT:
            return
        job = self.coordinator.job
        if job is not None and not self.store.blobs.has(MODELS, job.blob):
            self.store.blobs.put(MODELS, model_bytes(job))
        self.store.blobs.sync()
        self.store.checkpoint(self._sequence, checkpoint.encode(self.coordinator))
        self._events = self._bytes = 0
        # Only now does no event refer to them any more.
        self.store.uploads.clear()
        self.store.blobs.keep_only(MODELS, checkpoint.blobs_of(self.coordinator))

    def _worth_while(self) -> bool:
        """Whether to write a checkpoint at this milestone: small rounds that follow at once share one."""
        job = self.coordinator.job
        if job is None or not isinstance(job.phase, Gathering) or self._events >= _EVENTS_BETWEEN_CHECKPOINTS:
            return True
        return self._bytes >= _BYTES_BETWEEN_CHECKPOINTS or not self.store.uploads.empty()
