"""A coordinator that only greets, as a process of its own: python transport_hello_server.py DIR LISTEN [REMOVED]."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract.chunks import ChunkAssembler, iter_chunks
from feddrm.contract.errors import BudgetError, FeddrmError, InputError
from feddrm.contract.identity import Credentials
from feddrm.contract.signed import Signature, Signed
from feddrm.transport.client import BusyError
from feddrm.transport.peers import Peer, peer_of
from feddrm.transport.recorder import Recorder
from feddrm.transport.server import make_server
from feddrm.v1 import operator_pb2_grpc, query_pb2_grpc, silo_pb2_grpc

ROSTER = Signed(b"roster", (Signature(bytes(32), bytes(64)),))
SUM = hashlib.shake_256(b"sum").digest(2_500_000)
SECRET = "row 17 of the patients"  # must never cross the wire


class Silos(silo_pb2_grpc.SiloServiceServicer):
    async def Hello(self, request: Any, context: Any) -> Any:
        codec.HELLO_REQUEST.from_wire(request)
        return codec.HELLO.to_wire(m.Hello(peer_of(context).name, "retina", 1, ROSTER))

    async def Attend(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            async for request in requests:
                event = codec.SILO_EVENT.from_wire(request)
                assert isinstance(event, m.Ready)
                if event.round == 13:
                    raise KeyError(SECRET)
                yield codec.COORDINATOR_EVENT.to_wire(m.Notice(f"round {event.round}"))
        finally:
            (DIRECTORY / "attend-ended").touch()

    async def Upload(self, requests: AsyncIterator[Any], context: Any) -> Any:
        assembler: ChunkAssembler | None = None
        async for request in requests:
            chunk = codec.CHUNK.from_wire(request)
            assembler = assembler or ChunkAssembler(chunk.blob, limit=1 << 24)
            assembler.add(chunk)
        assert assembler is not None
        return codec.UPLOAD_RECEIPT.to_wire(m.UploadReceipt(assembler.blob, assembler.held, assembler.complete))

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for chunk in iter_chunks(SUM, codec.FETCH.from_wire(request).offset):
            yield codec.CHUNK.to_wire(chunk)


class Operators(operator_pb2_grpc.OperatorServiceServicer):
    async def Status(self, request: Any, context: Any) -> Any:
        raise InputError("plan.toml: rounds is missing.")

    async def StopJob(self, request: Any, context: Any) -> Any:
        raise AssertionError("no silo may get here")


class Queriers(query_pb2_grpc.QueryServiceServicer):
    async def Route(self, request: Any, context: Any) -> Any:
        errors: dict[int, FeddrmError] = {1: BusyError("11 of 10"), 2: BudgetError("all used"), 3: InputError(SECRET)}
        raise errors[len(codec.ROUTE_REQUEST.from_wire(request).codes)]


def admit(peer: Peer) -> bool:
    removed = DIRECTORY / "removed"
    return peer.name not in (removed.read_text().split() if removed.exists() else ())


async def main(listen: str) -> None:
    credentials = Credentials(*((DIRECTORY / name).read_bytes() for name in ("root.pem", "server.pem", "server.key")))
    with Recorder(DIRECTORY / "recording") as recorder:
        server, port = make_server(listen, federation="retina", credentials=credentials, admit=admit, recorder=recorder)
        registrations: tuple[tuple[Any, Any], ...] = (
            (silo_pb2_grpc.add_SiloServiceServicer_to_server, Silos()),
            (operator_pb2_grpc.add_OperatorServiceServicer_to_server, Operators()),
            (query_pb2_grpc.add_QueryServiceServicer_to_server, Queriers()),
        )
        for register, servicer in registrations:
            register(servicer, server)
        await server.start()
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await server.wait_for_termination()


if __name__ == "__main__":
    DIRECTORY = Path(sys.argv[1])
    try:
        asyncio.run(main(sys.argv[2]))
    except FeddrmError as failure:
        sys.stderr.write(f"{type(failure).__name__}: {failure}\n")
        sys.exit(int(failure.exit_code))
