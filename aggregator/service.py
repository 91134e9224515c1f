"""The three gRPC services, thin: decode, call, encode. feddrm.transport has checked the caller's role before."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

import grpc.aio

from aggregator.blobs import SUMS, TRUNKS
from aggregator.events import JobStarted, JobStopped, ReleaseOrdered, RosterChanged
from aggregator.hub import Hub
from aggregator.limits import RateLimit
from aggregator.relay import Relays
from aggregator.router import Serving
from feddrm.contract import codec, codec_operator
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract import query_messages as q
from feddrm.contract.errors import BudgetError, InputError
from feddrm.contract.identity import Role
from feddrm.contract.names import SiloId
from feddrm.contract.roster import Roster
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import verify_plan
from feddrm.contract.tickets import TICKET_LIFETIME_MS, Ticket, issue_ticket, verify_ticket
from feddrm.transport.peers import Peer, peer_of
from feddrm.transport.status import NoReleaseError, ReleaseChangedError
from feddrm.v1 import operator_pb2_grpc, query_pb2_grpc, silo_pb2_grpc

T = TypeVar("T")
SOFTWARE: Final = "feddrm-aggregator"


class Office:
    """What the services share.

    Args:
        install: makes a new roster the server directory's own, durably.
        daily_queries: embeddings that one querier may have routed in a day (UTC).
        queries_per_second: its steady rate; bursts of a hundred seconds' worth, and of one full batch, pass.
    """

    def __init__(
        self,
        hub: Hub,
        relays: Relays,
        *,
        roster: Roster,
        signed_roster: Signed,
        round_key: Any,
        install: Callable[[Signed], object],
        daily_queries: int,
        queries_per_second: float,
    ) -> None:
        self.hub = hub
        self.relays = relays
        self.install = install
        self.round_key = round_key
        self.daily_queries = daily_queries
        # A batch of routes that exceeds the burst would never pass.
        burst = max(float(codec.MAXIMUM_ROUTES), 100 * queries_per_second)
        self.routes = RateLimit(queries_per_second, burst, "routes")
        self.asks = RateLimit(queries_per_second, burst, "asks")
        self.set_roster(roster, signed_roster)

    def set_roster(self, roster: Roster, signed: Signed) -> None:
        """Take up a roster: from now on it says who may call."""
        self.roster = roster
        self.signed_roster = signed
        self._certificates = {(str(member.role), member.name): member.certificate for member in roster.members}

    def admit(self, peer: Peer) -> bool:
        """Whether the roster lists this very certificate. The root alone vouches for the operator's."""
        if peer.role is Role.OPERATOR:
            return True
        return self._certificates.get((peer.role.value, peer.name)) == peer.certificate

    def hello(self, request: Any) -> Any:
        """Any member's greeting."""
        codec.HELLO_REQUEST.from_wire(request)
        return codec.HELLO.to_wire(m.Hello(SOFTWARE, self.roster.federation, now_ms(), self.signed_roster))

    async def serving(self) -> Serving:
        """The release in service.

        Raises:
            NoReleaseError: there is none yet.
        """
        serving = await self.hub.run(lambda engine: engine.serving)
        if serving is None:
            raise NoReleaseError("No release is in service yet.")
        return serving


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


async def _decoded(requests: AsyncIterator[Any], decode: Callable[[Any], T]) -> AsyncIterator[T]:
    async for request in requests:
        yield decode(request)


