"""A whole job, its release, and the queries to it, over real gRPC with real certificates."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from coordinator_process import DESK, SILOS, Agent, House, agents, call, found, plan_of, run, serving, status_of, until

from aggregator.operator_client import OperatorClient
from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract import query_messages as q
from feddrm.contract.chunks import ChunkAssembler
from feddrm.contract.errors import FeddrmError, InputError, MalformedError, UnreachableError, VerificationError
from feddrm.contract.release import verify_release
from feddrm.contract.signed import Signed
from feddrm.contract.tickets import verify_ticket
from feddrm.method.coarse import query_bits
from feddrm.method.layout import layout_of
from feddrm.method.update import part_hash
from feddrm.transport.client import make_channel, translated
from feddrm.v1 import query_pb2_grpc


@pytest.fixture
def fresh(tmp_path: Path) -> House:
    return found(tmp_path)


def test_a_job_a_release_and_queries(fresh: House) -> None:
    async def scenario() -> None:
        with agents(fresh, *SILOS) as silos:
            with OperatorClient(fresh.operator) as client:
                # Wide enough for an untrained head to find both hospitals that can be asked nearly tied.
                changes = {"model": {"kind": "mlp", "hidden": (8,)}, "queries": {"second_opinion": 0.3}}
                receipt = client.start_job(plan_of(fresh, **changes))
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
            house, DESK, query_pb2_grpc.QueryServiceStub, "GetRelease", codec.GET_RELEASE.to_wire(q.GetRelease())
        )
    listed = json.loads(run("release", "list", "--operator", house.operator, "--format", "json").stdout)["releases"]
    assert [(r["threshold"], r["published"]) for r in listed] == [(3, False)]
    assert run("release", "publish", listed[0]["id"], "--operator", house.operator).returncode == 0
    await until(house, "completed")
    async with make_channel(house.address, house.tls[DESK]) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)  # type: ignore[no-untyped-call]
        offered = codec.QUERIER_RELEASE.from_wire(await stub.GetRelease(codec.GET_RELEASE.to_wire(q.GetRelease())))
        release = verify_release(offered.statement, plan=offered.plan, roster=house.identities.roster)
        assert release.plan.hash == plan_hash
        await check_trunk(stub, offered, release)
        await check_routes(house, stub, silos, release)


async def check_trunk(stub: Any, offered: q.QuerierRelease, release: Any) -> None:
    assembler = ChunkAssembler(offered.trunk, limit=1 << 20)
    async for message in stub.Fetch(codec.FETCH.to_wire(m.Fetch(offered.trunk))):
        assembler.add(codec.CHUNK.from_wire(message))
    layout = layout_of(release.plan.plan)
    assert part_hash(layout, "trunk", safetensors.numpy.load(assembler.data())) == release.statement.trunk


async def check_routes(house: House, stub: Any, silos: dict[str, Agent], release: Any) -> None:
    address = house.address
    assert query_bits(release.plan.plan) == 16
    codes = tuple((number * 327).to_bytes(2) for number in range(200))
    request = codec.ROUTE_REQUEST.to_wire(q.RouteRequest(release.hash, codes))
    with pytest.raises(UnreachableError), translated(address):
        await stub.Route(request)
    asked: list[q.SealedQuery] = []
    refused: list[q.SealedQuery] = []
    tasks = [
        asyncio.create_task(silos["site-1"].serve(release.hash, asked)),
        asyncio.create_task(silos["site-2"].serve(release.hash, refused, "budget")),
        asyncio.create_task(silos["site-3"].serve(bytes(32), asked)),
    ]
    while sum(s.capacity > 0 for s in (await asyncio.to_thread(status_of, house)).silos) < 3:
        await asyncio.sleep(0.05)
    reply = await stub.Route(request)
    rows = [[route.silo for route in row.routes] for row in codec.ROUTE_REPLY.from_wire(reply).rows]
    # Only silos that serve this release, two in the plan's order, and of the answer nothing but names and tickets.
    named = {tuple(names) for names in rows}
    assert ("site-1", "site-2") in named
    assert named <= {("site-1",), ("site-2",), ("site-1", "site-2")}
    routes = [route for row in codec.ROUTE_REPLY.from_wire(reply).rows for route in row.routes]
    assert {field.name for field, _ in reply.rows[0].ListFields()} == {"routes"}
    assert {field.name for field, _ in reply.rows[0].routes[0].ListFields()} == {"silo", "roster_version", "ticket"}
    assert len({route.ticket.body for route in routes}) == len(routes)
    now = time.time_ns() // 1_000_000
    roster = house.identities.roster
    for route in routes:
        verify_ticket(route.ticket, roster=roster, querier=DESK, silo=route.silo, release=release.hash, now_ms=now)
    for code in (codes[0] + bytes(1), bytes(1)):
        wrong = codec.ROUTE_REQUEST.to_wire(q.RouteRequest(release.hash, (code,)))
        with pytest.raises(MalformedError), translated(address):
            await stub.Route(wrong)
    other = codec.ROUTE_REQUEST.to_wire(q.RouteRequest(bytes(32), codes[:1]))
    with pytest.raises(InputError), translated(address):
        await stub.Route(other)
    await check_asks(house, stub, {r.silo: r.ticket for r in routes}, asked)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def check_asks(house: House, stub: Any, tickets: dict[str, Signed], asked: list[q.SealedQuery]) -> None:
    async def ask(silo: str, ticket: Signed, sealed: bytes) -> bytes:
        with translated(house.address):
            return codec.ASK_REPLY.from_wire(
                await stub.Ask(codec.ASK.to_wire(q.Ask(silo, ticket, sealed)), timeout=60)  # type: ignore[arg-type]
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
