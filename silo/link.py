"""The silo's connection: dial-out gRPC over mutual TLS, nothing but transport (design 4, 9 and 10).

No decision is made here. Everything received is decoded by feddrm.contract.codec, which refuses what is malformed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from feddrm.contract import codec
from feddrm.contract.authority import Address
from feddrm.contract.chunks import CHUNK_BYTES, ChunkAssembler, iter_chunks
from feddrm.contract.errors import MalformedError, UnreachableError
from feddrm.contract.identity import Credentials
from feddrm.contract.messages import CoordinatorEvent, Fetch, Hello, HelloRequest, SiloEvent
from feddrm.contract.query_messages import Capacity, SealedQuery, ServeEvent
from feddrm.transport.client import make_channel, translated
from feddrm.v1 import silo_pb2_grpc

T = TypeVar("T")
_SOFTWARE: Final = "feddrm-silo"
_ASK_SECONDS: Final = 30.0
_CHUNK_SECONDS: Final = 60.0
_FETCH_ATTEMPTS: Final = 3
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 30.0


async def _within(work: Awaitable[T], seconds: float, address: Address) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise UnreachableError(f"Nothing came from {address} for {seconds:.0f} seconds.") from error


@dataclass(slots=True)
class Backoff:
    """Waits that double up to a limit, each with full jitter, so that a restarted coordinator is not stormed."""

    wait: float = _FIRST_WAIT

    def next(self) -> float:
        """Seconds to wait now."""
        seconds = random.uniform(self.wait / 2, self.wait)  # noqa: S311 (spreads load, protects nothing)
        self.wait = min(self.wait * 2, _LONGEST_WAIT)
        return seconds

    def reset(self) -> None:
        """Start small again, after a success."""
        self.wait = _FIRST_WAIT


class Link:
    """One channel to the coordinator.

    Args:
        address: where the coordinator listens.
        tls: this silo's certificate and the federation's root.
    """

    def __init__(self, address: Address, tls: Credentials) -> None:
        self.address = address
        self._tls = tls

    async def __aenter__(self) -> Self:
        self._channel = make_channel(self.address, self._tls)
        self._stub: Any = silo_pb2_grpc.SiloServiceStub(self._channel)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def hello(self) -> Hello:
        """The coordinator's clock and newest roster.

        Raises:
            UnreachableError: no answer.
            NotAuthorisedError: it does not accept this certificate.
        """
        request = codec.HELLO_REQUEST.to_wire(HelloRequest(_SOFTWARE))
        with translated(self.address):
            return codec.HELLO.from_wire(await self._stub.Hello(request, timeout=_ASK_SECONDS))

    async def attend(self, outbox: asyncio.Queue[SiloEvent], receive: Callable[[CoordinatorEvent], None]) -> None:
        """Run one control stream until it ends: sends what is put into `outbox`, hands over what arrives, in order.

        Raises:
            UnreachableError: the stream broke or was never there.
            MalformedError: the coordinator sent something that is no message.
        """

        async def outgoing() -> AsyncIterator[Any]:
            while True:
                yield codec.SILO_EVENT.to_wire(await outbox.get())

        with translated(self.address):
            async for message in self._stub.Attend(outgoing()):
                receive(codec.COORDINATOR_EVENT.from_wire(message))

    async def upload(self, blob: bytes, data: bytes) -> None:
        """Bring a blob to the coordinator, from where its durable copy ends.

        Args:
            blob: the name of `data`.

        Raises:
            UnreachableError: the connection broke; try again.
            NotAuthorisedError: the coordinator does not want this blob now.
        """
        with translated(self.address):
            # A blob of one chunk is held whole or not at all, so there is nothing to ask.
            held = 0 if len(data) <= CHUNK_BYTES else await self._held(blob, len(data))
            if held < len(data):
                await self._send(blob, data, held)

    async def _held(self, blob: bytes, size: int) -> int:
        request = codec.FETCH.to_wire(Fetch(blob))
        receipt = codec.UPLOAD_RECEIPT.from_wire(await self._stub.UploadStatus(request, timeout=_ASK_SECONDS))
        return size if receipt.complete else min(receipt.held, size)

    async def _send(self, blob: bytes, data: bytes, held: int) -> None:
        async def chunks() -> AsyncIterator[Any]:
            for chunk in iter_chunks(data, held, blob=blob):
                yield codec.CHUNK.to_wire(chunk)

        # No deadline: how long it may take is up to the session, and the coordinator ends it.
        receipt = codec.UPLOAD_RECEIPT.from_wire(await self._stub.Upload(chunks()))
        if receipt.blob != blob or not receipt.complete:
            raise UnreachableError(f"{self.address} did not keep the whole upload.")

    async def fetch(self, blob: bytes, size: int) -> bytes:
        """A published sum, checked against its hash. A cut is resumed where it happened.

        Raises:
            UnreachableError: the connection broke and nothing more came, several times in a row.
            MalformedError: what came is not a blob of `size` bytes with that hash.
        """
        assembler, backoff, idle = ChunkAssembler(blob, limit=size, exact=True), Backoff(), 0
        while not assembler.complete:
            before = assembler.held
            try:
                await self._receive(assembler)
                if not assembler.complete:
                    raise MalformedError("A published sum ended early.")
            except UnreachableError:
                idle = 0 if assembler.held > before else idle + 1
                if idle == _FETCH_ATTEMPTS:
                    raise
                if not idle:
                    backoff.reset()
                await asyncio.sleep(backoff.next())
        return assembler.data()

    async def _receive(self, assembler: ChunkAssembler) -> None:
        with translated(self.address):
            request = codec.FETCH.to_wire(Fetch(assembler.blob, assembler.held))
            stream = aiter(self._stub.Fetch(request))
            while (message := await _within(anext(stream, None), _CHUNK_SECONDS, self.address)) is not None:
                assembler.add(codec.CHUNK.from_wire(message))

    async def serve(
        self, capacity: Capacity, outbox: asyncio.Queue[ServeEvent], receive: Callable[[SealedQuery], None]
    ) -> None:
        """Run one relay stream until it ends.

        Raises:
            UnreachableError: the stream broke.
            MalformedError: the coordinator sent something that is no query.
        """

        async def outgoing() -> AsyncIterator[Any]:
            yield codec.SERVE_EVENT.to_wire(capacity)
            while True:
                yield codec.SERVE_EVENT.to_wire(await outbox.get())

        with translated(self.address):
            async for message in self._stub.Serve(outgoing()):
                receive(codec.SEALED_QUERY.from_wire(message))
