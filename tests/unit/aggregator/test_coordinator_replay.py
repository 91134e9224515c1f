"""The coordinator's state is a function of its stored events: replayed, read back, and killed at each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coordinator_harness import Identities, World

from aggregator import checkpoint, eventlog
from aggregator.coordinator import Coordinator
from aggregator.events import Detached, Effect, Event, JobStarted, JobStopped, ReleaseOrdered, Stamp
from feddrm.contract import messages as m
from feddrm.contract.errors import VerificationError
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
