"""Who may call what, for all four kinds of call, without a socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from feddrm.contract.authority import DAY_MS, certificate_hash, create_authority, issue, pem
from feddrm.contract.errors import (
    FeddrmError,
    NotAuthorisedError,
    VerificationError,
)
from feddrm.contract.identity import Role, Subject
from feddrm.transport.guard import Guard
from feddrm.transport.peers import Peer, peer_of
from feddrm.transport.recorder import Recorder, read_recording

NOW = time.time_ns() // 1_000_000
AUTHORITY = create_authority("retina", NOW)
KEY = ec.generate_private_key(ec.SECP256R1()).public_key()


def properties(uri: str = "feddrm://retina/silo/hospital-a", **changes: Sequence[bytes]) -> dict[str, Sequence[bytes]]:
    certificate = issue(AUTHORITY, KEY, Subject("retina", Role.SILO, "hospital-a"), NOW)
    return {
        "ssl_tls_version": [b"TLSv1.3"],
        "peer_uri": [uri.encode()],
        "x509_pem_cert": [pem(certificate)],
        "x509_common_name": [b"operator"],
        "x509_subject_alternative_name": [b"feddrm://retina/operator/operator"],
    } | changes


class Call:
    """Of a servicer context, what the guard uses; `abort` raises like gRPC's."""

    def __init__(self, properties: Mapping[str, Sequence[bytes]]) -> None:
        self._properties = properties
        self.written: list[bytes] = []
        self.aborted: tuple[Any, str, Any] | None = None

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return self._properties

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def abort(self, code: Any, details: str, trailing_metadata: Any) -> None:
        self.aborted = (code, details, trailing_metadata)
        raise grpc.aio.AbortError


def test_a_peer_is_what_its_one_uri_says() -> None:
    peer = peer_of(Call(properties()))
    certificate = issue(AUTHORITY, KEY, Subject("retina", Role.SILO, "hospital-a"), NOW)
    assert (peer.federation, peer.role, peer.name) == ("retina", Role.SILO, "hospital-a")
    assert peer.uri == "feddrm://retina/silo/hospital-a"
    assert len(peer.certificate) == len(certificate_hash(certificate)) == 32
    assert abs(peer.expires_ms - (NOW + 365 * DAY_MS)) < 2000


@pytest.mark.parametrize(
    "changed",
    [
        {},
        properties(ssl_tls_version=[b"TLSv1.2"]),
        properties(ssl_tls_version=[]),
        properties(ssl_tls_version=[b"TLSv1.3", b"TLSv1.3"]),
        properties(peer_uri=[]),
        properties(peer_uri=[b"feddrm://retina/silo/a", b"feddrm://retina/operator/operator"]),
        properties(peer_uri=[b"feddrm://retina/silo/\xff"]),
        properties("feddrm://retina/silo/a/b"),
        properties("feddrm://retina/root/a"),
        properties("https://retina/silo/a"),
        properties("feddrm://retina/silo/"),
        properties("feddrm://retina/silo/hospital-a\n"),
        properties("FEDDRM://retina/silo/a"),
        properties(x509_pem_cert=[]),
        properties(x509_pem_cert=[b"garbage"]),
    ],
)
def test_anything_else_is_nobody(changed: dict[str, Sequence[bytes]]) -> None:
    with pytest.raises(NotAuthorisedError):
        peer_of(Call(changed))


METHOD = "/feddrm.v1.SiloService/Hello"


