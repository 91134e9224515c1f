"""The asyncio side of the coordinator: one worker thread for the engine, one queue for each control stream.

Everything durable happens in the worker thread, so a slow disk or a large sum never stalls keepalives or queries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from aggregator.engine import Engine
from aggregator.events import Detached, Event, FromSilo, Send
from aggregator.limits import RateLimit
from feddrm.contract.errors import MalformedError, NotAuthorisedError, UnreachableError
from feddrm.contract.messages import Chunk, CoordinatorEvent, Ready, SiloEvent, UploadReceipt

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_EVENT_SECONDS: Final = 20.0
_QUEUE: Final = 1000
_LONGEST_WAIT: Final = 3600.0


class Stream:
    """What is on its way to one silo. `failure` ends the stream with an error, None without."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[CoordinatorEvent | None] = asyncio.Queue()
        self._failure: BaseException | None = None

    def put(self, event: CoordinatorEvent) -> None:
        """Queue an event; a silo that does not read is cut off, and gets everything again when it comes back."""
        if self._queue.qsize() >= _QUEUE:
            self.close(UnreachableError("The silo does not read its control stream."))
        else:
            self._queue.put_nowait(event)

    def close(self, failure: BaseException | None = None) -> None:
        """End the stream after what is queued already."""
        self._failure = self._failure or failure
        self._queue.put_nowait(None)

    async def events(self) -> AsyncGenerator[CoordinatorEvent, None]:
        """What to send, until the stream is closed."""
        while (event := await self._queue.get()) is not None:
            yield event
        if self._failure is not None:
            raise self._failure


class Hub:
    """The engine behind control streams and uploads. Used from one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._order = asyncio.Lock()
        self._streams: dict[str, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._events = RateLimit(rate=50, burst=500, what="events")
        self._chunks = RateLimit(rate=500, burst=5000, what="chunks")
        self.failed = asyncio.Event()

    def start(self) -> None:
        """Begin to watch deadlines."""
        self._spawn(self._watch())

    def close_streams(self) -> None:
        """End all control streams; silos connect again when a coordinator is there."""
        for stream in list(self._streams.values()):
            stream.close()

    async def stop(self) -> None:
        """Finish what the worker is doing. The engine's state is on disk already."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._worker.shutdown(wait=True)

    async def run(self, work: Callable[[Engine], T]) -> T:
        """Run something on the engine in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, self._engine)

    async def submit(self, event: Event) -> None:
        """Make an event durable, act on it and queue what is to be sent.

        Raises:
            FeddrmError: an operator's order is refused.
        """
        await self._act(lambda engine: engine.submit(event))

    async def _act(self, work: Callable[[Engine], tuple[Send, ...]]) -> None:
        # The lock keeps what two events lead to in the order of the events, also on the way out.
        async with self._order:
            try:
                sends = await self.run(work)
            finally:
                if self._engine.failed:
                    self.failed.set()
            for send in sends:
                stream = self._streams.get(send.silo)
                if stream is not None:
                    stream.put(send.event)
            self._changed.set()

    async def attend(self, silo: str, events: AsyncIterator[SiloEvent]) -> AsyncGenerator[CoordinatorEvent, None]:
        """One control stream: what the silo sends comes in as `events`, what it gets goes out.

        Raises:
            MalformedError: the first event is not Ready, or an event is malformed.
            BusyError: it sends events too fast.
        """
        first = await _first(events)
        if not isinstance(first, Ready):
            raise MalformedError("A control stream starts with Ready.")
        stream = Stream()
        older = self._streams.get(silo)
        self._streams[silo] = stream
        if older is not None:
            # Whoever holds the silo's key holds its stream; the newest wins, so that a dead one never blocks.
            older.close()
            await self.submit(Detached(silo))
        reader = asyncio.create_task(self._read(silo, stream, first, events))
        reader.add_done_callback(lambda task: stream.close(None if task.cancelled() else task.exception()))
        try:
            async with contextlib.aclosing(stream.events()) as outgoing:
                async for event in outgoing:
                    yield event
        finally:
            reader.cancel()
            if self._streams.get(silo) is stream:
                del self._streams[silo]
                self._spawn(self.submit(Detached(silo)))

    async def _read(self, silo: str, stream: Stream, first: Ready, events: AsyncIterator[SiloEvent]) -> None:
        await self.submit(FromSilo(silo, first))
        async for event in events:
            self._events.charge(silo, 1, time.monotonic())
            if self._streams.get(silo) is not stream:
                break
            await self.submit(FromSilo(silo, event))

    async def upload(self, silo: str, chunks: AsyncIterator[Chunk]) -> UploadReceipt:
        """Take chunks of a masked input; says how much is held, durably.

        Raises:
            NotAuthorisedError: no masked input is expected of this silo now.
            MalformedError: a chunk does not fit.
        """
        blob, size = b"", 0
        try:
            async for chunk in chunks:
                self._chunks.charge(silo, 1, time.monotonic())
                blob, size = chunk.blob, chunk.size
                if await self.run(lambda engine, chunk=chunk: _add(engine, silo, chunk)):  # type: ignore[misc]
                    break
        finally:
            if blob:
                await self.run(lambda engine: engine.store.uploads.sync(silo, blob))
        if not blob:
            raise MalformedError("An upload without a chunk.")
        return await self.run(lambda engine: engine.store.uploads.held(silo, blob, size))

    async def upload_status(self, silo: str, blob: bytes) -> UploadReceipt:
        """How much of a masked input is held. Errors as `upload`."""
        return await self.run(lambda engine: engine.store.uploads.held(silo, blob, _expected(engine, silo)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("A background task failed", exc_info=task.exception())

    async def _watch(self) -> None:
        while True:
            self._changed.clear()
            wait = await self.run(lambda engine: engine.wait_ms())
            if wait is not None and wait <= 0:
                await self._act(lambda engine: engine.tick())
                continue
            # One millisecond more than asked: clocks of event loop and wall do not tick together.
            seconds = _LONGEST_WAIT if wait is None else min(_LONGEST_WAIT, wait / 1000 + 0.001)
            # Not wait_for, which in Python 3.11 swallows a cancellation that meets the event (bpo-37658).
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()


def _expected(engine: Engine, silo: str) -> int:
    size = engine.coordinator.upload_size(silo)
    if size is None:
        raise NotAuthorisedError(f"No masked input is expected of {silo} now.")
    return size


def _add(engine: Engine, silo: str, chunk: Chunk) -> bool:
    return engine.store.uploads.add(silo, chunk, _expected(engine, silo))


async def _first(events: AsyncIterator[T]) -> T:
    try:
        async with asyncio.timeout(_FIRST_EVENT_SECONDS):
            return await anext(events)
    except (StopAsyncIteration, TimeoutError) as error:
        raise MalformedError("A stream without a first event.") from error
