"""Connections from anybody, before any certificate is shown, leave the coordinator's files and members alone."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from transport_world import HERE, RETINA, SILO, SILO_STUB, raw_channel

from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract.authority import Address
from feddrm.contract.identity import Role
from feddrm.transport import options
from feddrm.transport.client import translated

FILES = 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """A coordinator that may open few files, as the usual 1024 are few for who opens connections."""
    credentials = RETINA.member(Role.COORDINATOR, "coordinator")
    for name, data in (
        ("root.pem", credentials.root),
        ("server.pem", credentials.certificate),
        ("server.key", credentials.key),
    ):
        (tmp_path / name).write_bytes(data)
    process = subprocess.Popen(
        [sys.executable, str(HERE / "transport_hello_server.py"), str(tmp_path), "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
    )
    assert process.stdout is not None
    try:
        yield process, Address("127.0.0.1", int(process.stdout.readline()))
    finally:
        process.terminate()
        process.communicate(timeout=60)


def greet(channel: grpc.Channel, address: Address) -> m.Hello:
    with translated(address):
        reply = SILO_STUB(channel).Hello(codec.HELLO_REQUEST.to_wire(m.HelloRequest("feddrm test")), timeout=60)
    return codec.HELLO.from_wire(reply)


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_strangers_connections_take_neither_files_nor_members_away(
    server: tuple[subprocess.Popen[str], Address],
) -> None:
    process, address = server
    descriptors = Path(f"/proc/{process.pid}/fd")
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(raw_channel(address, SILO))
        assert greet(channel, address).software == "hospital-a"
        for _ in range(2 * FILES):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection((address.host, address.port), timeout=5))
        most, until = 0, time.monotonic() + 1.0
        while time.monotonic() < until:
            most = max(most, len(list(descriptors.iterdir())))
            time.sleep(0.05)
        assert FILES // 4 < most <= FILES - FILES // 4
        assert greet(channel, address).software == "hospital-a"


def test_a_handshake_has_to_be_quick() -> None:
    """gRPC's two minutes would let one stranger hold a place with a packet every two minutes."""
    assert 1_000 <= int(dict(options.server_options())["grpc.server_handshake_timeout_ms"]) <= 15_000


def test_connections_never_need_more_files_than_there_are() -> None:
    for files in (64, 256, 1024, 4096, 1 << 20):
        assert 0 < options.most_connections(files) <= 2048
        assert files - options.most_connections(files) >= min(files // 4, 256)
