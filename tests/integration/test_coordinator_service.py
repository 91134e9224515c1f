"""The coordinator as a process of its own, over real gRPC with real certificates."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.numpy

sys.path.append(str(Path(__file__).parents[1] / "unit" / "aggregator"))

from coordinator_harness import MiniSilo, Upload, make_plan

from aggregator.homes import load_operator_home, load_server_home
from aggregator.operations import enroll, found_federation, read_requests
from aggregator.operator_client import OperatorClient
from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract.authority import Address
from feddrm.contract.chunks import ChunkAssembler, blob_hash, iter_chunks
from feddrm.contract.errors import (
    FeddrmError,
    InputError,
    MalformedError,
    NotAuthorisedError,
    UnreachableError,
    VerificationError,
)
from feddrm.contract.identity import Credentials, MemberKeys, Role, private_pem
from feddrm.contract.kit import reopen_kit
from feddrm.contract.release import verify_release
from feddrm.contract.request import make_request
from feddrm.contract.signed import Signed
from feddrm.contract.tickets import verify_ticket
from feddrm.method.coarse import query_bits
from feddrm.method.layout import layout_of
from feddrm.method.update import part_hash
from feddrm.transport.client import make_channel, translated
from feddrm.v1 import operator_pb2_grpc, query_pb2_grpc, silo_pb2_grpc

SILOS = ("site-1", "site-2", "site-3", "site-4")
DESK = "desk"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return found(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def fresh(tmp_path: Path) -> House:
    return found(tmp_path)


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

    async def serve(self, release: bytes, asked: list[m.SealedQuery], refusal: str = "") -> None:
        """Answer every query by its own bytes, reversed."""
        outbox: asyncio.Queue[m.ServeEvent] = asyncio.Queue()
        outbox.put_nowait(m.Capacity(2, release))

        async def outgoing() -> AsyncIterator[Any]:
            while True:
                yield codec.SERVE_EVENT.to_wire(await outbox.get())

        async with make_channel(self.house.address, self.house.tls[self.name]) as channel:
            stub = silo_pb2_grpc.SiloServiceStub(channel)  # type: ignore[no-untyped-call]
            async for message in stub.Serve(outgoing()):
                query = codec.SEALED_QUERY.from_wire(message)
                asked.append(query)
                answer = b"" if refusal else query.sealed[::-1]
                outbox.put_nowait(m.Answer(query.query, answer, refusal))


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
    plan = make_plan(SILOS, **settings)
    return house.identities.sign(plan) if hasattr(house.identities, "sign") else _sign(house, plan)


def _sign(house: House, plan: Any) -> Signed:
    from feddrm.contract.signed_plan import sign_plan

    return sign_plan(plan, house.identities.operator).signed


async def until(house: House, state: str, seconds: float = 120) -> m.Status:
    """Poll the status as an operator does."""
    end = time.monotonic() + seconds
    while True:
        status = await asyncio.to_thread(status_of, house)
        if status.state == state:
            return status
        assert time.monotonic() < end, status
        await asyncio.sleep(0.1)


def status_of(house: House) -> m.Status:
    with OperatorClient(house.operator) as client:
        return client.status()


async def call(house: House, who: str, stub: Any, method: str, message: Any, timeout: float = 60) -> Any:
    async with make_channel(house.address, house.tls[who]) as channel:
        with translated(house.address):
            return await getattr(stub(channel), method)(message, timeout=timeout)


def test_a_job_a_release_and_queries(fresh: House) -> None:
    async def scenario() -> None:
        with agents(fresh, *SILOS) as silos:
            with OperatorClient(fresh.operator) as client:
                # Wide enough for an untrained head to name both hospitals that can be asked.
                receipt = client.start_job(plan_of(fresh, model={"kind": "mlp", "hidden": (8,)}))
                assert receipt.state == "gathering"
            status = await until(fresh, "release ready")
            assert [h.survivors for h in status.history] == [SILOS, SILOS]
            assert all(agent.resumed == 2 for agent in silos.values())
            await query(fresh, silos, receipt.plan)

    with serving(fresh):
        asyncio.run(scenario())
    log = run("log", fresh.server, "--format", "json")
    texts = [line["text"] for line in json.loads(log.stdout)["lines"]]
    assert "round 2 is certified by 3 silos" in texts


async def query(house: House, silos: dict[str, Agent], plan_hash: bytes) -> None:
    with pytest.raises(UnreachableError, match="No release"):
        await call(
            house, DESK, query_pb2_grpc.QueryServiceStub, "GetRelease", codec.GET_RELEASE.to_wire(m.GetRelease())
        )
    listed = json.loads(run("release", "list", "--operator", house.operator, "--format", "json").stdout)["releases"]
    assert [(r["threshold"], r["published"]) for r in listed] == [(3, False)]
    assert run("release", "publish", listed[0]["id"], "--operator", house.operator).returncode == 0
    await until(house, "completed")
    async with make_channel(house.address, house.tls[DESK]) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)  # type: ignore[no-untyped-call]
        offered = codec.QUERIER_RELEASE.from_wire(await stub.GetRelease(codec.GET_RELEASE.to_wire(m.GetRelease())))
        release = verify_release(offered.statement, plan=offered.plan, roster=house.identities.roster)
        assert release.plan.hash == plan_hash
        await check_trunk(stub, offered, release)
        await check_routes(house, stub, silos, release)


async def check_trunk(stub: Any, offered: m.QuerierRelease, release: Any) -> None:
    assembler = ChunkAssembler(offered.trunk, limit=1 << 20)
    async for message in stub.Fetch(codec.FETCH.to_wire(m.Fetch(offered.trunk))):
        assembler.add(codec.CHUNK.from_wire(message))
    layout = layout_of(release.plan.plan)
    assert part_hash(layout, "trunk", safetensors.numpy.load(assembler.data())) == release.statement.trunk


async def check_routes(house: House, stub: Any, silos: dict[str, Agent], release: Any) -> None:
    address = house.address
    assert query_bits(release.plan.plan) == 16
    codes = tuple((number * 3277).to_bytes(2) for number in range(20))
    request = codec.ROUTE_REQUEST.to_wire(m.RouteRequest(release.hash, codes))
    with pytest.raises(UnreachableError), translated(address):
        await stub.Route(request)
    asked: list[m.SealedQuery] = []
    refused: list[m.SealedQuery] = []
    tasks = [
        asyncio.create_task(silos["site-1"].serve(release.hash, asked)),
        asyncio.create_task(silos["site-2"].serve(release.hash, refused, "budget")),
        asyncio.create_task(silos["site-3"].serve(bytes(32), asked)),
    ]
    while sum(s.capacity > 0 for s in (await asyncio.to_thread(status_of, house)).silos) < 3:
        await asyncio.sleep(0.05)
    reply = await stub.Route(request)
    routes = codec.ROUTE_REPLY.from_wire(reply).routes
    # Only silos that serve this release, and of the answer nothing but names and tickets.
    assert {route.silo for route in routes} <= {"site-1", "site-2"}
    assert {field.name for field, _ in reply.routes[0].ListFields()} == {"silo", "roster_version", "ticket"}
    assert len({route.ticket.body for route in routes}) == 20
    now = time.time_ns() // 1_000_000
    roster = house.identities.roster
    for route in routes:
        verify_ticket(route.ticket, roster=roster, querier=DESK, silo=route.silo, release=release.hash, now_ms=now)
    for code in (codes[0] + bytes(1), bytes(1)):
        wrong = codec.ROUTE_REQUEST.to_wire(m.RouteRequest(release.hash, (code,)))
        with pytest.raises(MalformedError), translated(address):
            await stub.Route(wrong)
    other = codec.ROUTE_REQUEST.to_wire(m.RouteRequest(bytes(32), codes[:1]))
    with pytest.raises(InputError), translated(address):
        await stub.Route(other)
    await check_asks(house, stub, {r.silo: r.ticket for r in routes}, asked)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def check_asks(house: House, stub: Any, tickets: dict[str, Signed], asked: list[m.SealedQuery]) -> None:
    async def ask(silo: str, ticket: Signed, sealed: bytes) -> bytes:
        with translated(house.address):
            return codec.ASK_REPLY.from_wire(
                await stub.Ask(codec.ASK.to_wire(m.Ask(silo, ticket, sealed)), timeout=60)  # type: ignore[arg-type]
            ).answer

    # The model follows from the plan and the codes are fixed, so both are always there.
    assert set(tickets) == {"site-1", "site-2"}
    name, ticket = "site-1", tickets["site-1"]
    sealed = [secrets.token_bytes(100) for _ in range(12)]
    answers = await asyncio.gather(*(ask(name, ticket, entry) for entry in sealed))
    assert answers == [entry[::-1] for entry in sealed]
    assert {query.querier for query in asked} == {DESK}
    again = await asyncio.gather(*(ask(name, ticket, sealed[0]) for _ in range(3)))
    assert again == [sealed[0][::-1]] * 3
    with pytest.raises(FeddrmError, match="budget or limit"):
        await ask("site-2", tickets["site-2"], b"sealed")
    forged = replace(ticket, body=ticket.body.replace(b"site-1", b"site-4").replace(b"site-2", b"site-4"))
    for silo, wrong in (("site-4", ticket), ("site-4", forged), (name, forged)):
        with pytest.raises(VerificationError):
            await ask(silo, wrong, b"sealed")


def test_roles_are_kept_apart(house: House) -> None:
    status = codec.STATUS_REQUEST.to_wire(m.StatusRequest())
    cases = [
        ("site-1", operator_pb2_grpc.OperatorServiceStub, "Status", status),
        ("site-1", operator_pb2_grpc.OperatorServiceStub, "StartJob", codec.SIGNED.to_wire(plan_of(house))),
        (DESK, operator_pb2_grpc.OperatorServiceStub, "Status", status),
        ("operator", silo_pb2_grpc.SiloServiceStub, "UploadStatus", codec.FETCH.to_wire(m.Fetch(bytes(32)))),
        (DESK, silo_pb2_grpc.SiloServiceStub, "UploadStatus", codec.FETCH.to_wire(m.Fetch(bytes(32)))),
        ("site-1", query_pb2_grpc.QueryServiceStub, "GetRelease", codec.GET_RELEASE.to_wire(m.GetRelease())),
        ("operator", query_pb2_grpc.QueryServiceStub, "GetRelease", codec.GET_RELEASE.to_wire(m.GetRelease())),
    ]

    async def scenario() -> None:
        for who, stub, method, message in cases:
            with pytest.raises(NotAuthorisedError):
                await call(house, who, stub, method, message)

    with serving(house):
        asyncio.run(scenario())


def test_control_streams(house: House) -> None:
    async def scenario() -> None:
        async with make_channel(house.address, house.tls["site-1"]) as channel:
            stub = silo_pb2_grpc.SiloServiceStub(channel)  # type: ignore[no-untyped-call]
            silo = Agent(house, "site-1").silo
            ready, wrong = codec.SILO_EVENT.to_wire(silo.ready()), m.PlanAnswer(bytes(32), True)

            async def first_then_nothing(message: Any) -> AsyncIterator[Any]:
                yield message
                await asyncio.sleep(60)

            with pytest.raises(MalformedError), translated(house.address):
                async for _ in stub.Attend(first_then_nothing(codec.SILO_EVENT.to_wire(wrong))):
                    pass
            older = stub.Attend(first_then_nothing(ready))
            reading = asyncio.ensure_future(drain(older))
            while not connected(await asyncio.to_thread(status_of, house), "site-1"):
                await asyncio.sleep(0.05)
            newer = stub.Attend(first_then_nothing(ready))
            newest = asyncio.ensure_future(drain(newer))
            await asyncio.wait_for(reading, 60)
            assert not newest.done()
            while not connected(await asyncio.to_thread(status_of, house), "site-1"):
                await asyncio.sleep(0.05)
            assert not newest.done()
            newer.cancel()
            while connected(await asyncio.to_thread(status_of, house), "site-1"):
                await asyncio.sleep(0.05)
            with pytest.raises(NotAuthorisedError), translated(house.address):
                await stub.UploadStatus(codec.FETCH.to_wire(m.Fetch(bytes(32))))
            with pytest.raises(FeddrmError, match="refused"), translated(house.address):
                async for _ in stub.Fetch(codec.FETCH.to_wire(m.Fetch(bytes(32)))):
                    pass

    with serving(house):
        asyncio.run(scenario())


async def drain(stream: Any) -> None:
    async for _ in stream:
        pass


def connected(status: m.Status, name: str) -> bool:
    return next(silo.connected for silo in status.silos if silo.name == name)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_coordinator_that_dies_in_a_round_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    house = found(tmp_path)

    async def scenario() -> None:
        process = start(house)
        with agents(house, *SILOS) as silos:
            with OperatorClient(house.operator) as client:
                client.start_job(plan_of(house, training__rounds=6))
            for number in (1, 3):
                while len((await asyncio.to_thread(status_of, house)).history) < number:
                    await asyncio.sleep(0.02)
                await asyncio.sleep(secrets.randbelow(100) / 1000)
                process.send_signal(how)
                assert await asyncio.to_thread(process.wait, 60) == (0 if how == signal.SIGTERM else -9)
                process.communicate()
                process = await asyncio.to_thread(start, house)
            status = await until(house, "release ready", 240)
            assert [h.outcome for h in status.history] == ["published"] * 6
            assert {h.survivors for h in status.history} == {SILOS}
            assert {agent.silo.boots for agent in silos.values()} == {1}
            assert {agent.silo.round for agent in silos.values()} == {6}
        process.terminate()
        process.communicate(timeout=60)

    asyncio.run(scenario())


def test_a_second_coordinator_is_refused_in_one_sentence(fresh: House, tmp_path: Path) -> None:
    with serving(fresh):
        same_directory = run("serve", fresh.server)
        assert same_directory.returncode == 8
        assert "Another coordinator already runs" in same_directory.stderr
        copy = tmp_path / "copy" / "server"
        shutil.copytree(fresh.server, copy, ignore=shutil.ignore_patterns("state.sqlite*", "lock"))
        same_port = run("serve", copy)
        assert same_port.returncode == 8
        assert "Another process listens on" in same_port.stderr
        for result in (same_directory, same_port):
            assert "Traceback" not in result.stderr
            assert len(result.stderr.strip().splitlines()) == 1


def test_the_server_refuses_to_run_beside_the_operators_key(fresh: House) -> None:
    shutil.copytree(fresh.operator, fresh.root / "coordinator" / "operator")
    result = run("serve", fresh.server)
    assert result.returncode == 4
    assert "private key" in result.stderr


def test_operator_commands_speak_plainly(fresh: House, tmp_path: Path) -> None:
    plan, signed = tmp_path / "plan.toml", tmp_path / "plan.signed"
    text = PLAN.replace("VERSION", str(fresh.identities.roster.version))
    plan.write_text(text)
    unreachable = run("status", "--operator", fresh.operator)
    assert unreachable.returncode == 7
    assert "Nothing listens at" in unreachable.stderr
    checked = run("plan", "check", plan, "--server", fresh.server, "--format", "json")
    document = json.loads(checked.stdout)
    assert (document["threshold"], document["absent_allowed"], document["problems"]) == (3, 1, [])
    assert 0 < document["epsilon"] <= document["epsilon_without_secure_aggregation"]
    plan.write_text(text.replace('"site-3"', '"site-33"'))
    assert run("plan", "sign", plan, "--operator", fresh.operator, "-o", signed).returncode == 3
    assert not signed.exists()
    plan.write_text(text.replace("threshold = 3", "treshold = 3"))
    unknown = run("plan", "check", plan)
    assert (unknown.returncode, "treshold" in unknown.stderr) == (3, True)
    plan.write_text(text)
    done = run("plan", "sign", plan, "--operator", fresh.operator, "-o", signed)
    assert done.returncode == 0
    assert "epsilon" in done.stdout
    unsigned = run("job", "start", plan, "--operator", fresh.operator)
    assert (unsigned.returncode, "is not a signed plan" in unsigned.stderr) == (3, True)
    with serving(fresh):
        assert run("job", "start", signed, "--operator", fresh.operator).returncode == 0
        twice = run("job", "start", signed, "--operator", fresh.operator)
        assert (twice.returncode, "not over yet" in twice.stderr) == (3, True)
        shown = json.loads(run("status", "--operator", fresh.operator, "--format", "json").stdout)
        assert (shown["state"], shown["waiting_for"]) == ("gathering", list(SILOS))
        assert run("release", "publish", "0" * 16, "--operator", fresh.operator).returncode == 3
        stopped = run("job", "stop", "--operator", fresh.operator, "--reason", "a test")
        assert stopped.returncode == 0
        watched = run("status", "--watch", "--operator", fresh.operator)
        assert (watched.returncode, "stopped by the operator: a test" in watched.stdout) == (3, True)


PLAN = """\
federation = "retina"
name = "first"
roster_version = VERSION
silos = ["site-1", "site-2", "site-3", "site-4"]
[schema]
patient = "id"
target = {kind = "threshold", column = "y", operator = ">", value = 0.0, labels = ["no", "yes"]}
columns = [{kind = "numeric", name = "age", lower = 0.0, upper = 100.0}]
[model]
kind = "mlp"
hidden = [4]
[training]
rounds = 3
local_steps = 2
sampling_rate = 0.1
clip_norm = 1.0
noise_multiplier = 1.0
target_weight = 0.5
learning_rate = 0.1
[privacy]
delta = 1e-5
[secure_aggregation]
threshold = 3
minimum_cohort = 3
colluders = 1
clip = 1.0
fraction_bits = 20
"""


def test_the_recording_holds_what_was_sent(fresh: House, tmp_path: Path) -> None:
    recording = tmp_path / "traffic"

    async def scenario() -> None:
        message = codec.HELLO_REQUEST.to_wire(m.HelloRequest("a canary"))
        reply = codec.HELLO.from_wire(await call(fresh, "site-1", silo_pb2_grpc.SiloServiceStub, "Hello", message))
        assert (reply.federation, reply.roster) == ("retina", fresh.identities.signed_roster)
        assert abs(reply.time_ms - time.time_ns() // 1_000_000) < 60_000

    with serving(fresh, "--record-traffic", os.fspath(recording)):
        asyncio.run(scenario())
    assert b"a canary" in recording.read_bytes()
