"""The asyncio side of the coordinator: one queue for each control stream, events in their order to the engine.

Everything durable happens in worker threads (aggregator.transfers), so a slow disk or a large sum never stalls
keepalives or queries. Events that come while the engine is busy are made durable together: one write to the disk for
all of them. Frames after which the engine would do nothing but wait for more go to it without a change of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aggregator.engine import Engine
from aggregator.events import Detached, Event, FromSilo, Send
from aggregator.limits import RateLimit
from aggregator.outgoing import Stream, act
from aggregator.transfers import Transfers
from feddrm.contract.errors import MalformedError
from feddrm.contract.messages import Ready, SiloEvent
from feddrm.transport.status import BusyError

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_EVENT_SECONDS: Final = 20.0
_LONGEST_WAIT: Final = 3600.0
_BATCH: Final = 256
_IN_ONE_BREATH: Final = 4
_RETRY_SECONDS: Final = 1.0
# Events that are never refused (Coordinator.admit), so that they may share one write.
_FACTS: Final = (FromSilo, Detached)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An event that the engine has not seen yet; `done` when it is durable, acted on and its messages are queued."""

    event: Event
    done: asyncio.Future[None]


class Hub(Transfers):
    """The engine behind control streams. Used from one event loop."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._order = asyncio.Lock()
        self._waiting: list[_Waiting] = []
        self._draining = False
        self._streams: dict[str, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._events = RateLimit(rate=50, burst=500, what="events")
        self.failed = asyncio.Event()
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin to watch deadlines."""
        self._arm(0)

    def close_streams(self) -> None:
        """End all control streams; silos connect again when a coordinator is there."""
        for stream in list(self._streams.values()):
            stream.close()

    async def stop(self) -> None:
        """Finish what the workers are doing. What the engine was told to carry out is on disk; frames in memory that
        left their step open are messages that never came."""
        self._stopping = True
        self._arm(None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.end_threads()

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
        except Exception as error:
            self._note_failure(error)
            raise
        finally:
            self._using.release()
        if owing:
            self._spawn(self._deliver(lambda engine: engine.submit_all(())))
        return absorbed

    def _note_failure(self, error: Exception) -> None:
        if self._engine.failed:
            self.failure = self.failure or error
            self.failed.set()

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
                acted = await self.run(lambda engine: act(engine, work(engine)))
            except Exception as error:
                # Only what the worker raised: at a stop, who waits is cancelled while the worker is half-way and sound.
                self._note_failure(error)
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


async def _first(events: AsyncIterator[T]) -> T:
    try:
        async with asyncio.timeout(_FIRST_EVENT_SECONDS):
            return await anext(events)
    except (StopAsyncIteration, TimeoutError) as error:
        raise MalformedError("A stream without a first event.") from error
