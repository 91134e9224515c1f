"""The coordinator of the querier's tests, on a port."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
from query_world import World, now

from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract import query_messages as q
from feddrm.contract.chunks import iter_chunks
from feddrm.contract.names import SiloId
from feddrm.contract.seal import query_hash
from feddrm.contract.tickets import Ticket, ticket_hash
from feddrm.transport.recorder import Recorder
from feddrm.transport.server import make_server
from feddrm.transport.status import NoReleaseError
from feddrm.v1 import query_pb2_grpc


class Service(query_pb2_grpc.QueryServiceServicer):
    def __init__(self, world: World) -> None:
        self.world = world

    async def Hello(self, request: Any, context: Any) -> Any:
        return codec.HELLO.to_wire(m.Hello("test", "retina", now(), self.world.signed_roster))

    async def GetRelease(self, request: Any, context: Any) -> Any:
        if not self.world.in_service:
            raise NoReleaseError("none")
        return codec.QUERIER_RELEASE.to_wire(self.world.offer)

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.world.fetches += 1
        fetch = codec.FETCH.from_wire(request)
        for chunk in iter_chunks(self.world.trunk, fetch.offset):
            yield codec.CHUNK.to_wire(chunk)

    async def Route(self, request: Any, context: Any) -> Any:
        world, rows = self.world, []
        route = codec.ROUTE_REQUEST.from_wire(request)
        for code in route.codes:
            picked = world.pick(world.routed, code)
            world.routed += 1
            names = (picked,) if isinstance(picked, str) else picked
            rows.append(q.RouteRow(tuple(self.route(name, route.release) for name in names)))
        return codec.ROUTE_REPLY.wire(rows=[wire_row(row) for row in world.rows(rows)])

    def route(self, silo: str, release: bytes) -> q.Route:
        ticket = Ticket(
            federation="retina",
            querier="desk",
            silo=silo,
            release=release,
            roster_version=1,
            issued_ms=now(),
            expires_ms=now() + 600_000,
            nonce=hashlib.sha256(f"{self.world.routed} {silo} {id(ticket_hash)}".encode()).digest(),
        )
        return q.Route(SiloId(silo), 1, self.world.ticket(ticket))

    async def Ask(self, request: Any, context: Any) -> Any:
        ask = codec.ASK.from_wire(request)
        self.world.seen.append(query_hash(ask.sealed))
        if self.world.hiccups:
            self.world.hiccups -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "GOAWAY received")
        return codec.ASK_REPLY.to_wire(q.AskReply(self.world.on_ask(ask)))


class Running:
    """The world's coordinator on a loop of its own thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = asyncio.new_event_loop()
        self._recorder = Recorder(world.directory / "recording")
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> int:
        credentials = self._world.server_credentials()
        self._server, port = make_server(
            "127.0.0.1:0",
            federation="retina",
            credentials=credentials,
            admit=lambda peer: peer.name == "desk",
            recorder=self._recorder,
        )
        register: Any = query_pb2_grpc.add_QueryServiceServicer_to_server
        register(Service(self._world), self._server)
        await self._server.start()
        return int(port)

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(0), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._recorder.close()


def wire_row(row: q.RouteRow) -> Any:
    """Past the checks that the real coordinator's own encoder makes."""
    return codec.ROUTE_ROW.wire(routes=[codec.ROUTE.to_wire(route) for route in row.routes])