class SiloService(silo_pb2_grpc.SiloServiceServicer):
    """What silos call."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def Hello(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Greeting."""
        return self._office.hello(request)

    async def Attend(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The control stream."""
        events = _decoded(requests, codec.SILO_EVENT.from_wire)
        async with contextlib.aclosing(self._office.hub.attend(peer_of(context).name, events)) as outgoing:
            async for message in outgoing:
                yield message

    async def Upload(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: N802
        """A masked input."""
        chunks = _decoded(requests, codec.CHUNK.from_wire)
        return codec.UPLOAD_RECEIPT.to_wire(await self._office.hub.upload(peer_of(context).name, chunks))

    async def UploadStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Where an upload goes on."""
        blob = codec.FETCH.from_wire(request).blob
        return codec.UPLOAD_RECEIPT.to_wire(await self._office.hub.upload_status(peer_of(context).name, blob))

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        """A published sum. Masked inputs are kept elsewhere and never leave."""
        fetch = codec.FETCH.from_wire(request)
        async with contextlib.aclosing(self._office.hub.fetch(SUMS, fetch.blob, fetch.offset)) as chunks:
            async for chunk in chunks:
                yield codec.CHUNK.to_wire(chunk)

    async def Serve(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The query relay."""
        events = _decoded(requests, codec.SERVE_EVENT.from_wire)
        async with contextlib.aclosing(self._office.relays.serve(peer_of(context).name, events)) as outgoing:
            async for query in outgoing:
                yield codec.SEALED_QUERY.to_wire(query)


class OperatorService(operator_pb2_grpc.OperatorServiceServicer):
    """What operators call. A connection alone starts nothing: plans and rosters carry the operator's own signature."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def Hello(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Greeting."""
        return self._office.hello(request)

    async def PublishRoster(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """A newer roster."""
        signed = codec.SIGNED.from_wire(request)
        await self._office.hub.submit(RosterChanged(signed))
        await self._office.hub.run(lambda _: self._office.install(signed))
        roster = await self._office.hub.run(lambda engine: engine.coordinator.roster)
        self._office.set_roster(roster, signed)
        return codec_operator.ROSTER_RECEIPT.to_wire(o.RosterReceipt(roster.version))

    async def StartJob(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Start a signed plan."""
        signed = codec.SIGNED.from_wire(request)
        await self._office.hub.submit(JobStarted(signed))
        roster = self._office.roster
        plan = verify_plan(signed, federation=roster.federation, operator=roster.operator)
        return await self._receipt(plan.hash)

    async def StopJob(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Stop the running job."""
        stop = codec_operator.STOP_JOB.from_wire(request)
        await self._office.hub.submit(JobStopped(stop.plan, stop.reason))
        return await self._receipt(stop.plan)

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """The newest job."""
        wanted = codec_operator.STATUS_REQUEST.from_wire(request).plan
        status = await self._status()
        if wanted and wanted != status.plan:
            raise InputError("That is not the newest job.", remedy="Leave the plan out to see the newest one.")
        return codec_operator.STATUS.to_wire(status)

    async def ListReleases(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """All releases, newest first."""
        codec_operator.STATUS_REQUEST.from_wire(request)
        found = await self._office.hub.run(lambda engine: tuple(engine.coordinator.releases.candidates.values()))
        return codec_operator.RELEASE_LIST.to_wire(o.ReleaseList(tuple(entry.summary() for entry in reversed(found))))

    async def PublishRelease(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Put a release into service."""
        wanted = codec_operator.PUBLISH_RELEASE.from_wire(request).id
        await self._office.hub.submit(ReleaseOrdered(wanted))
        found = await self._office.hub.run(lambda engine: engine.coordinator.releases.candidates[wanted])
        return codec_operator.RELEASE_SUMMARY.to_wire(found.summary())

    async def _status(self) -> o.Status:
        capacity = self._office.relays.capacity()
        return await self._office.hub.run(lambda engine: engine.status(capacity))

    async def _receipt(self, plan: bytes) -> Any:
        return codec_operator.JOB_RECEIPT.to_wire(o.JobReceipt(plan, (await self._status()).state))


class QueryService(query_pb2_grpc.QueryServiceServicer):
    """What queriers call: a trunk, silos' names, and ciphertext."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def Hello(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Greeting."""
        return self._office.hello(request)

    async def GetRelease(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """The release in service."""
        codec.GET_RELEASE.from_wire(request)
        return codec.QUERIER_RELEASE.to_wire((await self._office.serving()).querier)

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        """A released trunk. Heads are kept elsewhere and never leave."""
        fetch = codec.FETCH.from_wire(request)
        async with contextlib.aclosing(self._office.hub.fetch(TRUNKS, fetch.blob, fetch.offset)) as chunks:
            async for chunk in chunks:
                yield codec.CHUNK.to_wire(chunk)

    async def Route(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Silos' names for coarse embeddings."""
        wanted = codec.ROUTE_REQUEST.from_wire(request)
        querier, office = peer_of(context).name, self._office
        serving = await office.serving()
        if wanted.release != serving.release:
            raise ReleaseChangedError("Another release is in service.", remedy="Fetch it first.")
        count = len(wanted.codes)
        office.routes.charge(querier, count, time.monotonic())
        today = now_ms() // 86_400_000
        limit = office.daily_queries
        if not await office.hub.run(lambda engine: engine.store.charge_queries(querier, today, count, limit)):
            raise BudgetError(f"{querier} has used up its {limit} routes of today.")
        rows = serving.route(wanted.codes, office.relays.eligible(serving.release))
        reply = tuple(q.RouteRow(tuple(self._route(querier, name, serving) for name in names)) for names in rows)
        return codec.ROUTE_REPLY.to_wire(q.RouteReply(reply))

    def _route(self, querier: str, silo: str, serving: Serving) -> q.Route:
        """A ticket of its own for each silo, so that none learns whether another one is asked, too."""
        return q.Route(SiloId(silo), self._office.roster.version, self._ticket(querier, silo, serving))

    def _ticket(self, querier: str, silo: str, serving: Serving) -> Signed:
        now = now_ms()
        ticket = Ticket(
            federation=self._office.roster.federation,
            querier=querier,
            silo=silo,
            release=serving.release,
            roster_version=self._office.roster.version,
            issued_ms=now,
            expires_ms=now + TICKET_LIFETIME_MS,
            nonce=secrets.token_bytes(32),
        )
        return issue_ticket(ticket, self._office.round_key)

    async def Ask(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A sealed query to the silo that its ticket names."""
        ask = codec.ASK.from_wire(request)
        querier, office = peer_of(context).name, self._office
        office.asks.charge(querier, 1, time.monotonic())
        ticket = verify_ticket(
            ask.ticket, roster=office.roster, querier=querier, silo=ask.silo, release=None, now_ms=now_ms()
        )
        if ticket.release != (await office.serving()).release:
            raise ReleaseChangedError("The ticket is for a release that is no longer in service.")
        query = q.SealedQuery(querier, hashlib.sha256(ask.sealed).digest(), ask.sealed, ask.ticket)
        return codec.ASK_REPLY.to_wire(await office.relays.ask(ask.silo, query))


def add_services(server: grpc.aio.Server, office: Office) -> None:
    """Register all three services."""
    silo_pb2_grpc.add_SiloServiceServicer_to_server(SiloService(office), server)  # type: ignore[no-untyped-call]
    operator_pb2_grpc.add_OperatorServiceServicer_to_server(OperatorService(office), server)  # type: ignore[no-untyped-call]
    query_pb2_grpc.add_QueryServiceServicer_to_server(QueryService(office), server)  # type: ignore[no-untyped-call]
