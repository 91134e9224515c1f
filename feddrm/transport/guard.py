"""The one wrapper over every RPC of a server: who may call, what is recorded, what an error looks like outside.

Deny by default. A method that ROLE_OF_METHOD does not list, a peer whose certificate is of another role or
federation, and one that the roster check turns down are refused before a byte of the request is parsed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from feddrm.contract.errors import FeddrmError, MalformedError, NotAuthorisedError
from feddrm.transport.peers import ROLE_OF_METHOD, Peer, largest_request, peer_of
from feddrm.transport.recorder import Direction, Recorder
from feddrm.transport.status import ERROR_KEY, INTERNAL, status_of

log = logging.getLogger(__name__)
Admit = Callable[[Peer], bool]


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Authorises, records and translates for all four kinds of handlers; handlers must be async.

    Args:
        federation: the only federation whose certificates are accepted.
        admit: whether the roster lists this very certificate under this role and name; asked at the start of a call and
            again for every message of a stream, so that a removed member's open stream ends too.
    """

    def __init__(
        self, federation: str, admit: Admit, recorder: Recorder | None = None, *, now_ms: Callable[[], int] = wall_clock
    ) -> None:
        self._federation = federation
        self._admit = admit
        self._recorder = recorder
        self._now_ms = now_ms

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Wrap the handler that is about to serve a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        make = _HANDLERS[handler.request_streaming, handler.response_streaming]
        guarded = _Guarded(self, handler_call_details.method, handler)

        async def serve(request: Any, context: Any) -> Any:  # gRPC wants a coroutine function, not an object
            return await guarded(request, context)

        return make(serve)

    def authorise(self, method: str, context: Any) -> Peer:
        """The caller, if it may call `method`.

        Raises:
            NotAuthorisedError: it may not.
        """
        role = ROLE_OF_METHOD.get(method)
        if role is None:
            raise NotAuthorisedError(f"No role may call {method}.")
        peer = peer_of(context)
        if peer.federation != self._federation:
            raise NotAuthorisedError(f"{peer.name} belongs to federation {peer.federation}.")
        if peer.role is not role:
            raise NotAuthorisedError(f"{method} is for the role {role}, not for {peer.uri}.")
        self.recheck(peer)
        return peer

    def recheck(self, peer: Peer) -> None:
        """Check what may change while a call lasts.

        Raises:
            NotAuthorisedError: the roster no longer lists the peer's certificate, or it has expired.
        """
        if not self._admit(peer):
            raise NotAuthorisedError(f"The roster does not list this certificate of {peer.uri}.")
        if self._now_ms() >= peer.expires_ms:
            raise NotAuthorisedError(f"The certificate of {peer.uri} has expired.")

    def record(self, direction: Direction, method: str, peer: Peer, data: bytes) -> None:
        """Record one message where a recorder was given."""
        if self._recorder is not None:
            self._recorder.write(direction, method, peer.uri, data)


class _Guarded:
    """One method's handler with the guard around it."""

    def __init__(self, guard: Guard, method: str, handler: Any) -> None:
        self._guard = guard
        self._method = method
        self._largest = largest_request(method)
        self._parse = handler.request_deserializer
        self._serialise = handler.response_serializer
        self._behaviour = next(
            behaviour
            for behaviour in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
            if behaviour is not None
        )
        self._receive = self._receive_all if handler.request_streaming else self._receive_one
        self._respond = self._stream if handler.response_streaming else self._answer

    async def __call__(self, request: Any, context: Any) -> Any:
        peer: Peer | None = None
        try:
            peer = self._guard.authorise(self._method, context)
            return await self._respond(peer, self._receive(peer, request), context)
        except FeddrmError as error:
            log.info("%s refused to %s: %s", self._method, peer.uri if peer else context.peer(), error)
            status = status_of(error, peer.role if peer else None)
        except grpc.aio.AbortError:
            raise
        except Exception:
            # The outermost frame of a call: without this gRPC would send the exception's text to the caller.
            log.exception("%s failed", self._method)
            status = INTERNAL
        return await context.abort(status.code, status.sentence, ((ERROR_KEY, status.kind),))

    def _receive_one(self, peer: Peer, data: bytes) -> Any:
        if len(data) > self._largest:
            raise MalformedError(
                f"A request to {self._method} of {len(data)} bytes, where {self._largest} are allowed."
            )
        self._guard.record("received", self._method, peer, data)
        try:
            return self._parse(data)
        except DecodeError as error:
            raise MalformedError(f"A request to {self._method} is no protobuf message of its type.") from error

    async def _receive_all(self, peer: Peer, stream: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in stream:
            self._guard.recheck(peer)
            yield self._receive_one(peer, data)

    async def _answer(self, peer: Peer, request: Any, context: Any) -> bytes:
        return self._send(peer, await self._behaviour(request, context))

    async def _stream(self, peer: Peer, request: Any, context: Any) -> None:
        # Written from here instead of yielded: a generator that a cancelled call leaves suspended would be closed, and
        # its `finally` run, only when the garbage collector finds it.
        async with aclosing(self._behaviour(request, context)) as responses:
            async for response in responses:
                self._guard.recheck(peer)
                await context.write(self._send(peer, response))

    def _send(self, peer: Peer, response: Any) -> bytes:
        data: bytes = self._serialise(response)
        self._guard.record("sent", self._method, peer, data)
        return data


_HANDLERS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
