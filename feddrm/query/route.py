"""Which silo resembles each patient most: the coordinator's word, checked ticket by ticket (design section 8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from feddrm.contract.errors import NotAuthorisedError, VerificationError
from feddrm.contract.home import MemberHome
from feddrm.contract.query_messages import Route
from feddrm.contract.roster import Member
from feddrm.contract.signed import Signed
from feddrm.contract.tickets import ticket_hash, verify_ticket
from feddrm.query.coordinator import Coordinator
from feddrm.query.model import QuerierModel

_BATCH_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class Routed:
    """A checked route of one record.

    Attributes:
        row: its index in the table, from 0.
        silo: the entry of the querier's own roster.
        roster_version: the one that the ticket names.
    """

    row: int
    silo: Member
    ticket: Signed
    roster_version: int

    @property
    def ticket_hash(self) -> bytes:
        """SHA-256 of the ticket's body."""
        return ticket_hash(self.ticket)


def check_route(row: int, route: Route, model: QuerierModel, home: MemberHome, now_ms: int) -> Routed:
    """Check a route against the querier's own roster and the release.

    Raises:
        VerificationError: the ticket is not signed by the roster's round key for this querier, silo and release, or the
            silo has no part in the release.
        NotAuthorisedError: the querier's roster lists no such silo.
    """
    if route.silo not in model.plan.silos:
        raise VerificationError(f"The coordinator routed to {route.silo}, which has no part in the release.")
    try:
        member = home.roster.find(route.silo, "silo")
    except NotAuthorisedError as error:
        raise NotAuthorisedError(
            error.message,
            remedy=f"Approve the newer roster: feddrm-query roster show --dir {home.directory}, then accept.",
        ) from error
    ticket = verify_ticket(
        route.ticket,
        roster=home.roster,
        querier=home.name,
        silo=route.silo,
        release=model.release.hash,
        now_ms=now_ms,
    )
    return Routed(row, member, route.ticket, ticket.roster_version)


def batches(count: int) -> Iterator[range]:
    """Row numbers below `count` in batches that fit a message and are asked before their tickets expire."""
    for start in range(0, count, _BATCH_ROWS):
        yield range(start, min(start + _BATCH_ROWS, count))


async def route_rows(
    coordinator: Coordinator,
    model: QuerierModel,
    home: MemberHome,
    codes: Sequence[bytes],
    rows: Sequence[int],
    now_ms: int,
) -> tuple[Routed, ...]:
    """Route the given rows of a table in one call, by their coarse embeddings; errors as check_route."""
    routes = await coordinator.route(model.release.hash, [codes[row] for row in rows])
    return tuple(check_route(row, route, model, home, now_ms) for row, route in zip(rows, routes, strict=True))
