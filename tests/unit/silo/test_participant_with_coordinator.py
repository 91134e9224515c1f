"""The participant against the coordinator's own state machine, in one process, under random faults.

Silo i adds 2**i to every coordinate, so that any update that is counted twice or left out shows in the sum.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from silo_harness import FEDERATION, NAMES, NOW, Desk, House, Trial

from aggregator.coordinator import Coordinator
from aggregator.events import Detached, Event, FromSilo, JobStarted, Send, Stamp, StoreBlob, Ticked
from feddrm.contract.messages import AckEvent, ReleaseSignature, SiloFrame
from feddrm.contract.rounds import Ack
from feddrm.method.update import apply, model_hash
from privacy.leaves import Release, Reserve
from secagg.bodies import Masked
from secagg.vector import decode_sum
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
                from feddrm.contract.chunks import blob_hash

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


def check(world: World) -> None:
    """Sums are those of the survivors, once each; everybody who is up to date has the coordinator's model."""
    job = world.job
    plan = world.trial.plan
    from feddrm.method.layout import initial_model, layout_of

    layout = layout_of(plan)
    model = initial_model(layout, world.trial.plan_hash)
    for number, outcome in enumerate(job.outcomes, start=1):
        if outcome.lost is not None:
            continue
        ack = Ack.model_validate_json(outcome.acks[0].body)
        words, _, _ = decode_sum(world.trial.sums[outcome.sum], layout.shared_size, 0)
        assert len(set(words.tolist())) == 1
        total = int(words[0])
        assert total < 1 << len(NAMES)
        assert total.bit_count() == ack.count
        model = apply(model, words, ack.count, 20, plan.training.server_learning_rate)
        assert model_hash(model) == ack.model
        for index, name in enumerate(NAMES):
            leaves = [record.leaf for record in world.houses[name].ledger.leaves()]
            charged = {leaf.round for leaf in leaves if isinstance(leaf, Reserve)}
            released = {leaf.round for leaf in leaves if isinstance(leaf, Release)}
            # Whoever is in a sum has charged it, and nobody claims a release that it never charged.
            assert not total >> index & 1 or number in charged
            assert released <= charged
    for house in world.houses.values():
        assert all(house.trained.count(number) <= 1 for number in house.trained)


def simulate(make_desk: Callable[..., Desk], seed: int, faults: float) -> World:
    desk = make_desk(rounds=3)
    world = World(desk.trial, desk.houses, random.Random(seed))
    for name in NAMES:
        world.connect(name)
    world.submit(JobStarted(world.trial.signed_plan.signed))
    left = 12 if faults else 0
    for _ in range(20_000):
        if left and world.random.random() < faults:
            left -= 1
            name = world.random.choice(NAMES)
            world.random.choice((world.disconnect, world.crash))(name)
        absent = [name for name in NAMES if name not in world.connected]
        if absent and (world.random.random() < 0.1 or not world.pending()):
            world.connect(world.random.choice(absent))
            continue
        if not world.step():
            break
        if world.job.ended or (len(world.job.outcomes) == world.trial.plan.training.rounds and not world.pending()):
            break
    return world


def test_a_whole_job_without_faults(make_desk: Callable[..., Desk]) -> None:
    world = simulate(make_desk, 1, 0.0)
    check(world)
    assert [outcome.lost for outcome in world.job.outcomes] == [None] * 3
    for house in world.houses.values():
        assert house.state.last_release() is not None
        assert house.trained == [1, 2, 3]
        assert {type(e) for e in house.sent} <= {AckEvent, ReleaseSignature}


@pytest.mark.parametrize("seed", range(24))
def test_random_faults_never_count_an_update_twice(make_desk: Callable[..., Desk], seed: int) -> None:
    world = simulate(make_desk, seed, 0.02)
    check(world)
    assert len(world.job.outcomes) == 3
    for name in NAMES:
        if name not in world.connected:
            world.connect(name)
    while world.pending():
        world.step()
    models = {house.state.job(world.trial.plan_hash) for house in world.houses.values()}
    assert all(job is not None and job.round == 3 for job in models)
    last = {model_hash(np.asarray(house.state.model(world.trial.plan_hash, 3))) for house in world.houses.values()}
    assert len(last) == 1
