"""Queries on their way to hospitals and sealed answers on their way back (design section 8).

The coordinator relays ciphertext over streams that silos opened. What it knows of a query is who asks whom, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Final

from feddrm.contract.errors import BudgetError, MalformedError, UnreachableError
from feddrm.contract.query_messages import Answer, AskReply, Capacity, SealedQuery, ServeEvent
from feddrm.transport.status import BusyError, SiloRefusedError, UnknownQuerierError

ANSWER_SECONDS: Final = 30.0
_FIRST_EVENT_SECONDS: Final = 20.0
WAITING_PER_SLOT: Final = 8
"""Queries that may wait for each one that a silo takes at once; beyond, the silo is full and routes skip it."""


@dataclass(slots=True)
class Relay:
    """One silo's open relay stream. `pending` maps the hash of a sealed query to its answer to come."""

    capacity: Capacity
    outgoing: asyncio.Queue[SealedQuery | None] = field(default_factory=asyncio.Queue)
    pending: dict[bytes, asyncio.Future[Answer]] = field(default_factory=dict)
    slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.capacity.capacity)

    @property
    def full(self) -> bool:
        """Whether no more queries may wait for this silo."""
        return len(self.pending) >= self.capacity.capacity * WAITING_PER_SLOT

    def close(self) -> None:
        """End the stream; who waits for an answer is told."""
        self.outgoing.put_nowait(None)
        for future in self.pending.values():
            if not future.done():
                future.set_exception(UnreachableError("The silo's relay stream ended."))
                future.exception()  # retrieved here, as whoever waited may be gone


class Relays:
    """All relay streams. Used from one event loop."""

    def __init__(self, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._relays: dict[str, Relay] = {}
        self._answer_seconds = answer_seconds

    def capacity(self) -> dict[str, int]:
        """How many queries each connected silo takes at once."""
        return {name: relay.capacity.capacity for name, relay in self._relays.items()}

    def eligible(self, release: bytes) -> frozenset[str]:
        """Silos that serve this release and are neither draining nor full."""
        return frozenset(
            name for name, relay in self._relays.items() if relay.capacity.release == release and not relay.full
        )

    def close(self) -> None:
        """End all streams."""
        for relay in list(self._relays.values()):
            relay.close()

    async def serve(self, silo: str, events: AsyncIterator[ServeEvent]) -> AsyncGenerator[SealedQuery, None]:
        """One relay stream. A second one of the same silo replaces the first.

        Raises:
            MalformedError: the first event is not its capacity.
        """
        try:
            async with asyncio.timeout(_FIRST_EVENT_SECONDS):
                first = await anext(events)
        except (StopAsyncIteration, TimeoutError) as error:
            raise MalformedError("A relay stream without a first event.") from error
        if not isinstance(first, Capacity):
            raise MalformedError("A relay stream starts with the silo's capacity.")
        relay = Relay(first)
        older = self._relays.get(silo)
        self._relays[silo] = relay
        if older is not None:
            older.close()
        reader = asyncio.create_task(self._read(silo, relay, events))
        reader.add_done_callback(lambda _: relay.close())
        try:
            while (query := await relay.outgoing.get()) is not None:
                yield query
            if reader.done() and not reader.cancelled() and (failure := reader.exception()) is not None:
                raise failure
        finally:
            reader.cancel()
            if self._relays.get(silo) is relay:
                del self._relays[silo]
            relay.close()

    async def _read(self, silo: str, relay: Relay, events: AsyncIterator[ServeEvent]) -> None:
        async for event in events:
            if isinstance(event, Capacity):
                raise MalformedError(f"{silo} sent its capacity twice; a new one needs a new stream.")
            future = relay.pending.get(event.query)
            if future is not None and not future.done():
                future.set_result(event)

    async def ask(self, silo: str, query: SealedQuery) -> AskReply:
        """Carry a sealed query to a silo and its sealed answer back. The same query again waits for the same answer.

        Raises:
            UnreachableError: the silo is not there, or does not answer in time.
            BusyError: too many wait for it already, or it is busy.
            BudgetError: the querier's budget at this silo is used up.
            UnknownQuerierError: the silo does not list the querier.
        SiloRefusedError: it refuses the query.
        """
        relay = self._relays.get(silo)
        if relay is None:
            raise UnreachableError(f"{silo} does not serve queries now.")
        future = relay.pending.get(query.query)
        if future is not None:
            return _reply(silo, await self._wait(silo, asyncio.shield(future)))
        if relay.full:
            raise BusyError(f"Too many queries wait for {silo}.")
        future = asyncio.get_running_loop().create_future()
        relay.pending[query.query] = future
        try:
            return _reply(silo, await self._wait(silo, self._carry(relay, query, future)))
        finally:
            relay.pending.pop(query.query, None)
            if not future.done():
                future.cancel()

    @staticmethod
    async def _carry(relay: Relay, query: SealedQuery, future: asyncio.Future[Answer]) -> Answer:
        async with relay.slots:
            if not future.done():
                relay.outgoing.put_nowait(query)
            return await asyncio.shield(future)

    async def _wait(self, silo: str, answer: Awaitable[Answer]) -> Answer:
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await answer
        except TimeoutError as error:
            raise UnreachableError(f"{silo} did not answer in time.") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The querier that asked first gave up; the silo's answer to this one will not come any more.
            raise BusyError(f"The query to {silo} was given up; ask again.") from None


def _reply(silo: str, answer: Answer) -> AskReply:
    match answer.refusal:
        case "":
            return AskReply(answer.answer)
        case "busy":
            raise BusyError(f"{silo} is busy.")
        case "budget":
            raise BudgetError(f"The querier's budget at {silo} is used up.")
        case "unknown-querier":
            raise UnknownQuerierError(f"{silo} does not list the querier in the roster that it approved.")
        case _:
            raise SiloRefusedError(f"{silo} refuses the query.")
