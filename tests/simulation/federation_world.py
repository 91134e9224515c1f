"""A whole job in one process: real participants and the real coordinator, each on its own SQLite files, with streams
that break, processes that die before or after they wrote, and a clock that jumps to the next deadline.

Silo i adds 2**i to every coordinate, so that an update that is counted twice or left out shows in the sum. The schedule
comes from one seed; keys and nonces do not, and nothing depends on them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

for folder in ("unit/silo", "unit/aggregator"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / folder))

from silo_harness import FEDERATION, NAMES, NOW, House, Trial  # noqa: E402

from aggregator.blobs import SUMS  # noqa: E402
from aggregator.engine import Engine  # noqa: E402
from aggregator.events import Detached, Event, FromSilo, JobStarted, Send  # noqa: E402
from aggregator.store import Store  # noqa: E402
from feddrm.contract.chunks import iter_chunks  # noqa: E402
from feddrm.contract.errors import InputError  # noqa: E402
from feddrm.contract.messages import SiloFrame  # noqa: E402
from feddrm.contract.rounds import Ack  # noqa: E402
from feddrm.method.layout import initial_model, layout_of  # noqa: E402
from feddrm.method.update import apply, model_hash  # noqa: E402
from privacy.leaves import Release, Reserve  # noqa: E402
from secagg.bodies import Masked  # noqa: E402
from secagg.vector import decode_sum  # noqa: E402
from secagg.wire import Step  # noqa: E402
from silo.effects import Connected  # noqa: E402

UNIT = 2.0**-20


class Sums(dict[bytes, bytes]):
    """What silos fetch: the coordinator's own store."""

    def __init__(self, world: FederationWorld) -> None:
        super().__init__()
        self.world = world

    def get(self, blob: bytes, default: Any = None) -> Any:
        try:
            return self.world.engine.store.blobs.get(SUMS, blob)
        except InputError:
            return default


