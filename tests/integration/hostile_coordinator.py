"""A coordinator's host in hostile hands, against real agents: it owns the server's directory with its TLS key and round
key, speaks gRPC with mutual TLS on the server's own address, and sends what a test tells it to, and nothing by itself.

What a hostile host cannot have is not here either: the operator's signature is on the plan, silos' keys stay with their
agents, which are processes of their own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

from aggregator.homes import ServerHome, load_server_home
from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract.chunks import ChunkAssembler, iter_chunks
from feddrm.transport.peers import peer_of
from feddrm.transport.server import make_server
from feddrm.v1 import silo_pb2_grpc

PATIENCE = 120.0
LARGEST = 1 << 24

T = TypeVar("T")


class Host(silo_pb2_grpc.SiloServiceServicer):
    """The gRPC side: keeps everything that arrives, hands out what it is given."""

    def __init__(self, server: Path) -> None:
        self.home: ServerHome = load_server_home(server)
        self.inbox: dict[str, list[Any]] = defaultdict(list)
        self.sent: dict[str, list[m.CoordinatorEvent]] = defaultdict(list)
        self.uploads: dict[bytes, bytes] = {}
        self.sums: dict[bytes, bytes] = {}
        self._read: dict[str, int] = defaultdict(int)
        self._streams: dict[str, asyncio.Queue[m.CoordinatorEvent | None]] = {}
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: Any = None

    # the process

    def start(self) -> None:
        """Listen on the server's address."""

        async def begin() -> None:
            self._server, _ = make_server(
                str(self.home.listen), federation=self.home.federation, credentials=self.home.tls, admit=lambda _: True
            )
            silo_pb2_grpc.add_SiloServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
            await self._server.start()

        self._await(begin())

    def stop(self) -> None:
        """Cut every connection; memory stays, as a restarted coordinator's disk would."""

        async def end() -> None:
            for queue in self._streams.values():
                queue.put_nowait(None)
            await self._server.stop(0.5)
            self._streams.clear()

        self._await(end())

    def close(self) -> None:
        """The end."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    # the service

    async def Hello(self, request: Any, context: Any) -> Any:
        now = time.time_ns() // 1_000_000
        return codec.HELLO.to_wire(m.Hello("hostile", self.home.federation, now, self.home.signed_roster))

    async def Attend(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        name = peer_of(context).name
        queue: asyncio.Queue[m.CoordinatorEvent | None] = asyncio.Queue()
        self._streams[name] = queue
        reader = asyncio.create_task(self._listen(name, requests))
        try:
            while (event := await queue.get()) is not None:
                yield codec.COORDINATOR_EVENT.to_wire(event)
        finally:
            reader.cancel()

    async def _listen(self, name: str, requests: AsyncIterator[Any]) -> None:
        async for request in requests:
            with self._news:
                self.inbox[name].append(codec.SILO_EVENT.from_wire(request))
                self._news.notify_all()

    async def Upload(self, requests: AsyncIterator[Any], context: Any) -> Any:
        assembler: ChunkAssembler | None = None
        async for request in requests:
            chunk = codec.CHUNK.from_wire(request)
            assembler = assembler or ChunkAssembler(chunk.blob, limit=LARGEST)
            assembler.add(chunk)
        assert assembler is not None
        self.uploads[assembler.blob] = assembler.data()
        return codec.UPLOAD_RECEIPT.to_wire(m.UploadReceipt(assembler.blob, assembler.held, True))

    async def UploadStatus(self, request: Any, context: Any) -> Any:
        return codec.UPLOAD_RECEIPT.to_wire(m.UploadReceipt(codec.FETCH.from_wire(request).blob, 0, False))

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        fetch = codec.FETCH.from_wire(request)
        for chunk in iter_chunks(self.sums[fetch.blob], fetch.offset):
            yield codec.CHUNK.to_wire(chunk)

    # what a test does with it

    def send(self, silo: str, event: m.CoordinatorEvent) -> None:
        """Put an event on a silo's control stream."""
        self.sent[silo].append(event)
        queue = self._streams[silo]
        self._loop.call_soon_threadsafe(queue.put_nowait, event)

    def expect(self, silo: str, wanted: Callable[[Any], T | None]) -> T:
        """The next thing of a silo that `wanted` makes something of; what came before it is passed over."""
        end = time.monotonic() + PATIENCE
        with self._news:
            while True:
                while self._read[silo] < len(self.inbox[silo]):
                    event = self.inbox[silo][self._read[silo]]
                    self._read[silo] += 1
                    found = wanted(event)
                    if found is not None:
                        return found
                left = end - time.monotonic()
                assert left > 0, f"{silo} sent {self.inbox[silo][-5:]} and not what was expected"
                self._news.wait(left)

    def skip(self, silo: str) -> None:
        """Pass over all that a silo sent until now."""
        with self._news:
            self._read[silo] = len(self.inbox[silo])
