"""Streams, uploads and errors over real mutual TLS between two processes."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from transport_hello_server import SECRET, SUM
from transport_world import HASH, OPERATOR_STUB, QUERY_STUB, RETINA, SILO, SILO_STUB, ready

from feddrm.contract import codec, codec_operator
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract import query_messages as q
from feddrm.contract.authority import Address
from feddrm.contract.chunks import ChunkAssembler, blob_hash, iter_chunks
from feddrm.contract.errors import (
    BudgetError,
    FeddrmError,
    InputError,
    UnreachableError,
)
from feddrm.contract.identity import Role
from feddrm.transport.client import BusyError, error_of, make_sync_channel, translated
from feddrm.transport.recorder import read_recording


def test_a_stream_upload_and_fetch(address: Address) -> None:
    with make_sync_channel(address, SILO) as channel, translated(address):
        stub = SILO_STUB(channel)
        data = os.urandom(3_000_000)
        receipt = stub.Upload((codec.CHUNK.to_wire(chunk) for chunk in iter_chunks(data)), timeout=60)
        assert codec.UPLOAD_RECEIPT.from_wire(receipt) == m.UploadReceipt(blob_hash(data), len(data), True)
        assembler = ChunkAssembler(blob_hash(SUM), limit=len(SUM))
        for chunk in stub.Fetch(codec.FETCH.to_wire(m.Fetch(assembler.blob)), timeout=60):
            assembler.add(codec.CHUNK.from_wire(chunk))
        assert assembler.data() == SUM
        replies = stub.Attend((codec.SILO_EVENT.to_wire(ready(n)) for n in (1, 2)), timeout=60)
        assert [codec.COORDINATOR_EVENT.from_wire(r) for r in replies] == [m.Notice("round 1"), m.Notice("round 2")]


def test_a_stream_that_the_client_drops_is_cleaned_up_at_once(address: Address, directory: Path) -> None:
    (directory / "attend-ended").unlink(missing_ok=True)

    over = threading.Event()

    def events() -> Iterator[Any]:
        yield codec.SILO_EVENT.to_wire(ready(1))
        over.wait()

    with make_sync_channel(address, SILO) as channel:
        replies = SILO_STUB(channel).Attend(events())
        next(replies)
        replies.cancel()
        try:
            while not (directory / "attend-ended").exists():
                time.sleep(0.02)
        finally:
            over.set()


def test_an_internal_error_tells_nothing(address: Address) -> None:
    with make_sync_channel(address, SILO) as channel:
        replies = SILO_STUB(channel).Attend(iter([codec.SILO_EVENT.to_wire(ready(13))]), timeout=60)
        with pytest.raises(grpc.RpcError) as caught:
            list(replies)
    assert SECRET not in str(caught.value) + repr(caught.value)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "Internal error" in str(error_of(caught.value, address))


def test_a_malformed_request_is_refused_by_name(address: Address) -> None:
    with make_sync_channel(address, SILO) as channel:
        for method, data in (("Hello", b"\xff\xff"), ("Hello", b"\x0a\x03a\x1b["), ("Fetch", b"\x0a\x01x")):
            call = channel.unary_unary(f"/feddrm.v1.SiloService/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                call(data, timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(UnreachableError, match="another version"), translated(address):
            channel.unary_unary("/feddrm.v1.SiloService/Nothing")(b"", timeout=60)


@pytest.mark.parametrize(("count", "kind"), [(1, BusyError), (2, BudgetError), (3, InputError)])
def test_errors_arrive_as_what_they_are_with_a_fixed_sentence(
    address: Address, count: int, kind: type[FeddrmError]
) -> None:
    credentials = RETINA.member(Role.QUERIER, "desk")
    request = codec.ROUTE_REQUEST.to_wire(q.RouteRequest(HASH, (bytes(4),) * count))
    with make_sync_channel(address, credentials) as channel, pytest.raises(kind) as caught, translated(address):
        QUERY_STUB(channel).Route(request, timeout=60)
    assert type(caught.value) is kind
    assert not any(detail in str(caught.value) for detail in ("11 of 10", "all used", SECRET))


def test_the_operator_sees_what_is_wrong_with_its_input(address: Address) -> None:
    credentials = RETINA.member(Role.OPERATOR, "operator")
    request = codec_operator.STATUS_REQUEST.to_wire(o.StatusRequest())
    with (
        make_sync_channel(address, credentials) as channel,
        pytest.raises(InputError, match=r"plan\.toml: rounds is missing"),
        translated(address),
    ):
        OPERATOR_STUB(channel).Status(request, timeout=60)


def test_an_oversized_message_is_refused(address: Address) -> None:
    with make_sync_channel(address, SILO) as channel:
        call = channel.unary_unary("/feddrm.v1.SiloService/Hello")
        with pytest.raises(FeddrmError, match="size limit"), translated(address):
            call(bytes((32 << 20) + 1), timeout=60)


def test_everything_is_in_the_recording(address: Address, directory: Path) -> None:
    marker = hashlib.sha256(b"marker").digest()
    event = m.Ready(bytes(16), marker, 1, b"", (), HASH)
    with make_sync_channel(address, SILO) as channel, translated(address):
        stub = SILO_STUB(channel)
        list(stub.Attend(iter([codec.SILO_EVENT.to_wire(event)]), timeout=60))
    records = [r for r in read_recording(directory / "recording") if r.method.endswith("Attend")]
    received = [r for r in records if r.direction == "received" and marker in r.data]
    assert [codec.SILO_EVENT.decode(r.data) for r in received] == [event]
    assert received[0].peer == "feddrm://retina/silo/hospital-a"
    assert codec.COORDINATOR_EVENT.decode([r for r in records if r.direction == "sent"][-1].data) == m.Notice("round 1")
