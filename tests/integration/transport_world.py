"""Two federations' certificates, and a process that only greets."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric import ec

from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract.authority import DAY_MS, Address, Authority, create_authority, issue, pem
from feddrm.contract.identity import Credentials, Role, Subject, private_pem
from feddrm.transport.client import translated
from feddrm.transport.options import channel_options
from feddrm.v1 import operator_pb2_grpc, query_pb2_grpc, silo_pb2_grpc

SILO_STUB: Any = silo_pb2_grpc.SiloServiceStub
OPERATOR_STUB: Any = operator_pb2_grpc.OperatorServiceStub
QUERY_STUB: Any = query_pb2_grpc.QueryServiceStub
HERE = Path(__file__).parent
NOW = time.time_ns() // 1_000_000
LOCAL = Address("127.0.0.1", 1)
HASH = bytes(range(32))


class Federation:
    def __init__(self, name: str) -> None:
        self.name = name
        self.authority: Authority = create_authority(name, NOW - 50 * DAY_MS)

    def member(
        self,
        role: Role,
        name: str,
        *,
        made: int = NOW,
        days: int = 10,
        root: bytes = b"",
        address: Address | None = None,
    ) -> Credentials:
        key = ec.generate_private_key(ec.SECP256R1())
        address = (address or LOCAL) if role is Role.COORDINATOR else None
        certificate = issue(
            self.authority, key.public_key(), Subject(self.name, role, name), made, days=days, address=address
        )
        return Credentials(root or pem(self.authority.certificate), pem(certificate), private_pem(key))


RETINA = Federation("retina")
OTHER = Federation("cornea")
ROOT = pem(RETINA.authority.certificate)


def start(directory: Path, credentials: Credentials, listen: str = "127.0.0.1:0") -> subprocess.Popen[str]:
    directory.mkdir(exist_ok=True)
    for name, data in (
        ("root.pem", credentials.root),
        ("server.pem", credentials.certificate),
        ("server.key", credentials.key),
    ):
        (directory / name).write_bytes(data)
    return subprocess.Popen(
        [sys.executable, str(HERE / "transport_hello_server.py"), str(directory), listen],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SILO = RETINA.member(Role.SILO, "hospital-a")


@contextlib.contextmanager
def greeting(directory: Path) -> Iterator[Address]:
    """Where a process of the federation retina listens while the block runs."""
    process = start(directory, RETINA.member(Role.COORDINATOR, "coordinator"))
    assert process.stdout is not None
    try:
        yield Address("127.0.0.1", int(process.stdout.readline()))
    finally:
        process.terminate()
        _, log = process.communicate(timeout=60)
        sys.stderr.write(log)


def raw_channel(address: Address, credentials: Credentials | None) -> grpc.Channel:
    """A channel without this side's own checks, as an attacker's."""
    if credentials is None:
        tls = grpc.ssl_channel_credentials(ROOT)
    else:
        tls = grpc.ssl_channel_credentials(credentials.root, credentials.key, credentials.certificate)
    return grpc.secure_channel(str(address), tls, options=channel_options(address))


def hello(channel: grpc.Channel, address: Address, stub: Any = SILO_STUB) -> m.Hello:
    with channel, translated(address):
        reply = stub(channel).Hello(codec.HELLO_REQUEST.to_wire(m.HelloRequest("feddrm test")), timeout=60)
    return codec.HELLO.from_wire(reply)


def ready(number: int) -> m.Ready:
    return m.Ready(bytes(16), b"", number, b"", (), HASH)
