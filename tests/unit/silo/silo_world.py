"""The coordinator's own state machine and silos' participants in one process, with a network that tests may break."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from silo_harness import FEDERATION, NAMES, NOW, House, Trial

from aggregator.coordinator import Coordinator
from aggregator.events import Detached, Event, FromSilo, JobStarted, Send, Stamp, StoreBlob, Ticked
from feddrm.contract.chunks import blob_hash
from feddrm.contract.messages import SiloFrame
from secagg.bodies import Masked
from secagg.wire import Frame, Step
from silo.effects import Connected

UNIT = 2.0**-20


@dataclass
class World:
    """Streams between one coordinator and its silos; messages of one stream keep their order."""

    trial: Trial
    houses: dict[str, House]
    random: random.Random
    now: int = NOW
    connected: set[str] = field(default_factory=set)
    down: dict[str, deque[Any]] = field(default_factory=dict)
    up: dict[str, deque[Any]] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(
            federation=FEDERATION,
            operator=self.trial.roster.operator,
            signer=self.trial.round_key,
            roster=self.trial.roster_signed,
        )
        for index, house in enumerate(self.houses.values()):
            house.update = None
            house.contribution = (1 << index) * UNIT
            house.sent.clear()

    def submit(self, event: Event) -> None:
        """Give the coordinator an event and carry out its effects."""
        for effect in self.coordinator.handle(event, Stamp(self.now, self.random.randbytes(32))):
            if isinstance(effect, Send) and effect.silo in self.connected:
                self.down[effect.silo].append(effect.event)
            elif isinstance(effect, StoreBlob):
                self.trial.sums[blob_hash(effect.data)] = effect.data

    def connect(self, name: str) -> None:
        """A silo's stream opens: what was on its way is gone."""
        self.connected.add(name)
        self.down[name], self.up[name] = deque(), deque()
        house = self.houses[name]
        house.sent.clear()
        house.handle(Connected(), self.now)
        self.collect(name)

    def disconnect(self, name: str) -> None:
        """A silo's stream breaks."""
        if name in self.connected:
            self.connected.discard(name)
            self.down[name].clear()
            self.up[name].clear()
            self.submit(Detached(name))

    def crash(self, name: str) -> None:
        """A silo's process dies and another begins."""
        self.disconnect(name)
        self.houses[name].restart()

    def collect(self, name: str) -> None:
        """What a silo sent is on its way."""
        house = self.houses[name]
        sent, house.sent = house.sent, []
        if name in self.connected:
            self.up[name].extend(sent)

    def deliver_up(self, name: str) -> None:
        """The next event of a silo arrives."""
        event = self.up[name].popleft()
        if isinstance(event, SiloFrame) and event.frame.step == Step.MASKED:
            frame = event.frame
            data = self.trial.uploads[Masked.decode(frame.body).vector]
            event = SiloFrame(Frame(frame.step, frame.sender, frame.body, frame.signature, data))
        self.submit(FromSilo(name, event))

    def deliver_down(self, name: str) -> None:
        """The next event of the coordinator arrives at a silo."""
        self.houses[name].handle(self.down[name].popleft(), self.now)
        self.collect(name)

    def pending(self) -> list[tuple[str, str]]:
        """Streams on which something is under way."""
        ways = [("down", name) for name in self.connected if self.down[name]]
        return sorted(ways + [("up", name) for name in self.connected if self.up[name]])

    def step(self) -> bool:
        """Deliver one message, or let time pass until the next deadline; False when nothing is left to do."""
        ways = self.pending()
        if ways:
            way, name = self.random.choice(ways)
            (self.deliver_down if way == "down" else self.deliver_up)(name)
            return True
        due = self.coordinator.due_ms()
        if due is None:
            return False
        self.now = max(self.now, due)
        self.submit(Ticked())
        return True

    @property
    def job(self) -> Any:
        """The coordinator's job."""
        return self.coordinator.job

    def run(self, *, faults: float = 0.0, most: int = 12, until: Any = None) -> None:
        """Start the job and play it, with at most `most` broken streams and crashes, to its end or to `until`."""
        for name in NAMES:
            self.connect(name)
        self.submit(JobStarted(self.trial.signed_plan.signed))
        left = most if faults else 0
        for _ in range(50_000):
            if left and self.random.random() < faults:
                left -= 1
                name = self.random.choice(NAMES)
                self.random.choice((self.disconnect, self.crash))(name)
            absent = [name for name in NAMES if name not in self.connected]
            if absent and (self.random.random() < 0.1 or not self.pending()):
                self.connect(self.random.choice(absent))
                continue
            if not self.step():
                break
            if until is not None and until():
                break
            if self.job.ended or (len(self.job.outcomes) == self.job.rounds and not self.pending()):
                break
