"""A real mutual-TLS greeting between two processes, and everybody who must not get one."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from transport_hello_server import ROSTER
from transport_world import (
    HASH,
    NOW,
    OPERATOR_STUB,
    OTHER,
    QUERY_STUB,
    RETINA,
    ROOT,
    SILO,
    SILO_STUB,
    hello,
    raw_channel,
    ready,
    start,
)

from feddrm.contract import codec, codec_operator
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract.authority import DAY_MS, Address, pem
from feddrm.contract.errors import (
    ExitCode,
    NotAuthorisedError,
    UnreachableError,
    VerificationError,
)
from feddrm.contract.identity import Credentials, Role
from feddrm.transport.client import make_sync_channel, probe_tls, translated


def test_two_processes_greet(address: Address) -> None:
    reply = hello(make_sync_channel(address, SILO), address)
    assert (reply.software, reply.federation, reply.roster) == ("hospital-a", "retina", ROSTER)


def test_the_server_speaks_tls_1_3_and_wants_a_certificate(address: Address) -> None:
    facts = probe_tls(address, ROOT)
    assert (facts.version, facts.client_auth) == ("TLSv1.3", True)


@pytest.mark.parametrize(
    "credentials",
    [
        None,
        OTHER.member(Role.SILO, "hospital-a", root=ROOT),
        RETINA.member(Role.SILO, "hospital-a", made=NOW - 20 * DAY_MS, days=10),
    ],
    ids=["no certificate", "another federation's", "expired"],
)
def test_the_server_refuses_a_connection(address: Address, credentials: Credentials | None) -> None:
    with pytest.raises(UnreachableError, match="closed the connection"):
        hello(raw_channel(address, credentials), address)
    if credentials is not None:
        with pytest.raises(VerificationError, match=r"not issued by this federation|expired on"):
            make_sync_channel(address, credentials)


def test_a_member_refuses_the_server_of_another_federation(address: Address) -> None:
    with pytest.raises(VerificationError, match="does not belong to this federation"):
        hello(make_sync_channel(address, OTHER.member(Role.SILO, "hospital-a")), address)
    with pytest.raises(VerificationError, match="not acceptable"):
        probe_tls(address, pem(OTHER.authority.certificate))


def test_a_role_reaches_only_its_own_service(address: Address) -> None:
    roles = {
        Role.SILO: SILO_STUB,
        Role.OPERATOR: OPERATOR_STUB,
        Role.QUERIER: QUERY_STUB,
    }
    for role in roles:
        credentials = RETINA.member(role, "somebody")
        for wanted, stub in roles.items():
            if wanted is not role:
                with pytest.raises(NotAuthorisedError, match="Not authorised"):
                    hello(make_sync_channel(address, credentials), address, stub)


def test_a_silos_certificate_on_an_operator_call(address: Address) -> None:
    request = codec_operator.STOP_JOB.to_wire(o.StopJob(HASH, "because"))
    with make_sync_channel(address, SILO) as channel, pytest.raises(NotAuthorisedError), translated(address):
        OPERATOR_STUB(channel).StopJob(request, timeout=60)


def test_a_removed_member_is_refused_even_on_its_open_stream(address: Address, directory: Path) -> None:
    def events() -> Iterator[Any]:
        yield codec.SILO_EVENT.to_wire(ready(1))
        while not (directory / "removed").exists():
            time.sleep(0.01)
        yield codec.SILO_EVENT.to_wire(ready(2))
        time.sleep(30)

    credentials = RETINA.member(Role.SILO, "hospital-z")
    with make_sync_channel(address, credentials) as channel:
        replies = SILO_STUB(channel).Attend(events(), timeout=60)
        assert codec.COORDINATOR_EVENT.from_wire(next(replies)) == m.Notice("round 1")
        (directory / "removed").write_text("hospital-z")
        with pytest.raises(NotAuthorisedError), translated(address):
            next(replies)
        with pytest.raises(NotAuthorisedError):
            hello(make_sync_channel(address, credentials), address)


def test_tls_1_2_gets_no_answer(address: Address, tmp_path: Path) -> None:
    """The handshake itself succeeds, which is why the guard has to look."""
    (tmp_path / "own.pem").write_bytes(SILO.certificate + SILO.key)
    context = ssl.create_default_context(cadata=ROOT.decode())
    context.load_cert_chain(tmp_path / "own.pem")
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((address.host, address.port), 10) as plain:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with context.wrap_socket(plain, server_hostname=address.host) as tls:
            assert tls.version() == "TLSv1.2"
            assert b"not-authorised" in http2_hello(tls)
    with socket.create_connection((address.host, address.port), 10) as plain:
        context.maximum_version = ssl.TLSVersion.TLSv1_3
        with context.wrap_socket(plain, server_hostname=address.host) as tls:
            assert tls.version() == "TLSv1.3"
            answer = http2_hello(tls)
            assert b"hospital-a" in answer
            assert b"not-authorised" not in answer


def http2_hello(tls: ssl.SSLSocket) -> bytes:
    """The raw reply to a hand-made HTTP/2 call of Hello: gRPC offers no way to ask for an older TLS."""

    def text(value: bytes) -> bytes:
        return bytes([len(value)]) + value

    headers = b"".join(
        b"\x00" + text(name) + text(value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":path", b"/feddrm.v1.SiloService/Hello"),
            (b":authority", b"127.0.0.1"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    body = codec.HELLO_REQUEST.encode(m.HelloRequest("x"))
    data = b"\x00" + len(body).to_bytes(4) + body

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload

    tls.sendall(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + frame(0, 1, 1, data)
    )
    tls.settimeout(60)
    received = b""
    while True:
        part = tls.recv(65536)
        received += part
        if not part or b"grpc-status" in received:
            return received


def test_a_second_server_on_the_port(address: Address, tmp_path: Path) -> None:
    second = start(tmp_path / "second", RETINA.member(Role.COORDINATOR, "coordinator"), str(address))
    _, error = second.communicate(timeout=60)
    assert second.returncode == ExitCode.ALREADY_RUNNING
    assert f"Another process listens on {address} already." in error


@pytest.mark.parametrize(
    ("credentials", "sentence"),
    [
        (RETINA.member(Role.SILO, "hospital-a"), "made out to|form of"),
        (RETINA.member(Role.COORDINATOR, "coordinator", made=NOW - 20 * DAY_MS), "expired on"),
        (OTHER.member(Role.COORDINATOR, "coordinator", root=ROOT), "not issued by this federation"),
        (OTHER.member(Role.COORDINATOR, "coordinator"), "made out to"),
    ],
    ids=["silo's", "expired", "other root", "other federation"],
)
def test_a_coordinator_does_not_start_with_a_wrong_certificate(
    tmp_path: Path, credentials: Credentials, sentence: str
) -> None:
    process = start(tmp_path / "x", credentials)
    _, error = process.communicate(timeout=60)
    assert process.returncode == ExitCode.VERIFICATION
    assert any(part in error for part in sentence.split("|")), error


def test_a_members_certificate_cannot_serve() -> None:
    """The traps of design section 10: extended key usage and names decide who may be a server."""
    for credentials, sentence in (
        (SILO, "not a coordinator's"),
        (RETINA.member(Role.COORDINATOR, "coordinator", made=NOW - 20 * DAY_MS), "has expired"),
    ):
        server = grpc.server(ThreadPoolExecutor(1))
        tls = grpc.ssl_server_credentials([(credentials.key, credentials.certificate)], ROOT, True)
        port = server.add_secure_port("127.0.0.1:0", tls)
        server.start()
        try:
            address = Address("127.0.0.1", port)
            with pytest.raises(VerificationError, match=sentence):
                hello(make_sync_channel(address, SILO), address)
        finally:
            server.stop(0)


def test_a_server_under_another_name(address: Address) -> None:
    named = Address("localhost", address.port)
    with pytest.raises(VerificationError, match="made for another address"):
        hello(make_sync_channel(named, SILO), named)


def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(UnreachableError, match=r"Nothing listens at 127\.0\.0\.1"):
            hello(make_sync_channel(nobody, SILO), nobody)
        with pytest.raises(UnreachableError, match="No connection"):
            probe_tls(nobody, ROOT)
