"""A real mutual-TLS greeting between two processes, and everybody who must not get one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from transport_hello_server import ROSTER, SECRET, SUM

from feddrm.contract import codec, codec_operator
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract import query_messages as q
from feddrm.contract.authority import DAY_MS, Address, Authority, create_authority, issue, pem
from feddrm.contract.chunks import ChunkAssembler, blob_hash, iter_chunks
from feddrm.contract.errors import (
    BudgetError,
    ExitCode,
    FeddrmError,
    InputError,
    NotAuthorisedError,
    UnreachableError,
    VerificationError,
)
from feddrm.contract.identity import Credentials, Role, Subject, private_pem
from feddrm.transport.client import BusyError, error_of, make_sync_channel, probe_tls, translated
from feddrm.transport.options import channel_options
from feddrm.transport.recorder import read_recording
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


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("coordinator")


@pytest.fixture(scope="module")
def address(directory: Path) -> Iterator[Address]:
    process = start(directory, RETINA.member(Role.COORDINATOR, "coordinator"))
    assert process.stdout is not None
    try:
        yield Address("127.0.0.1", int(process.stdout.readline()))
    finally:
        process.terminate()
        _, log = process.communicate(timeout=60)
        sys.stderr.write(log)


SILO = RETINA.member(Role.SILO, "hospital-a")


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


def ready(number: int) -> m.Ready:
    return m.Ready(bytes(16), b"", number, b"", (), HASH)


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


def test_loopback_ignores_a_proxy(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert hello(make_sync_channel(address, SILO), address).software == "hospital-a"


class Proxy(threading.Thread):
    """An HTTP proxy that resolves every name to the coordinator, as a hospital's proxy would resolve it."""

    def __init__(self, target: Address) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.requests: list[bytes] = []

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.requests.append(client.recv(4096).split(b"\r\n")[0])
            upstream = socket.create_connection((self._target.host, self._target.port))
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for source, sink in ((client, upstream), (upstream, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY"])
def test_a_hospitals_proxy_is_used_however_it_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    named = Address("agg.example.org", 8002)
    process = start(tmp_path, RETINA.member(Role.COORDINATOR, "coordinator", address=named))
    assert process.stdout is not None
    proxy = Proxy(Address("127.0.0.1", int(process.stdout.readline())))
    proxy.start()
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "grpc_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
    try:
        assert hello(make_sync_channel(named, SILO), named).software == "hospital-a"
        assert proxy.requests == [b"CONNECT agg.example.org:8002 HTTP/1.1"]
        monkeypatch.setenv(variable.swapcase().replace("https", "no").replace("HTTPS", "NO"), ".example.org")
        with pytest.raises(UnreachableError):
            hello(make_sync_channel(named, SILO), named)
        assert len(proxy.requests) == 1
    finally:
        proxy.close()
        process.terminate()
        process.communicate(timeout=60)


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
