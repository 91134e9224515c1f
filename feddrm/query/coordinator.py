"""The querier's calls to the coordinator.

All of them are patient: whoever is busy, or a coordinator that is not there or being restarted, is asked again with
backoff and jitter, and the person is told once what is waited for. The address is from the signed kit: nobody typed it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from feddrm.contract import codec
from feddrm.contract.authority import Address
from feddrm.contract.chunks import ChunkAssembler
from feddrm.contract.errors import MalformedError
from feddrm.contract.home import MemberHome
from feddrm.contract.messages import Fetch, Hello, HelloRequest
from feddrm.contract.names import SiloId
from feddrm.contract.query_messages import Ask, GetRelease, QuerierRelease, RouteRequest, RouteRow
from feddrm.contract.signed import Signed
from feddrm.transport.client import BusyError, DisconnectedError, make_channel, translated
from feddrm.v1 import query_pb2_grpc

T = TypeVar("T")

SOFTWARE: Final = "feddrm-query"
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_CALL_SECONDS: Final = 30.0
_ASK_SECONDS: Final = 120.0
_FETCH_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long somebody busy or away is asked again. `sleep` and `clock` (seconds) are arguments for tests.

    Attributes:
        say: told, once for each sentence, that a coordinator which cannot be reached is asked again.
    """

    seconds: float
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = lambda _: None
    _said: set[str] = field(default_factory=set, repr=False, compare=False)

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, made again after growing, jittered pauses while the other side is busy or away.

        Raises:
            BusyError, DisconnectedError: still so after `seconds`.
        """
        end = self.clock() + self.seconds
        pause = _FIRST_PAUSE
        while True:
            try:
                return await call()
            except (BusyError, DisconnectedError) as error:
                # Jitter of half a pause: many queriers that were turned away together must not return together.
                wait = pause * (1 + secrets.randbelow(1000) / 1000) / 2
                if self.clock() + wait > end:
                    raise
                if isinstance(error, DisconnectedError) and error.message not in self._said:
                    self._said.add(error.message)
                    self.say(f"{error.message} Asking again for up to {self.seconds:g} s.")
                await self.sleep(wait)
                pause = min(2 * pause, _LONGEST_PAUSE)


class Coordinator:
    """The query service, in frozen dataclasses. Errors: see feddrm.transport.status.error_of."""

    def __init__(self, stub: Any, address: Address, patience: Patience) -> None:
        self._stub = stub
        self._address = address
        self._patience = patience

    async def hello(self) -> Hello:
        """The coordinator's clock and newest roster."""
        request = codec.HELLO_REQUEST.to_wire(HelloRequest(SOFTWARE))

        async def call() -> Hello:
            with translated(self._address):
                return codec.HELLO.from_wire(await self._stub.Hello(request, timeout=_CALL_SECONDS))

        return await self._patience.retry(call)

    async def release(self) -> QuerierRelease:
        """The release in service; nothing of it is verified yet."""
        request = codec.GET_RELEASE.to_wire(GetRelease())

        async def call() -> QuerierRelease:
            with translated(self._address):
                return codec.QUERIER_RELEASE.from_wire(await self._stub.GetRelease(request, timeout=_CALL_SECONDS))

        return await self._patience.retry(call)

    async def fetch(self, assembler: ChunkAssembler) -> None:
        """Fetch what is missing of a blob; a cut is resumed where it happened."""

        async def call() -> None:
            request = codec.FETCH.to_wire(Fetch(assembler.blob, assembler.held))
            with translated(self._address):
                async for chunk in self._stub.Fetch(request, timeout=_FETCH_SECONDS):
                    assembler.add(codec.CHUNK.from_wire(chunk))

        await self._patience.retry(call)
        if not assembler.complete:
            raise MalformedError(f"The coordinator at {self._address} sent only a part of the trunk.")

    async def route(self, release: bytes, codes: Sequence[bytes]) -> tuple[RouteRow, ...]:
        """Where each of the coarse embeddings goes; nothing of it is verified yet."""
        request = codec.ROUTE_REQUEST.to_wire(RouteRequest(release, tuple(codes)))

        async def call() -> tuple[RouteRow, ...]:
            with translated(self._address):
                return codec.ROUTE_REPLY.from_wire(await self._stub.Route(request, timeout=_CALL_SECONDS)).rows

        rows = await self._patience.retry(call)
        if len(rows) != len(codes):
            raise MalformedError(f"The coordinator answered {len(codes)} codes with {len(rows)} routes.")
        return rows

    async def ask(self, silo: str, ticket: Signed, sealed: bytes) -> bytes:
        """The sealed answer to a sealed request. Repeats are the very same bytes, so a silo counts them once."""
        request = codec.ASK.to_wire(Ask(SiloId(silo), ticket, sealed))

        async def call() -> bytes:
            with translated(self._address):
                return codec.ASK_REPLY.from_wire(await self._stub.Ask(request, timeout=_ASK_SECONDS)).answer

        return await self._patience.retry(call)


@asynccontextmanager
async def connected(home: MemberHome, patience: Patience) -> AsyncIterator[Coordinator]:
    """The coordinator of a querier's directory, over one channel."""
    async with make_channel(home.address, home.tls) as channel:
        stub: Any = query_pb2_grpc.QueryServiceStub
        yield Coordinator(stub(channel), home.address, patience)
