"""The asyncio side of the coordinator: uploads that never end, and events that are made durable together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from coordinator_harness import World

from aggregator import eventlog, transfers
from aggregator.events import Detached, FromSilo, JobStopped, Stamp
from aggregator.hub import Hub
from feddrm.contract.chunks import iter_chunks
from feddrm.contract.errors import FeddrmError, InputError, NotAuthorisedError, UnreachableError
from feddrm.contract.messages import Chunk, Ready, SiloEvent
from feddrm.contract.names import SiloId
from feddrm.transport.status import BusyError
from secagg.wire import Step


def at_masked(world: World) -> int:
    """Run until masked inputs are due; returns their size."""
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    size = world.engine.coordinator.upload_size("site-1")
    assert size is not None
    return size


def counted_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each write to the coordinator's log holds, from now on."""
    writes: list[int] = []
    append = world.engine.store.append

    def counted(entries: Sequence[tuple[Stamp, str, bytes]], *, synced: bool) -> tuple[int, ...]:
        writes.append(len(entries))
        return append(entries, synced=synced)

    monkeypatch.setattr(world.engine.store, "append", counted)
    return writes


async def stalled(*chunks: Chunk) -> AsyncIterator[Chunk]:
    for chunk in chunks:
        yield chunk
    await asyncio.sleep(3600)


def test_an_upload_that_never_ends_is_ended_and_what_came_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "_CHUNK_SECONDS", 0.2)
    data = bytes(at_masked(world))
    first = next(iter_chunks(data, size=3))

    async def scenario() -> None:
        hub = Hub(world.engine)
        with pytest.raises(UnreachableError, match="Nothing came"):
            await hub.upload("site-1", stalled(first))
        receipt = await hub.upload_status("site-1", first.blob)
        assert (receipt.held, receipt.complete) == (3, False)
        await hub.stop()

    asyncio.run(scenario())


def test_a_drip_of_bytes_ends_with_the_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "_CHECK_SECONDS", 0.0)
    data = bytes(at_masked(world))

    async def drip() -> AsyncIterator[Chunk]:
        for number, chunk in enumerate(iter_chunks(data, size=1)):
            if number == 3:
                world.engine.submit(JobStopped(world.job.hash, "over"))
            yield chunk

    async def scenario() -> None:
        hub = Hub(world.engine)
        with pytest.raises(NotAuthorisedError):
            await hub.upload("site-1", drip())
        await hub.stop()

    asyncio.run(scenario())


def test_one_silo_holds_few_uploads_open_and_nobody_elses(world: World) -> None:
    data = bytes(at_masked(world))
    first = next(iter_chunks(data, size=3))

    async def scenario() -> None:
        hub = Hub(world.engine)
        open_ones = [asyncio.create_task(hub.upload("site-1", stalled(first))) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await hub.upload("site-1", stalled(first))
        receipt = await hub.upload("site-2", whole(data))
        assert receipt.complete
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        receipt = await hub.upload("site-1", whole(data))
        assert receipt.complete
        await hub.stop()

    asyncio.run(scenario())


async def whole(data: bytes) -> AsyncIterator[Chunk]:
    for chunk in iter_chunks(data):
        yield chunk


def test_events_that_come_together_are_one_write_in_their_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    at_masked(world)
    store, writes = world.engine.store, counted_writes(world, monkeypatch)
    before = max((logged.seq for logged in store.events(0)), default=0)
    silos = [f"site-{1 + index % 5}" for index in range(60)]

    async def scenario() -> list[Any]:
        hub = Hub(world.engine)
        events = [FromSilo(silo, world.silos[silo].ready()) for silo in silos]
        orders = [JobStopped(bytes(32), "no such job")]
        results = await asyncio.gather(
            *(hub.submit(event) for event in (*events[:30], *orders, *events[30:])), return_exceptions=True
        )
        await hub.stop()
        return results

    results = asyncio.run(scenario())
    # The refused order harms nobody else's event, and is not written.
    assert [index for index, result in enumerate(results) if result is not None] == [30]
    assert isinstance(results[30], InputError)
    assert sum(writes) == 60
    assert len(writes) <= 4
    logged = [event.body[1 : 1 + event.body[0]].decode() for event in store.events(before)]
    assert logged == silos


def test_whoever_is_cancelled_takes_nobody_along(world: World) -> None:
    at_masked(world)

    async def scenario() -> None:
        hub = Hub(world.engine)
        events = [FromSilo("site-1", world.silos["site-1"].ready()) for _ in range(20)]
        tasks = [asyncio.create_task(hub.submit(event)) for event in events]
        await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None] * 19
        await hub.stop()

    asyncio.run(scenario())


def test_a_disk_that_takes_no_events_refuses_them_and_goes_on_afterwards(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real limit of SQLite's own on the size of the database."""
    at_masked(world)
    store = world.engine.store
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count={pages}")
    silo = world.silos["site-1"]

    async def scenario() -> None:
        hub = Hub(world.engine)

        async def fill() -> None:
            for _ in range(1000):
                await hub.submit(FromSilo("site-1", silo.ready()))

        with pytest.raises(FeddrmError, match="cannot be written"):
            await fill()
        assert not world.engine.failed
        store._database.execute("PRAGMA max_page_count=1000000")
        await hub.submit(FromSilo("site-1", silo.ready()))
        await hub.stop()

    asyncio.run(scenario())
    world.run(lambda: len(world.job.outcomes) == 1)


def test_a_silo_whose_word_the_disk_does_not_take_hears_of_it_at_once(world: World) -> None:
    """Not with its next word: it might wait for an answer and say nothing more."""
    at_masked(world)
    database = world.engine.store._database
    database.execute(f"PRAGMA max_page_count={database.execute('PRAGMA page_count').fetchone()[0]}")
    ready = world.silos["site-1"].ready()

    async def says_much_and_waits() -> AsyncIterator[SiloEvent]:
        for _ in range(400):
            yield ready
        await asyncio.sleep(3600)

    async def scenario() -> None:
        hub = Hub(world.engine)
        with pytest.raises(BusyError, match="cannot be written"):
            async for _ in hub.attend("site-1", says_much_and_waits()):
                pass
        assert not world.engine.failed
        await hub.stop()

    asyncio.run(asyncio.wait_for(scenario(), 300))
    database.execute("PRAGMA max_page_count=1000000")
    world.run(lambda: len(world.job.outcomes) == 1)


def test_what_a_silo_says_in_one_breath_keeps_its_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    at_masked(world)
    store, writes = world.engine.store, counted_writes(world, monkeypatch)
    before = max((logged.seq for logged in store.events(0)), default=0)
    ready = world.silos["site-1"].ready()

    async def says_much() -> AsyncIterator[SiloEvent]:
        for size in range(40):
            yield replace(ready, witnessed=((SiloId("site-2"), size),))

    async def scenario() -> None:
        hub = Hub(world.engine)
        async for _ in hub.attend("site-1", says_much()):
            pass
        await hub.submit(Detached("site-1"))
        await hub.stop()

    asyncio.run(scenario())
    logged = [eventlog.decode(event.kind, event.body) for event in store.events(before)]
    sizes = [e.event.witnessed[0][1] for e in logged if isinstance(e, FromSilo) and isinstance(e.event, Ready)]
    assert sizes == list(range(40))
    assert len(writes) < 40
