"""A coordinator that is killed at any instant goes on where it was: its state is a function of its stored events."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from coordinator_harness import DAY_MS, START_MS, Identities, World, entropy_of, make_plan

from aggregator import checkpoint, eventlog
from aggregator.coordinator import Coordinator
from aggregator.engine import StoppedError
from aggregator.events import Detached, Effect, Event, JobStarted, JobStopped, ReleaseOrdered, Stamp
from aggregator.store import Store
from feddrm.contract import messages as m
from feddrm.contract.errors import InputError, VerificationError
from secagg.wire import Step


class Killed(BaseException):
    """The process is gone."""


def fresh(world: World) -> Coordinator:
    return Coordinator(
        federation="retina",
        operator=world.identities.operator.public_key().public_bytes_raw(),
        signer=world.identities.round_key,
        roster=world.identities.signed_roster,
    )


def record(world: World) -> list[tuple[Event, Stamp, tuple[Effect, ...]]]:
    """All that the running coordinator handles from now on."""
    entries: list[tuple[Event, Stamp, tuple[Effect, ...]]] = []
    coordinator = world.engine.coordinator
    handle = coordinator.handle

    def recording(event: Event, stamp: Stamp) -> tuple[Effect, ...]:
        effects = handle(event, stamp)
        entries.append((event, stamp, effects))
        return effects

    coordinator.handle = recording  # type: ignore[method-assign]
    return entries


def eventful(world: World) -> None:
    """A job with a dropout after R2, a cut, and a certified retry."""
    seen: set[str] = set()

    def fault(way: str, silo: str, event: Any) -> bool:
        shares = isinstance(event, m.StepFrames) and event.step == Step.SHARES
        first, second = len(world.job.outcomes) == 0, len(world.job.outcomes) == 1
        if way == "down" and shares and first and silo == "site-3" and not seen & {silo}:
            seen.add(silo)
            world.kill(silo)
            world.connect(silo)
            return False
        if way == "down" and shares and second and silo in ("site-1", "site-5") and not seen & {silo}:
            seen.add(silo)
            world.kill(silo)
            world.connect(silo)
            return False
        return True

    world.filter = fault


def test_the_log_replays_to_the_same_effects_at_every_index(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities)
    entries = record(world)
    eventful(world)
    world.connect()
    world.start()
    world.run()
    assert [h.attempt for h in world.job.history] == [1, 2]
    again = fresh(world)
    for index, (event, stamp, effects) in enumerate(entries):
        assert again.handle(event, stamp) == effects, f"event {index}: {event}"
    assert checkpoint.encode(again) == checkpoint.encode(world.engine.coordinator)


def test_every_event_survives_its_stored_form(world: World) -> None:
    entries = record(world)
    eventful(world)
    world.run()
    (release,) = world.engine.coordinator.releases.candidates
    world.submit(ReleaseOrdered(release))
    world.submit(Detached("site-1"))
    kinds = set()
    for event, _, _ in entries:
        kind, body = eventlog.encode(event)
        decoded = eventlog.decode(kind, body)
        assert eventlog.encode(decoded) == (kind, body)
        kinds.add(kind)
    for other in (JobStopped(bytes(32), "why: ümlaut"), JobStarted(world.plan.signed)):
        assert eventlog.decode(*eventlog.encode(other)) == other
    assert {"from-silo", "detached", "ticked", "release-ordered"} <= kinds
    with pytest.raises(VerificationError, match="newer version"):
        eventlog.decode("teleported", b"")


@pytest.mark.parametrize("after_effects", [False, True], ids=["before acting", "after acting"])
def test_a_kill_at_every_event_loses_nothing(tmp_path: Path, identities: Identities, after_effects: bool) -> None:
    """One run with a kill at every single event: right after it is durable, or right after its effects."""
    index, finished = 0, False
    while not finished:
        world = World(tmp_path / f"server-{index}", identities=identities, training__rounds=1)
        eventful(world)
        kill_at(world, index, after_effects)
        killed = False

        def guarded(action: Any, *arguments: Any, world: World = world) -> bool:
            try:
                action(*arguments)
            except Killed:
                world.restart_coordinator()
                return True
            return False

        world.connect()
        killed |= guarded(world.start)
        if world.job is None:
            world.start()
        for _ in range(3):
            killed |= guarded(world.run)
        finished = not killed
        assert world.status().state == "release ready", index
        assert world.job.history[0].survivors >= ("site-1",)
        world.check()
        assert all(count <= 2 for silo in world.silos.values() for count in silo.contributions.values())
        world.engine.store.close()
        index += 3 if after_effects else 2
    assert index > 40


def kill_at(world: World, index: int, after_effects: bool) -> None:
    engine = world.engine
    count = 0
    carry_out = engine._carry_out

    def counting(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count - 1 == index and not after_effects:
            raise Killed
        sends = carry_out(*arguments)
        if count - 1 == index:
            raise Killed
        return sends

    engine._carry_out = counting  # type: ignore[assignment, method-assign]


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


def test_checkpoints_are_the_state(world: World) -> None:
    """At every milestone: decode(encode(state)) encodes to the same bytes and does the same from there on."""
    checked = 0
    store = world.engine.store
    save = store.checkpoint

    def checking(sequence: int, state: bytes) -> None:
        nonlocal checked
        save(sequence, state)
        restored = checkpoint.decode(
            state,
            federation="retina",
            operator=world.identities.operator.public_key().public_bytes_raw(),
            signer=world.identities.round_key,
            blobs=store.blobs,
        )
        assert checkpoint.encode(restored) == state
        assert restored.due_ms() == world.engine.coordinator.due_ms()
        assert not list(store.events(0))
        checked += 1

    store.checkpoint = checking  # type: ignore[assignment, method-assign]
    eventful(world)
    world.run()
    (release,) = world.engine.coordinator.releases.candidates
    world.submit(ReleaseOrdered(release))
    assert checked >= 4
    world.restart_coordinator()
    world.run()
    assert world.status().state == "completed"
    assert world.engine.serving is not None


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