class FederationWorld:
    """`faults` is how likely each step something breaks, until `limit` things have."""

    def __init__(
        self, directory: Path, seed: int, outcomes: Counter[str], *, faults: float = 0.0, limit: int = 0
    ) -> None:
        self.random = Random(seed)
        self.outcomes, self.faults, self.left = outcomes, faults, limit
        self.directory = directory
        (directory / "server").mkdir()
        self.now = NOW
        self.rounds = self.random.randint(2, 4)
        self.trial = Trial.make(rounds=self.rounds)
        self.trial.sums = Sums(self)
        self.houses = {name: House(self.trial, name, directory / name, self.trial.policy()) for name in NAMES}
        for index, house in enumerate(self.houses.values()):
            house.contribution = (1 << index) * UNIT
            house.sent.clear()
        self.connected: set[str] = set()
        self.down: dict[str, deque[Any]] = {name: deque() for name in NAMES}
        self.up: dict[str, deque[Any]] = {name: deque() for name in NAMES}
        self.engine = self.open()
        outcomes["worlds"] += 1

    def open(self) -> Engine:
        return Engine.open(
            Store.open(self.directory / "server"),
            federation=FEDERATION,
            operator=self.trial.roster.operator,
            signer=self.trial.round_key,
            roster=self.trial.roster_signed,
            entropy=os.urandom,
            clock=lambda: self.now,
        )

    @property
    def job(self) -> Any:
        return self.engine.coordinator.job

    def phase(self) -> str:
        return type(self.job.phase).__name__ if self.job else "nothing"

    # Streams.

    def submit(self, event: Event) -> None:
        # As aggregator.hub does.
        if not self.engine.absorb(event):
            self.relay(self.engine.submit(event))
        elif self.engine.owing:
            self.relay(self.engine.submit_all(()))

    def relay(self, sends: tuple[Send, ...]) -> None:
        for send in sends:
            if send.silo in self.connected:
                self.down[send.silo].append(send.event)

    def connect(self, name: str) -> None:
        """A stream opens: what was on its way on the last one is gone."""
        self.connected.add(name)
        self.down[name].clear()
        self.up[name].clear()
        self.houses[name].sent.clear()
        self.houses[name].handle(Connected(), self.now)
        self.collect(name)

    def disconnect(self, name: str) -> None:
        if name in self.connected:
            self.connected.discard(name)
            self.down[name].clear()
            self.up[name].clear()
            self.submit(Detached(name))

    def collect(self, name: str) -> None:
        """What a silo sent is on its way; what it wrote before is judged at once."""
        house = self.houses[name]
        sent, house.sent = house.sent, []
        if any(isinstance(event, SiloFrame) and event.frame.step == Step.UNMASK for event in sent):
            self.check_released()
        if name in self.connected:
            self.up[name].extend(sent)

    # What happens.

    def pending(self) -> list[tuple[str, str]]:
        ways = [("down", name) for name in self.connected if self.down[name]]
        return sorted(ways + [("up", name) for name in self.connected if self.up[name]])

    def step(self) -> bool:
        """Deliver one message, or let time pass until the next deadline; False when nothing is left to do."""
        ways = self.pending()
        if not ways:
            due = self.engine.coordinator.due_ms()
            if due is None:
                return False
            self.now = max(self.now, due)
            self.relay(self.engine.tick())
            return True
        way, name = self.random.choice(ways)
        if way == "down":
            self.houses[name].handle(self.down[name].popleft(), self.now)
            self.collect(name)
        else:
            self.deliver_up(name, self.up[name].popleft())
        return True

    def deliver_up(self, name: str, event: Any) -> None:
        if isinstance(event, SiloFrame) and event.frame.step == Step.MASKED:
            data = self.trial.uploads[Masked.decode(event.frame.body).vector]
            size = self.engine.coordinator.upload_size(name)
            if size is not None:
                for chunk in iter_chunks(data):
                    self.engine.store.uploads.add(name, chunk, size)
        self.submit(FromSilo(name, event))

    def trouble(self) -> None:
        """One thing breaks."""
        name = self.random.choice(NAMES)
        kinds: list[Callable[[], None]] = [
            lambda: self.disconnect(name),
            lambda: self.kill_silo(name),
            lambda: self.kill_silo_with_its_answer(name),
            self.kill_coordinator,
            self.kill_coordinator_with_its_answer,
        ]
        self.random.choice(kinds)()

    def kill_silo(self, name: str) -> None:
        """The process dies and another begins, from the files."""
        house = self.houses[name]
        self.outcomes[f"silo killed, {self.phase()}"] += 1
        self.disconnect(name)
        house.restart()

    def kill_silo_with_its_answer(self, name: str) -> None:
        """It handles a message, writes what it must, and dies before anything leaves."""
        if name in self.connected and self.down[name]:
            self.houses[name].handle(self.down[name].popleft(), self.now)
            self.check_released()
            self.outcomes["silo killed with its answer"] += 1
        self.kill_silo(name)

    def kill_coordinator(self) -> None:
        self.outcomes[f"coordinator killed, {self.phase()}"] += 1
        self.engine.store.close()
        for name in sorted(self.connected):
            self.connected.discard(name)
            self.down[name].clear()
            self.up[name].clear()
        self.engine = self.open()

    def kill_coordinator_with_its_answer(self) -> None:
        """It writes an event down, acts on it, and dies before anything leaves."""
        waiting = [name for name in sorted(self.connected) if self.up[name]]
        if waiting:
            name = self.random.choice(waiting)
            event = self.up[name].popleft()
            connected, self.connected = self.connected, set()
            self.deliver_up(name, event)
            self.connected = connected
        self.kill_coordinator()

    def run(self) -> FederationWorld:
        for name in NAMES:
            self.connect(name)
        self.submit(JobStarted(self.trial.signed_plan.signed))
        for _ in range(20_000):
            if self.left and self.random.random() < self.faults:
                self.left -= 1
                self.trouble()
            absent = [name for name in NAMES if name not in self.connected]
            if absent and (self.random.random() < 0.1 or not self.pending()):
                self.connect(self.random.choice(absent))
                continue
            if not self.step() or self.job.ended or (self.finished() and not self.pending()):
                break
        self.settle()
        return self

    def finished(self) -> bool:
        return len(self.job.outcomes) == self.rounds

    def settle(self) -> None:
        """Good weather: everybody connects and catches up."""
        for name in NAMES:
            if name not in self.connected:
                self.connect(name)
        while self.pending():
            self.step()

    def close(self) -> None:
        self.engine.store.close()
        for house in self.houses.values():
            house.die()

    # Invariants.

    def check_released(self) -> None:
        """Of no round may two sessions have t silos that released shares: its updates could be opened in two sums."""
        threshold = self.trial.plan.secure_aggregation.threshold
        for number in range(1, self.rounds + 1):
            released: Counter[bytes] = Counter()
            for house in self.houses.values():
                for entered in house.state.entered(self.trial.plan_hash, 1, number):
                    released[entered.session] += entered.released
            assert sum(count >= threshold for count in released.values()) <= 1, f"round {number} was opened twice"

    def check(self) -> None:
        """Sums are those of the survivors, once each; all have the coordinator's model and charged what they gave."""
        plan, job = self.trial.plan, self.job
        layout = layout_of(plan)
        models = [initial_model(layout, self.trial.plan_hash)]
        for number, outcome in enumerate(job.outcomes, start=1):
            self.outcomes["rounds"] += 1
            if outcome.lost is not None:
                self.outcomes["lost"] += 1
                models.append(models[-1])
                continue
            ack = Ack.model_validate_json(outcome.acks[0].body)
            words, _, _ = decode_sum(self.engine.store.blobs.get(SUMS, outcome.sum), layout.shared_size, 0)
            total = int(words[0])
            assert set(words.tolist()) == {total}
            assert 0 < total < 1 << len(NAMES)
            assert total.bit_count() == ack.count >= plan.secure_aggregation.threshold
            self.outcomes["published"] += 1
            self.outcomes["published without somebody"] += ack.count < len(NAMES)
            bits, rate = plan.secure_aggregation.fraction_bits, plan.training.server_learning_rate
            models.append(apply(models[-1], words, ack.count, bits, rate))
            assert model_hash(models[-1]) == ack.model
            for index, name in enumerate(NAMES):
                leaves = [record.leaf for record in self.houses[name].ledger.leaves()]
                charged = {leaf.round for leaf in leaves if isinstance(leaf, Reserve)}
                assert not total >> index & 1 or number in charged
                assert {leaf.round for leaf in leaves if isinstance(leaf, Release)} <= charged
        for summary in job.history:
            self.outcomes["attempts beyond the first"] += summary.attempt > 1
        for house in self.houses.values():
            assert all(house.trained.count(number) <= 1 for number in house.trained)
            reached = house.state.job(self.trial.plan_hash).round
            # A job that ended with too few rounds tells nobody how its last one went.
            assert reached == len(job.outcomes) or (job.ended and reached < len(job.outcomes))
            untold = job.ended and reached and job.outcomes[reached - 1].lost is not None
            held = np.asarray(house.state.model(self.trial.plan_hash, reached))
            assert untold or model_hash(held) == model_hash(models[reached])