class Handler:
    """A handler whose messages are bytes in upper case inside."""

    def __init__(self, *, requests: bool, responses: bool, error: Exception | None = None) -> None:
        self.request_streaming, self.response_streaming = requests, responses
        self.request_deserializer = bytes.upper
        self.response_serializer = bytes.lower
        self.error = error
        self.reached: list[bytes] = []
        self.closed = False
        behaviour = {
            (False, False): self.one_one,
            (False, True): self.one_many,
            (True, False): self.many_one,
            (True, True): self.many_many,
        }[requests, responses]
        kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
        for index, kind in enumerate(kinds):
            setattr(self, kind, behaviour if index == 2 * requests + responses else None)

    def reach(self, request: bytes) -> bytes:
        self.reached.append(request)
        if self.error is not None:
            raise self.error
        return request

    async def one_one(self, request: bytes, _: Any) -> bytes:
        return self.reach(request)

    async def one_many(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        try:
            yield self.reach(request)
            yield b"AGAIN"
        finally:
            self.closed = True

    async def many_one(self, requests: AsyncIterator[bytes], _: Any) -> bytes:
        return b"".join([self.reach(request) async for request in requests])

    async def many_many(self, requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        try:
            async for request in requests:
                yield self.reach(request)
        finally:
            self.closed = True


class Details:
    def __init__(self, method: str) -> None:
        self.method = method


async def stream(*items: bytes) -> AsyncIterator[bytes]:
    for item in items:
        yield item


def serve(
    guard: Guard, handler: Handler, call: Call, method: str = METHOD, items: Sequence[bytes] = (b"a", b"b")
) -> Any:
    async def go() -> Any:
        async def continuation(_: Any) -> Any:
            return handler

        wrapped = await guard.intercept_service(continuation, Details(method))
        assert (wrapped.request_streaming, wrapped.response_streaming) == (
            handler.request_streaming,
            handler.response_streaming,
        )
        assert wrapped.request_deserializer is None
        behaviour = wrapped.unary_unary or wrapped.unary_stream or wrapped.stream_unary or wrapped.stream_stream
        return await behaviour(stream(*items) if handler.request_streaming else items[0], call)

    return asyncio.run(go())


KINDS = pytest.mark.parametrize(("requests", "responses"), [(False, False), (False, True), (True, False), (True, True)])
ADMIT = Guard("retina", lambda _: True)


@KINDS
def test_all_four_kinds_pass_what_is_allowed(requests: bool, responses: bool, tmp_path: Path) -> None:
    handler, call = Handler(requests=requests, responses=responses), Call(properties())
    with Recorder(tmp_path / "recording") as recorder:
        result = serve(Guard("retina", lambda _: True, recorder), handler, call)
    expected_in = [b"a", b"b"] if requests else [b"a"]
    expected_out = {
        (False, False): [b"a"],
        (False, True): [b"a", b"again"],
        (True, False): [b"ab"],
        (True, True): [b"a", b"b"],
    }[requests, responses]
    assert (call.written if responses else [result]) == expected_out
    assert handler.reached == [item.upper() for item in expected_in]
    records = list(read_recording(tmp_path / "recording"))
    assert [r.data for r in records if r.direction == "received"] == expected_in
    assert [r.data for r in records if r.direction == "sent"] == expected_out
    assert {(r.method, r.peer) for r in records} == {(METHOD, "feddrm://retina/silo/hospital-a")}


@KINDS
@pytest.mark.parametrize(
    ("guard", "method", "changed"),
    [
        (ADMIT, "/feddrm.v1.SiloService/New", properties()),
        (ADMIT, "/feddrm.v1.OperatorService/StartJob", properties()),
        (ADMIT, "/feddrm.v1.QueryService/Ask", properties()),
        (ADMIT, METHOD, properties("feddrm://cornea/silo/hospital-a")),
        (ADMIT, METHOD, properties("feddrm://retina/operator/operator")),
        (ADMIT, METHOD, properties("feddrm://retina/coordinator/coordinator")),
        (ADMIT, METHOD, properties(ssl_tls_version=[b"TLSv1.2"])),
        (ADMIT, METHOD, {}),
        (Guard("retina", lambda _: False), METHOD, properties()),
        (Guard("retina", lambda _: True, now_ms=lambda: NOW + 400 * DAY_MS), METHOD, properties()),
    ],
)
def test_all_four_kinds_deny_before_anything_is_parsed_or_recorded(
    requests: bool, responses: bool, guard: Guard, method: str, changed: dict[str, Sequence[bytes]]
) -> None:
    handler, call = Handler(requests=requests, responses=responses), Call(changed)
    handler.request_deserializer = lambda _: pytest.fail("parsed")  # type: ignore[assignment]
    with pytest.raises(grpc.aio.AbortError):
        serve(guard, handler, call, method)
    assert handler.reached == []
    assert call.aborted is not None
    assert call.aborted[:2] == (grpc.StatusCode.PERMISSION_DENIED, "Not authorised.")


@KINDS
@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (KeyError("secret"), grpc.StatusCode.INTERNAL, "internal"),
        (FeddrmError("secret"), grpc.StatusCode.INTERNAL, "internal"),
        (VerificationError("secret"), grpc.StatusCode.FAILED_PRECONDITION, "verification"),
    ],
)
def test_all_four_kinds_hide_what_went_wrong(
    requests: bool, responses: bool, error: Exception, code: Any, kind: str
) -> None:
    handler, call = Handler(requests=requests, responses=responses, error=error), Call(properties())
    with pytest.raises(grpc.aio.AbortError):
        serve(ADMIT, handler, call)
    assert call.aborted is not None
    assert call.aborted[0] is code
    assert call.aborted[2] == (("feddrm-error", kind),)
    assert "secret" not in str(call.aborted)
    assert handler.closed is responses


@pytest.mark.parametrize(("requests", "responses"), [(True, False), (True, True)])
def test_a_member_that_is_removed_in_the_middle_of_a_stream(requests: bool, responses: bool) -> None:
    asked: list[Peer] = []

    def admit(peer: Peer) -> bool:
        asked.append(peer)
        return len(asked) <= 3

    handler, call = Handler(requests=requests, responses=responses), Call(properties())
    with pytest.raises(grpc.aio.AbortError):
        serve(Guard("retina", admit), handler, call, items=[b"a"] * 9)
    assert 1 <= len(handler.reached) <= 2


def test_a_cancelled_stream_closes_its_generator_at_once() -> None:
    class Stuck(Call):
        async def write(self, data: bytes) -> None:
            raise asyncio.CancelledError

    handler = Handler(requests=False, responses=True)
    with pytest.raises(asyncio.CancelledError):
        serve(ADMIT, handler, Stuck(properties()))
    assert handler.closed


def test_an_unknown_service_stays_unknown() -> None:
    async def nothing(_: Any) -> None:
        return None

    assert asyncio.run(ADMIT.intercept_service(nothing, Details("/x/y"))) is None
