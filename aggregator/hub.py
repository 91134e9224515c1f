"""The asyncio side of the coordinator: one worker thread for the engine, one queue for each control stream.

Everything durable happens in worker threads, so a slow disk or a large sum never stalls keepalives or queries. Events
that come while the engine is busy are made durable together: one write to the disk for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aggregator.engine import Engine
from aggregator.events import Detached, Event, FromSilo, Send
from aggregator.limits import RateLimit
from feddrm.contract import codec
from feddrm.contract.errors import MalformedError, NotAuthorisedError, UnreachableError
from feddrm.contract.messages import Chunk, CoordinatorEvent, Publish, Ready, SiloEvent, StepFrames, UploadReceipt
from feddrm.transport.status import BusyError

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_EVENT_SECONDS: Final = 20.0
_QUEUE: Final = 1000
_LONGEST_WAIT: Final = 3600.0
_BATCH: Final = 256
_IN_ONE_BREATH: Final = 4
_FILE_WORKERS: Final = 8
_UPLOADS_AT_ONCE: Final = 4
_CHUNKS_A_CHECK: Final = 16
_CHECK_SECONDS: Final = 5.0
_CHUNK_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 1.0
# Events that are never refused (Coordinator.admit), so that they may share one write.
_FACTS: Final = (FromSilo, Detached)


class Stream:
    """What is on its way to one silo, as protobuf messages. `failure` ends the stream with an error, None without."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._failure: BaseException | None = None

    def put(self, message: Any) -> None:
        """Queue a message (None ends the stream). A silo that does not read is cut off, and gets everything again when
        it comes back."""
        if self._queue.qsize() >= _QUEUE:
            self.close(UnreachableError("The silo does not read its control stream."))
        else:
            self._queue.put_nowait(message)

    def close(self, failure: BaseException | None = None) -> None:
        """End the stream after what is queued already."""
        self._failure = self._failure or failure
        self._queue.put_nowait(None)

    async def messages(self) -> AsyncGenerator[Any, None]:
        """What to send, until the stream is closed."""
        while (message := await self._queue.get()) is not None:
            yield message
        if self._failure is not None:
            raise self._failure


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An event that the engine has not seen yet; `done` when it is durable, acted on and its messages are queued."""

    event: Event
    done: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _Acted:
    """What acting on events led to: messages for silos in order, and how long until the next deadline (or None)."""

    messages: tuple[tuple[str, Any], ...]
    wait_ms: int | None


class Hub:
    """The engine behind control streams and uploads. Used from one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        # Chunks of several silos are written side by side, and beside what the engine does.
        self._files = ThreadPoolExecutor(max_workers=_FILE_WORKERS, thread_name_prefix="files")
        self._order = asyncio.Lock()
        # Held by whichever thread uses the engine.
        self._using = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._draining = False
        self._streams: dict[str, Stream] = {}
        self._uploading: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._events = RateLimit(rate=50, burst=500, what="events")
        self._chunks = RateLimit(rate=500, burst=5000, what="chunks")
        self.failed = asyncio.Event()

    def start(self) -> None:
        """Begin to watch deadlines."""
        self._arm(0)

    def close_streams(self) -> None:
        """End all control streams; silos connect again when a coordinator is there."""
        for stream in list(self._streams.values()):
            stream.close()

    async def stop(self) -> None:
        """Finish what the workers are doing. The engine's state is on disk already."""
        self._stopping = True
        self._arm(None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._files.shutdown(wait=True)
        self._worker.shutdown(wait=True)

    async def run(self, work: Callable[[Engine], T]) -> T:
        """Run something on the engine in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._alone, work)

    def _alone(self, work: Callable[[Engine], T]) -> T:
        with self._using:
            return work(self._engine)

    async def file(self, work: Callable[[], T]) -> T:
        """Run something that reads or writes files, but not the engine's state, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._files, work)

    async def submit(self, event: Event) -> None:
        """Make an event durable, act on it and queue what is to be sent.

        Raises:
            FeddrmError: an operator's order is refused.
        """
        await self._enqueue(event)

    def _absorb(self, event: Event) -> bool:
        """Hand over a frame that leads to nothing yet, without a change of threads, if the engine is idle."""
        if self._draining or self._waiting or not self._using.acquire(blocking=False):
            return False
        try:
            absorbed = self._engine.absorb(event)
            owing = absorbed and self._engine.owing
        except Exception:
            if self._engine.failed:
                self.failed.set()
            raise
        finally:
            self._using.release()
        if owing:
            self._spawn(self._deliver(lambda engine: engine.submit_all(())))
        return absorbed

    def _enqueue(self, event: Event) -> asyncio.Future[None]:
        waiting = _Waiting(event, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if not self._draining:
            self._draining = True
            self._spawn(self._drain())
        return waiting.done

    async def _drain(self) -> None:
        """Act on all that waits. A task of its own: whoever waits for an event may be cancelled, the others' go on."""
        try:
            while self._waiting:
                batch = self._next()
                events = tuple(waiting.event for waiting in batch)
                problem: Exception | None = None
                try:
                    await self._deliver(lambda engine, events=events: engine.submit_all(events))  # type: ignore[misc]
                except Exception as error:  # noqa: BLE001 - handed to those whose events these are
                    problem = error
                for waiting in batch:
                    if waiting.done.done():
                        continue
                    if problem is None:
                        waiting.done.set_result(None)
                    else:
                        waiting.done.set_exception(problem)
        finally:
            self._draining = False

    def _next(self) -> list[_Waiting]:
        """The events to act on at once: an order, which may be refused, alone, and of others all that wait."""
        for count, waiting in enumerate(self._waiting):
            if not isinstance(waiting.event, _FACTS):
                batch = self._waiting[: max(count, 1)]
                break
        else:
            batch = self._waiting[:_BATCH]
        del self._waiting[: len(batch)]
        return batch

    async def _deliver(self, work: Callable[[Engine], tuple[Send, ...]]) -> None:
        # The lock keeps what events lead to in the order of the events, also on the way out.
        async with self._order:
            try:
                acted = await self.run(lambda engine: _acted(engine, work(engine)))
            except Exception:
                # Only what the worker raised: at a stop, who waits is cancelled while the worker is half-way and sound.
                if self._engine.failed:
                    self.failed.set()
                raise
            for silo, message in acted.messages:
                stream = self._streams.get(silo)
                if stream is not None:
                    stream.put(message)
            self._arm(acted.wait_ms)

    async def attend(self, silo: str, events: AsyncIterator[SiloEvent]) -> AsyncGenerator[Any, None]:
        """One control stream: what the silo sends comes in as `events`, what it gets goes out as protobuf messages.

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
            async with contextlib.aclosing(stream.messages()) as outgoing:
                async for message in outgoing:
                    yield message
        finally:
            reader.cancel()
            if self._streams.get(silo) is stream:
                del self._streams[silo]
                self._spawn(self._detach(silo))

    async def _detach(self, silo: str) -> None:
        while silo not in self._streams:
            try:
                await self.submit(Detached(silo))
            except BusyError as error:
                log.error("%s; trying again", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _read(self, silo: str, stream: Stream, first: Ready, events: AsyncIterator[SiloEvent]) -> None:
        # What a silo says in one breath (an ack, and that it is ready) shares a write to the disk.
        room = asyncio.Semaphore(_IN_ONE_BREATH)

        def settled(done: asyncio.Future[None]) -> None:
            room.release()
            if not done.cancelled() and (problem := done.exception()) is not None:
                stream.close(problem)

        async def enter(event: SiloEvent) -> None:
            heard = FromSilo(silo, event)
            if not self._absorb(heard):
                await room.acquire()
                self._enqueue(heard).add_done_callback(settled)

        await enter(first)
        async for event in events:
            self._events.charge(silo, 1, time.monotonic())
            if self._streams.get(silo) is not stream:
                break
            await enter(event)

    async def upload(self, silo: str, chunks: AsyncIterator[Chunk]) -> UploadReceipt:
        """Take chunks of a masked input; says how much is held, durably.

        Raises:
            NotAuthorisedError: no masked input is expected of this silo now.
            MalformedError: a chunk does not fit.
            UnreachableError: nothing came for too long; what is held stays.
            BusyError: it sends too fast, or over too many streams at once, or the disk is full.
        """
        if self._uploading[silo] >= _UPLOADS_AT_ONCE:
            raise BusyError(f"{silo} uploads over {_UPLOADS_AT_ONCE} streams already.")
        self._uploading[silo] += 1
        try:
            return await self._upload(silo, chunks)
        finally:
            self._uploading[silo] -= 1

    async def _upload(self, silo: str, chunks: AsyncIterator[Chunk]) -> UploadReceipt:
        uploads = self._engine.store.uploads
        last: Chunk | None = None
        size = count = 0
        checked = 0.0
        try:
            while (chunk := await _within(anext(chunks, None), _CHUNK_SECONDS)) is not None:
                self._chunks.charge(silo, 1, time.monotonic())
                if count % _CHUNKS_A_CHECK == 0 or time.monotonic() - checked > _CHECK_SECONDS:
                    size = await self.run(lambda engine: _expected(engine, silo))
                    checked = time.monotonic()
                last, count = chunk, count + 1
                if await self.file(lambda chunk=chunk, size=size: uploads.add(silo, chunk, size)):  # type: ignore[misc]
                    return UploadReceipt(chunk.blob, chunk.size, True)
        finally:
            if last is not None:
                blob = last.blob
                await self.file(lambda: uploads.sync(silo, blob))
        if last is None:
            raise MalformedError("An upload without a chunk.")
        return await self.file(lambda: uploads.held(silo, blob, size))

    async def upload_status(self, silo: str, blob: bytes) -> UploadReceipt:
        """How much of a masked input is held. Errors as `upload`."""
        size = await self.run(lambda engine: _expected(engine, silo))
        return await self.file(lambda: self._engine.store.uploads.held(silo, blob, size))

    async def fetch(self, kind: str, blob: bytes, offset: int) -> AsyncGenerator[Chunk, None]:
        """The chunks of a blob from `offset` on, read one by one as they are sent. Errors as Blobs.chunk."""
        blobs = self._engine.store.blobs
        while (chunk := await self.file(lambda at=offset: blobs.chunk(kind, blob, at))) is not None:  # type: ignore[misc]
            yield chunk
            offset += len(chunk.data)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("A background task failed", exc_info=task.exception())

    def _arm(self, wait_ms: int | None) -> None:
        """Call `tick` when the next deadline has passed, and not at the one before it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait_ms is not None and not self._stopping:
            # One millisecond more than asked: clocks of event loop and wall do not tick together.
            wait = min(_LONGEST_WAIT, wait_ms / 1000) + 0.001
            self._timer = asyncio.get_running_loop().call_later(wait, lambda: self._spawn(self._tick()))

    async def _tick(self) -> None:
        while True:
            try:
                await self._deliver(lambda engine: engine.tick())
            except BusyError as error:
                log.error("%s; trying again", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return


def _acted(engine: Engine, sends: tuple[Send, ...]) -> _Acted:
    """Encode in the engine's thread; frames that many silos get are encoded once."""
    encoded: dict[int, Any] = {}
    messages = []
    for send in sends:
        key = _identity(send.event)
        if key not in encoded:
            try:
                encoded[key] = codec.COORDINATOR_EVENT.to_wire(send.event)
            except ValueError:
                # A bug of ours: that silo's stream ends, and nobody else's.
                log.exception("A message for %s cannot be encoded", send.silo)
                encoded[key] = None
        messages.append((send.silo, encoded[key]))
    return _Acted(tuple(messages), engine.wait_ms())


def _identity(event: CoordinatorEvent) -> int:
    # All steps but R2 send the very same frames to everybody, and there is one sum.
    match event:
        case StepFrames(frames=frames):
            return id(frames)
        case Publish(frame=frame):
            return id(frame)
        case _:
            return id(event)


def _expected(engine: Engine, silo: str) -> int:
    size = engine.coordinator.upload_size(silo)
    if size is None:
        raise NotAuthorisedError(f"No masked input is expected of {silo} now.")
    return size


async def _within(work: Awaitable[T], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise UnreachableError(f"Nothing came for {seconds:.0f} seconds.") from error


async def _first(events: AsyncIterator[T]) -> T:
    try:
        async with asyncio.timeout(_FIRST_EVENT_SECONDS):
            return await anext(events)
    except (StopAsyncIteration, TimeoutError) as error:
        raise MalformedError("A stream without a first event.") from error
