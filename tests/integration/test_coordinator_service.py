"""The coordinator as a process of its own, over real gRPC with real certificates."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from coordinator_process import (
    DESK,
    SILOS,
    Agent,
    House,
    agents,
    call,
    found,
    plan_of,
    run,
    serving,
    start,
    status_of,
    until,
)

from aggregator.operator_client import OperatorClient
from feddrm.contract import codec, codec_operator
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract import query_messages as q
from feddrm.contract.errors import FeddrmError, MalformedError, NotAuthorisedError
from feddrm.transport.client import make_channel, translated
from feddrm.v1 import operator_pb2_grpc, query_pb2_grpc, silo_pb2_grpc


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return found(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def fresh(tmp_path: Path) -> House:
    return found(tmp_path)


def test_roles_are_kept_apart(house: House) -> None:
    status = codec_operator.STATUS_REQUEST.to_wire(o.StatusRequest())
    cases = [
        ("site-1", operator_pb2_grpc.OperatorServiceStub, "Status", status),
        ("site-1", operator_pb2_grpc.OperatorServiceStub, "StartJob", codec.SIGNED.to_wire(plan_of(house))),
        (DESK, operator_pb2_grpc.OperatorServiceStub, "Status", status),
        ("operator", silo_pb2_grpc.SiloServiceStub, "UploadStatus", codec.FETCH.to_wire(m.Fetch(bytes(32)))),
        (DESK, silo_pb2_grpc.SiloServiceStub, "UploadStatus", codec.FETCH.to_wire(m.Fetch(bytes(32)))),
        ("site-1", query_pb2_grpc.QueryServiceStub, "GetRelease", codec.GET_RELEASE.to_wire(q.GetRelease())),
        ("operator", query_pb2_grpc.QueryServiceStub, "GetRelease", codec.GET_RELEASE.to_wire(q.GetRelease())),
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


def connected(status: o.Status, name: str) -> bool:
    return next(silo.connected for silo in status.silos if silo.name == name)


# On a machine under load a silo may take long to come back, and the round would begin without it.
NO_HURRY = {"gather_seconds": 120.0, "train_seconds": 120.0, "step_seconds": 120.0}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_coordinator_that_dies_in_a_round_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    house = found(tmp_path)

    async def scenario() -> None:
        process = start(house)
        with agents(house, *SILOS) as silos:
            with OperatorClient(house.operator) as client:
                client.start_job(plan_of(house, training__rounds=6, deadlines=NO_HURRY))
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
