"""Frames that leave their step open are taken in memory: nothing rests on them that a kill could take (design 9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from coordinator_harness import World

from aggregator.events import Detached, FromSilo, JobStopped
from aggregator.hub import Hub
from feddrm.contract.messages import SiloEvent, SiloFrame
from secagg.wire import Step


def logged(world: World) -> int:
    return sum(1 for _ in world.engine.store.events(0))


def waiting(world: World, step: Step) -> list[tuple[str, Any]]:
    """Run until the frames of a step are on their way; returns them, in order."""

    def there() -> bool:
        frames = [event for _, event in world.to_coordinator if isinstance(event, SiloFrame)]
        return sum(event.frame.step == step for event in frames) == len(world.silos)

    world.run(there)
    return list(world.to_coordinator)


def absorb(world: World, frames: list[tuple[str, Any]]) -> None:
    for silo, event in frames:
        assert world.engine.absorb(FromSilo(silo, event))


STEPS = (Step.KEYS, Step.SHARES, Step.CONSISTENCY, Step.UNMASK)


@pytest.mark.parametrize("step", STEPS)
def test_what_is_absorbed_is_logged_before_its_step_closes_and_replays(world: World, step: Step) -> None:
    frames = waiting(world, step)
    before = logged(world)
    absorb(world, frames[:-1])
    assert logged(world) == before, "nothing was closed, so nothing is told and nothing is written"
    silo, event = frames[-1]
    assert not world.engine.absorb(FromSilo(silo, event)), "the last frame closes the step: that is not for a loop"
    assert world.engine.submit(FromSilo(silo, event))
    assert logged(world) == before + len(frames)
    if step == Step.UNMASK:
        assert world.phase == "Acknowledging"
    told = world.job.phase.session.outbox
    world.engine.store.close()
    world.engine = world.open()
    assert world.job.phase.session.outbox == told


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_makes_absorbed_frames_messages_that_never_came(world: World, step: Step) -> None:
    absorb(world, waiting(world, step)[:-1])
    world.restart_coordinator()
    world.run()
    assert [summary.outcome for summary in world.job.history] == ["published"] * world.job.rounds
    world.check()


def test_only_the_frames_that_are_waited_for_are_absorbed(world: World) -> None:
    frames = waiting(world, Step.SHARES)
    (first, event), (second, other) = frames[0], frames[1]
    engine = world.engine
    assert not engine.absorb(FromSilo(first, world.silos[first].ready()))
    assert not engine.absorb(Detached(first))
    assert not engine.absorb(JobStopped(world.job.hash, "enough"))
    assert not engine.absorb(FromSilo("nobody", event))
    assert engine.absorb(FromSilo(first, event))
    assert not engine.absorb(FromSilo(first, event)), "a repeat is no frame that was waited for"
    world.now = world.job.phase.session.deadline_ms
    assert not engine.absorb(FromSilo(second, other)), "after the deadline it closes the step"


@pytest.mark.parametrize("step", [Step.KEYS, Step.SHARES])
def test_frames_of_another_session_are_never_held(world: World, step: Step) -> None:
    """They lead to nothing, so that a silo could fill the memory with them until the step's deadline."""
    (silo, event) = waiting(world, step)[0]
    foreign = replace(event, frame=replace(event.frame, body=bytes(len(event.frame.body)), attachment=bytes(190_000)))
    assert not any(world.engine.absorb(FromSilo(silo, foreign)) for _ in range(20))
    forged = replace(event, frame=replace(event.frame, signature=bytes(64)))
    assert [world.engine.absorb(FromSilo(silo, forged)) for _ in range(20)].count(True) <= 1
    assert len(world.engine._held) <= 1


def test_a_masked_input_that_was_uploaded_is_read_where_reading_may_take_its_time(world: World) -> None:
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    frames: list[tuple[str, Any]] = []
    while not frames:
        world.step()
        frames = [(silo, event) for silo, event in world.to_coordinator if isinstance(event, SiloFrame)]
    (silo, event) = frames[0]
    assert event.frame.step == Step.MASKED
    assert not event.frame.attachment
    assert not world.engine.absorb(FromSilo(silo, event))


def test_an_offence_among_absorbed_frames_reaches_journal_and_evidence(world: World) -> None:
    frames = waiting(world, Step.SHARES)
    (first, event), (second, _) = frames[0], frames[1]
    assert world.engine.absorb(FromSilo(second, event)), "a frame in another silo's name"
    assert world.engine.owing
    world.engine.submit_all(())
    assert not world.engine.owing
    lines = world.engine.store._database.execute("SELECT text FROM journal ORDER BY seq, line").fetchall()
    assert lines[-1][0] == f"{second} sent a frame in the name of {first}"


def test_the_hub_absorbs_and_carries_out_what_an_offence_leads_to(world: World) -> None:
    frames = waiting(world, Step.SHARES)
    (_, event), (second, _) = frames[0], frames[1]
    before = logged(world)

    async def says(*events: SiloEvent) -> AsyncIterator[SiloEvent]:
        for each in events:
            yield each
        await asyncio.sleep(3600)

    async def scenario() -> None:
        hub = Hub(world.engine)
        ready = world.silos[second].ready()

        async def attend() -> None:
            async for _ in hub.attend(second, says(ready, event)):
                pass

        task = asyncio.create_task(attend())
        async with asyncio.timeout(30):
            while second not in world.job.phase.session.offenders:
                await asyncio.sleep(0.01)
            while logged(world) < before + 2:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await hub.stop()

    asyncio.run(scenario())
    assert not world.engine.owing


def test_no_frame_is_absorbed_while_the_engine_is_used_or_events_wait(world: World) -> None:
    """Two threads in one engine would tear its state; a frame that overtakes would change the order of the log."""
    frames = waiting(world, Step.SHARES)
    silo, event = frames[0]

    async def scenario() -> None:
        hub = Hub(world.engine)
        entered, leave = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def long_work(_: Any) -> None:
            loop.call_soon_threadsafe(entered.set)
            asyncio.run_coroutine_threadsafe(leave.wait(), loop).result(30)

        work = asyncio.create_task(hub.run(long_work))
        await entered.wait()
        assert not hub._absorb(FromSilo(silo, event))
        leave.set()
        await work
        assert hub._absorb(FromSilo(silo, event))
        queued = asyncio.create_task(hub.submit(FromSilo(silo, world.silos[silo].ready())))
        await asyncio.sleep(0)
        assert not hub._absorb(FromSilo(*frames[1]))
        await queued
        await hub.stop()

    asyncio.run(scenario())
