"""The coordinator as a process of its own over a federation's directories, and small silos over real connections."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "unit" / "aggregator"))

from coordinator_harness import MiniSilo, Upload, make_plan

from aggregator.founding import found_federation
from aggregator.homes import load_operator_home, load_server_home
from aggregator.operations import enroll, read_requests
from aggregator.operator_client import OperatorClient
from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract import query_messages as q
from feddrm.contract.authority import Address
from feddrm.contract.chunks import ChunkAssembler, blob_hash, iter_chunks
from feddrm.contract.errors import UnreachableError
from feddrm.contract.identity import Credentials, MemberKeys, Role, private_pem
from feddrm.contract.kit import reopen_kit
from feddrm.contract.request import make_request
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import sign_plan
from feddrm.demo.federation import free_port
from feddrm.transport.client import make_channel, translated
from feddrm.v1 import silo_pb2_grpc

SILOS = ("site-1", "site-2", "site-3", "site-4")
DESK = "desk"


@dataclass
class House:
    """A federation's directories on disk, and its members' credentials."""

    root: Path
    address: Address
    tls: dict[str, Credentials]
    identities: Any

    @property
    def server(self) -> Path:
        return self.root / "coordinator" / "server"

    @property
    def operator(self) -> Path:
        return self.root / "operator"


def found(root: Path) -> House:
    address = Address("127.0.0.1", free_port())
    now = time.time_ns() // 1_000_000
    base = root / "coordinator"
    found_federation(base, "retina", address, now)
    shutil.move(base / "operator", root / "operator")
    keys = {name: MemberKeys.generate() for name in (*SILOS, DESK)}
    paths = []
    for name, own in keys.items():
        path = root / f"{name}.request"
        role = Role.QUERIER if name == DESK else Role.SILO
        path.write_text(make_request(name, role, own).to_json())
        paths.append(path)
    enroll(root / "operator", read_requests(load_operator_home(root / "operator"), paths), base / "server", now)
    home, server = load_operator_home(root / "operator"), load_server_home(base / "server")
    tls = {}
    for name, own in keys.items():
        kit = reopen_kit(Signed.from_json((root / f"{name}.kit").read_text()), home.anchor)
        tls[name] = Credentials(home.anchor.root.encode(), kit.certificate_pem, private_pem(own.tls))
    tls["operator"] = home.tls
    identities = SimpleNamespace(
        keys={name: keys[name] for name in SILOS},
        operator=home.key,
        round_key=server.round_key,
        roster=home.roster,
        signed_roster=home.signed_roster,
    )
    return House(root, address, tls, identities)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", "aggregator.cli", *map(str, arguments)]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=60)


def start(house: House, *options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command("serve", house.server, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate(timeout=60)[1])
    assert line == f"The coordinator listens on {house.address}.\n"
    return process


@contextmanager
def serving(house: House, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = start(house, *options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            _, log = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        sys.stderr.write(log)


class Agent:
    """A small silo over a real connection: attends, uploads in two pieces, serves queries by echoing them."""

    def __init__(self, house: House, name: str) -> None:
        self.house, self.name = house, name
        self.sums: dict[bytes, bytes] = {}
        self.silo = MiniSilo(name, SILOS.index(name), house.identities, self.sums.__getitem__)
        self.resumed = 0
        self.streams = 0
        self.task: asyncio.Task[None] | None = None

    async def attend(self) -> None:
        """Stay connected until cancelled."""
        while True:
            try:
                async with make_channel(self.house.address, self.house.tls[self.name]) as channel:
                    self.stub = silo_pb2_grpc.SiloServiceStub(channel)  # type: ignore[no-untyped-call]
                    await self._stream()
            except UnreachableError:
                await asyncio.sleep(0.2)

    async def _stream(self) -> None:
        self.streams += 1
        outbox: asyncio.Queue[Any] = asyncio.Queue()
        for event in self.silo.connected():
            outbox.put_nowait(event)

        async def outgoing() -> AsyncIterator[Any]:
            while True:
                yield codec.SILO_EVENT.to_wire(await outbox.get())

        with translated(self.house.address):
            async for message in self.stub.Attend(outgoing()):
                event = codec.COORDINATOR_EVENT.from_wire(message)
                await self._fetch(event)
                for answer in self.silo.handle(event):
                    if isinstance(answer, Upload):
                        await self.upload(answer.data)
                    else:
                        outbox.put_nowait(answer)

    async def _fetch(self, event: m.CoordinatorEvent) -> None:
        wanted = b""
        match event:
            case m.Publish(sum=blob):
                wanted = blob
            case m.OutcomeEvent(outcome):
                wanted = outcome.sum
            case m.Announce(previous=m.RoundOutcome() as outcome):
                wanted = outcome.sum
        if wanted and wanted not in self.sums:
            self.sums[wanted] = await self.fetch(wanted)

    async def fetch(self, blob: bytes) -> bytes:
        assembler = ChunkAssembler(blob, limit=1 << 20)
        with translated(self.house.address):
            async for message in self.stub.Fetch(codec.FETCH.to_wire(m.Fetch(blob))):
                assembler.add(codec.CHUNK.from_wire(message))
        return assembler.data()

    async def upload(self, data: bytes) -> None:
        """The first half, a broken stream, and the rest from where the coordinator says."""
        blob, half = blob_hash(data), len(data) // 2

        async def chunks(pieces: list[m.Chunk]) -> AsyncIterator[Any]:
            for piece in pieces:
                yield codec.CHUNK.to_wire(piece)

        async def status() -> m.UploadReceipt:
            return codec.UPLOAD_RECEIPT.from_wire(await self.stub.UploadStatus(codec.FETCH.to_wire(m.Fetch(blob))))

        with translated(self.house.address):
            if not (await status()).held:
                first = list(iter_chunks(data, 0, half))[:1]
                receipt = codec.UPLOAD_RECEIPT.from_wire(await self.stub.Upload(chunks(first)))
                assert (receipt.held, receipt.complete) == (half, False)
                assert await status() == receipt
            receipt = await status()
            if receipt.complete:
                return
            rest = list(iter_chunks(data, receipt.held))
            receipt = codec.UPLOAD_RECEIPT.from_wire(await self.stub.Upload(chunks(rest)))
        assert receipt.complete
        self.resumed += 1

    async def serve(self, release: bytes, asked: list[q.SealedQuery], refusal: str = "") -> None:
        """Answer every query by its own bytes, reversed."""
        outbox: asyncio.Queue[q.ServeEvent] = asyncio.Queue()
        outbox.put_nowait(q.Capacity(2, release))

        async def outgoing() -> AsyncIterator[Any]:
            while True:
                yield codec.SERVE_EVENT.to_wire(await outbox.get())

        async with make_channel(self.house.address, self.house.tls[self.name]) as channel:
            stub = silo_pb2_grpc.SiloServiceStub(channel)  # type: ignore[no-untyped-call]
            async for message in stub.Serve(outgoing()):
                query = codec.SEALED_QUERY.from_wire(message)
                asked.append(query)
                answer = b"" if refusal else query.sealed[::-1]
                outbox.put_nowait(q.Answer(query.query, answer, refusal))


@contextmanager
def agents(house: House, *names: str) -> Iterator[dict[str, Agent]]:
    made = {name: Agent(house, name) for name in names}
    for agent in made.values():
        agent.task = asyncio.create_task(agent.attend())
    try:
        yield made
    finally:
        for agent in made.values():
            assert agent.task is not None
            agent.task.cancel()


def plan_of(house: House, **changes: Any) -> Signed:
    settings = {"secure_aggregation__threshold": 3, "roster_version": house.identities.roster.version, **changes}
    return sign_plan(make_plan(SILOS, **settings), house.identities.operator).signed


async def until(house: House, state: str, seconds: float = 120) -> o.Status:
    """Poll the status as an operator does."""
    end = time.monotonic() + seconds
    while True:
        status = await asyncio.to_thread(status_of, house)
        if status.state == state:
            return status
        assert time.monotonic() < end, status
        await asyncio.sleep(0.1)


def status_of(house: House) -> o.Status:
    with OperatorClient(house.operator) as client:
        return client.status()


async def call(house: House, who: str, stub: Any, method: str, message: Any, timeout: float = 60) -> Any:
    async with make_channel(house.address, house.tls[who]) as channel:
        with translated(house.address):
            return await getattr(stub(channel), method)(message, timeout=timeout)
