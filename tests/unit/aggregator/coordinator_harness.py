"""A federation in one process: the real coordinator with its real store, small silos, and the network between them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator_identities import DAY_MS, START_MS, Identities, entropy_of, make_plan
from coordinator_mini_silo import MiniSilo, Upload

from aggregator.blobs import SUMS
from aggregator.engine import Engine
from aggregator.events import Detached, FromSilo, JobStarted, Send
from aggregator.store import Store
from feddrm.contract import operator_messages as o
from feddrm.contract.chunks import iter_chunks
from feddrm.method.update import model_hash
from secagg.vector import decode_sum
from secagg.wire import Frame


class World:
    """Coordinator, silos, the network between them, and a clock that jumps to the next deadline when all is quiet."""

    def __init__(self, directory: Path, count: int = 5, identities: Identities | None = None, **plan: Any) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.identities = identities or Identities(tuple(f"site-{i}" for i in range(1, count + 1)))
        self.plan = self.identities.sign(make_plan(self.identities.names, **plan))
        self.now = START_MS
        self.sent: list[tuple[str, Any]] = []
        self.received: list[tuple[str, Any]] = []
        self.to_silo: deque[tuple[str, Any]] = deque()
        self.to_coordinator: deque[tuple[str, Any]] = deque()
        self.down: set[str] = set()
        self.filter: Callable[[str, str, Any], bool] = lambda _way, _silo, _event: True
        self.boots = 0
        self.engine = self.open()
        self.silos = {
            name: MiniSilo(name, index, self.identities, lambda blob: self.engine.store.blobs.get(SUMS, blob))
            for index, name in enumerate(self.identities.names)
        }

    def open(self) -> Engine:
        self.boots += 1
        return Engine.open(
            Store.open(self.directory),
            federation="retina",
            operator=self.identities.operator.public_key().public_bytes_raw(),
            signer=self.identities.round_key,
            roster=self.identities.signed_roster,
            entropy=entropy_of("coordinator", self.boots, os.fspath(self.directory.name)),
            clock=lambda: self.now,
        )

    def restart_coordinator(self) -> None:
        """Kill and start again: everything on its way is lost, every silo connects anew."""
        self.engine.store.close()
        self.engine = self.open()
        self.to_silo.clear()
        self.to_coordinator.clear()
        for name in self.silos:
            if name not in self.down:
                self.connect(name)

    def submit(self, event: Any) -> None:
        for send in self.engine.submit(event):
            self._send(send)

    def _send(self, send: Send) -> None:
        self.sent.append((send.silo, send.event))
        self.to_silo.append((send.silo, send.event))

    def connect(self, *names: str) -> None:
        for name in names or tuple(self.silos):
            self.down.discard(name)
            self.to_coordinator.extend((name, event) for event in self.silos[name].connected())

    def disconnect(self, name: str) -> None:
        """Cut the stream; what is on its way is lost, the process lives."""
        self.down.add(name)
        self.to_silo = deque((n, e) for n, e in self.to_silo if n != name)
        self.to_coordinator = deque((n, e) for n, e in self.to_coordinator if n != name)
        self.submit(Detached(name))

    def kill(self, name: str) -> None:
        self.disconnect(name)
        self.silos[name].restart()

    def crash(self, name: str) -> None:
        """Kill the process; another one is there at once."""
        self.kill(name)
        self.connect(name)

    def start(self) -> None:
        self.submit(JobStarted(self.plan.signed))

    def step(self) -> bool:
        """Deliver one message, or let the next deadline pass; False when nothing can happen any more."""
        if self.to_silo:
            name, event = self.to_silo.popleft()
            if name not in self.down and self.filter("down", name, event) and name not in self.down:
                self.to_coordinator.extend((name, answer) for answer in self.silos[name].handle(event))
            return True
        if self.to_coordinator:
            name, event = self.to_coordinator.popleft()
            if self.filter("up", name, event) and name not in self.down:
                self.received.append((name, event))
                self.take(name, event)
            return True
        due = self.engine.coordinator.due_ms()
        if due is None:
            return False
        self.now = max(self.now, due)
        for send in self.engine.tick():
            self._send(send)
        return True

    def take(self, name: str, event: Any) -> None:
        if isinstance(event, Upload):
            size = self.engine.coordinator.upload_size(name)
            if size is not None:
                for chunk in iter_chunks(event.data):
                    self.engine.store.uploads.add(name, chunk, size)
            return
        heard = FromSilo(name, event)
        # As aggregator.hub does.
        if not self.engine.absorb(heard):
            self.submit(heard)
        elif self.engine.owing:
            for send in self.engine.submit_all(()):
                self._send(send)

    def run(self, until: Callable[[], bool] = lambda: False, limit: int = 5000) -> None:
        for _ in range(limit):
            if until() or not self.step():
                return
        raise AssertionError("the federation does not come to rest")

    @property
    def job(self) -> Any:
        return self.engine.coordinator.job

    @property
    def phase(self) -> str:
        return type(self.job.phase).__name__

    def status(self) -> o.Status:
        return self.engine.status({})

    def sums(self) -> list[int]:
        """The first entry of every published sum: which silos are in it, as bits."""
        found = []
        for outcome in self.job.outcomes:
            if outcome.lost is None:
                total, _, _ = decode_sum(self.engine.store.blobs.get(SUMS, outcome.sum), self.job.layout.shared_size, 0)
                assert len(set(total.tolist())) == 1
                found.append(int(total[0]))
        return found

    def check(self) -> None:
        """All silos hold the coordinator's model; every sum is that of its survivors; nobody masked without right."""
        for summary, outcome in zip(self.job.history, self.job.outcomes, strict=True):
            if outcome.lost is None:
                bits = sum(1 << self.silos[name].index for name in summary.survivors)
                total, _, _ = decode_sum(self.engine.store.blobs.get(SUMS, outcome.sum), self.job.layout.shared_size, 0)
                assert set(total.tolist()) == {bits}, summary
        for name, silo in self.silos.items():
            if name not in self.down and silo.job is not None:
                assert silo.round == len(self.job.outcomes), name
                assert model_hash(silo.models[silo.round]) == self.job.models[-1], name


def unsigned(frame: Frame) -> Frame:
    return replace(frame, signature=bytes(64))


__all__ = ["DAY_MS", "START_MS", "Identities", "MiniSilo", "Upload", "World", "entropy_of", "make_plan", "unsigned"]
