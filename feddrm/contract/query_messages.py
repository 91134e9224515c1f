"""What queriers and the coordinator say, and what the coordinator carries between them and silos (design section 8).

Conventions: see messages.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from feddrm.contract.names import SiloId
from feddrm.contract.signed import Signed

# relay


@dataclass(frozen=True, slots=True)
class Capacity:
    """First event of a relay stream: how many queries a silo takes at once, and which release it can answer for."""

    capacity: int
    release: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A sealed answer, or a fixed public word of refusal."""

    query: bytes
    answer: bytes = field(default=b"", repr=False)
    refusal: str = ""


ServeEvent = Capacity | Answer


@dataclass(frozen=True, slots=True)
class SealedQuery:
    """A querier's sealed request on its way to a silo."""

    querier: str
    query: bytes
    sealed: bytes = field(repr=False)
    ticket: Signed


# querier


@dataclass(frozen=True, slots=True)
class GetRelease:
    """Asks for the release in service."""


@dataclass(frozen=True, slots=True)
class QuerierRelease:
    """What a querier gets of a release: plan, statement signed by silos, hash of the trunk file."""

    plan: Signed
    statement: Signed
    trunk: bytes


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """Coarse embeddings, each the packed code of `feddrm.method.coarse.Grid`."""

    release: bytes
    codes: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Route:
    """A silo's name and nothing else."""

    silo: SiloId
    roster_version: int
    ticket: Signed


@dataclass(frozen=True, slots=True)
class RouteRow:
    """Where one embedding goes: a silo, or two that are nearly tied, in the plan's order and never by rank."""

    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class RouteReply:
    """One row an embedding, in order."""

    rows: tuple[RouteRow, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A sealed request and the ticket that routed it."""

    silo: SiloId
    ticket: Signed
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AskReply:
    """A sealed answer."""

    answer: bytes = field(repr=False)
