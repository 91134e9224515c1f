"""Which silo, or two, resemble each patient most: the coordinator's word, as far as it can be checked (design 8).

Only the router knows whether two silos are nearly tied. What a querier can check is that the plan lets two be named,
that both answer the same question, and that their order tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from feddrm.contract.codec import MAXIMUM_OPINIONS
from feddrm.contract.errors import NotAuthorisedError, VerificationError, in_shell
from feddrm.contract.home import MemberHome
from feddrm.contract.query_messages import Route, RouteRow
from feddrm.contract.roster import Member
from feddrm.contract.signed import Signed
from feddrm.contract.tickets import ticket_hash, verify_ticket
from feddrm.query.coordinator import Coordinator
from feddrm.query.model import QuerierModel

_BATCH_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class Routed:
    """A checked route of one record to one silo.

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


def check_row(row: int, found: RouteRow, model: QuerierModel, home: MemberHome, now_ms: int) -> tuple[Routed, ...]:
    """Check where a record goes against the plan, the querier's own roster and the release.

    Raises:
        VerificationError: a silo has no part in the release; two are named though the plan has no second opinions, or
            twice the same, or in another order than the plan's, or with different questions; a ticket is not signed by
            the roster's round key for this querier, silo and release.
        NotAuthorisedError: the querier's roster lists no such silo.
    """
    plan, names = model.plan, [route.silo for route in found.routes]
    for name in names:
        if name not in plan.silos:
            raise VerificationError(f"The coordinator routed to {name}, which has no part in the release.")
    places = [plan.silos.index(name) for name in names]
    both = " and ".join(names)
    if len(names) > (1 if plan.queries.second_opinion == 1 else MAXIMUM_OPINIONS):
        raise VerificationError(f"The coordinator routed to {both} at once, which the plan does not allow.")
    if places != sorted(set(places)):
        raise VerificationError(f"The coordinator named {both}, which is not the plan's order, and so could be a rank.")
    targets = [plan.at(name).schema_.target for name in names]
    if any(target != targets[0] for target in targets):
        raise VerificationError(f"The coordinator routed to {both}, which by the plan answer different questions.")
    return tuple(_check_route(row, route, model, home, now_ms) for route in found.routes)


def _check_route(row: int, route: Route, model: QuerierModel, home: MemberHome, now_ms: int) -> Routed:
    try:
        member = home.roster.find(route.silo, "silo")
    except NotAuthorisedError as error:
        raise NotAuthorisedError(
            error.message,
            remedy=f"Approve the newer roster: feddrm-query roster show --dir {in_shell(home.directory)}, then accept.",
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
) -> tuple[tuple[Routed, ...], ...]:
    """Route the given rows of a table in one call, by their coarse embeddings; errors as check_row."""
    found = await coordinator.route(model.release.hash, [codes[row] for row in rows])
    return tuple(check_row(row, one, model, home, now_ms) for row, one in zip(rows, found, strict=True))
