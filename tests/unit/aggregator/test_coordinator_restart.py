"""A coordinator that is killed at any instant goes on where it was: its state is a function of its stored events."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from coordinator_harness import DAY_MS, START_MS, Identities, World, entropy_of, make_plan

from aggregator.engine import StoppedError
from aggregator.events import Detached, Effect, Event, JobStarted, JobStopped, Stamp
from aggregator.store import Store
from feddrm.contract.errors import InputError, VerificationError
from secagg.wire import Step


def test_a_restart_replays_the_session_that_was_open(world: World) -> None:
    """The same announcement, the same nonce, the same sid: silos answer with the frames they sent before."""
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    before = world.job.phase.session
    received = before.state.missing
    world.restart_coordinator()
    after = world.job.phase.session
    assert after is not before
    assert (after.frame, after.state.session, after.state.missing) == (before.frame, before.state.session, received)
    assert after.outbox == before.outbox
    world.run()
    assert world.sums() == [31, 31]
    assert all(silo.contributions == {1: 1, 2: 1} for silo in world.silos.values())


def test_nothing_builds_on_an_event_that_failed_half_way(world: World) -> None:
    world.run(lambda: world.phase == "Running")
    handle = world.engine.coordinator.handle

    def buggy(event: Event, stamp: Stamp) -> tuple[Effect, ...]:
        handle(event, stamp)
        raise LookupError("a bug")

    world.engine.coordinator.handle = buggy  # type: ignore[method-assign]
    with pytest.raises(LookupError):
        world.submit(Detached("site-1"))
    world.engine.coordinator.handle = handle  # type: ignore[method-assign]
    count = len(list(world.engine.store.events(0)))
    with pytest.raises(StoppedError):
        world.submit(Detached("site-2"))
    assert len(list(world.engine.store.events(0))) == count
    world.restart_coordinator()
    world.run()
    assert world.sums() == [31, 31]


def test_a_damaged_model_is_not_taken_up(world: World) -> None:
    world.run()
    blobs = list((world.directory / "blobs" / "models").iterdir())
    assert len(blobs) == 1, "old models are removed"
    blobs[0].write_bytes(blobs[0].read_bytes()[:-8] + bytes(8))
    world.engine.store.close()
    with pytest.raises(VerificationError, match="damaged"):
        world.open()


def test_masked_inputs_do_not_outlive_their_session(world: World) -> None:
    world.run()
    assert not [path for path in (world.directory / "uploads").rglob("*") if path.is_file()]
    assert len(list((world.directory / "blobs" / "sums").iterdir())) == 2


def test_a_job_that_was_stopped_stays_stopped(world: World) -> None:
    world.run(lambda: world.phase == "Running")
    world.submit(JobStopped(world.plan.hash, "wrong plan"))
    world.run()
    world.restart_coordinator()
    world.run()
    assert (world.status().state, world.status().detail) == ("stopped", "stopped by the operator: wrong plan")
    assert all(not silo.ended[-1].completed for silo in world.silos.values())
    with pytest.raises(InputError, match="started before"):
        world.start()
    other = world.identities.sign(make_plan(world.identities.names, name="second"))
    world.submit(JobStarted(other.signed))
    world.plan = other
    world.run()
    assert world.status().state == "release ready"
    world.check()


@pytest.mark.parametrize("seed", range(12))
def test_random_kills_cuts_and_restarts(tmp_path: Path, identities: Identities, seed: int) -> None:
    """Whatever happens, every published sum is that of its survivors, once each, and all models agree in the end."""
    chance = random.Random(seed)
    world = World(tmp_path / "server", identities=identities, training__rounds=4)
    calm = False

    def weather(way: str, silo: str, event: Any) -> bool:
        if calm or chance.random() > 0.04:
            return True
        trouble = chance.choice(("kill", "cut", "restart"))
        if trouble == "kill":
            world.kill(silo)
        elif trouble == "cut":
            world.disconnect(silo)
        else:
            world.restart_coordinator()
            return False
        if chance.random() < 0.7:
            world.connect(silo)
        return False

    world.filter = weather
    world.connect()
    world.start()
    for _ in range(40):
        for _ in range(chance.randrange(1, 60)):
            world.step()
        if world.down and chance.random() < 0.5:
            world.connect(chance.choice(sorted(world.down)))
    calm = True
    world.connect(*sorted(world.down))
    world.run()
    status = world.status()
    assert status.state in ("release ready", "failed"), status
    assert len(world.job.outcomes) == 4 or status.state == "failed"
    world.check()


def test_the_store_keeps_order_and_counts(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    draw = entropy_of("store")
    stamps = [Stamp(START_MS + i, draw(32)) for i in range(5)]
    entries = [(stamp, "ticked", bytes((i,))) for i, stamp in enumerate(stamps)]
    numbers = (*store.append(entries[:1]), *store.append(entries[1:]))
    assert numbers == tuple(sorted(set(numbers)))
    assert [(e.stamp, e.body) for e in store.events(numbers[1])] == [(s, bytes((i,))) for i, s in enumerate(stamps)][2:]
    store.checkpoint(numbers[3], b"state")
    assert store.latest_checkpoint() == (numbers[3], b"state")
    assert [e.seq for e in store.events(0)] == [numbers[4]]
    store.close()
    again = Store.open(tmp_path)
    # Sequence numbers never repeat, or a journal line could be taken for another event's.
    assert again.append([(stamps[0], "ticked", b"")])[0] > numbers[4]
    day = START_MS // DAY_MS
    assert again.charge_queries("desk", day, 7, 10)
    assert not again.charge_queries("desk", day, 4, 10)
    assert again.charge_queries("desk", day, 3, 10)
    assert not again.charge_queries("desk", day, 1, 10)
    assert again.charge_queries("desk", day + 1, 10, 10)
    assert not again.charge_queries("other", day, 11, 10)
    again.close()
