"""Keepalive, at a sixtieth of its real times: an idle stream stays, and would not if only one end were configured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from feddrm.contract.authority import Address
from feddrm.transport.options import Options, channel_options, server_options

SPEED = 60
SECONDS = 4.0
PATIENCE = 60.0


def faster(options: Options) -> list[tuple[str, Any]]:
    timed = {"grpc.keepalive_time_ms", "grpc.http2.min_ping_interval_without_data_ms"}
    return [(name, int(value) // SPEED if name in timed else value) for name, value in options]


async def idle_stream(server_side: Sequence[tuple[str, Any]], seconds: float) -> grpc.StatusCode:
    """How a stream that says nothing after its first message ends within some seconds."""

    async def quiet(_: bytes, context: Any) -> None:
        await context.write(b"hello")
        await asyncio.sleep(2 * PATIENCE)

    server = grpc.aio.server(options=server_side)
    handler = grpc.unary_stream_rpc_method_handler(quiet)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("quiet", {"stream": handler}),))
    address = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(str(address), options=faster(channel_options(address))) as channel:
            call = channel.unary_stream("/quiet/stream")(b"", timeout=seconds)
            assert await call.read() == b"hello"
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()
            return await call.code()
    finally:
        await server.stop(0)


def test_an_idle_stream_outlives_many_pings() -> None:
    assert asyncio.run(idle_stream(faster(server_options()), SECONDS)) is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_server_with_grpcs_defaults_would_cut_it_off() -> None:
    bare = [option for option in server_options() if "ping" not in option[0] and "keepalive" not in option[0]]
    assert asyncio.run(idle_stream(bare, PATIENCE)) is grpc.StatusCode.UNAVAILABLE
