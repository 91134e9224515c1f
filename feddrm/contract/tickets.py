"""Route tickets: the coordinator's signed word that it sent this querier to this silo (design section 8).

A ticket lets a silo refuse queries that were never routed to it. It proves routing, not identity: the querier signs its
request itself, inside the seal.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field

from feddrm.contract import labels
from feddrm.contract.authority import CLOCK_SKEW_MS
from feddrm.contract.documents import Hash, canonical, parse_body
from feddrm.contract.errors import VerificationError
from feddrm.contract.names import Document, Name
from feddrm.contract.roster import Milliseconds, Roster, Version
from feddrm.contract.signed import Signed, sign, verify

TICKET_LIFETIME_MS: Final = 600_000
_MAXIMUM_LIFETIME_MS: Final = 86_400_000


class Ticket(Document):
    """The right to ask one silo about one routed embedding.

    Attributes:
        release: SHA-256 of the release statement's body.
        nonce: 32 fresh random bytes, so that no two tickets are equal.
    """

    format: Literal["feddrm ticket 1"] = "feddrm ticket 1"
    federation: Name
    querier: Name
    silo: Name
    release: Hash
    roster_version: Version
    issued_ms: Milliseconds
    expires_ms: Annotated[int, Field(ge=1, lt=1 << 53)]
    nonce: Hash


def issue_ticket(ticket: Ticket, round_key: Ed25519PrivateKey) -> Signed:
    """Sign a ticket as the coordinator."""
    return sign(round_key, labels.TICKET, canonical(ticket))


def ticket_hash(signed: Signed) -> bytes:
    """SHA-256 of a ticket's body (32 bytes), which the querier's request binds."""
    return hashlib.sha256(signed.body).digest()


def verify_ticket(
    signed: Signed, *, roster: Roster, querier: str, silo: str, release: bytes | None, now_ms: int
) -> Ticket:
    """Verify a ticket.

    Args:
        roster: the verifier's own pinned roster.
        release: the release it must be for, or None when the caller compares it itself.

    Raises:
        VerificationError: not signed by the roster's round key, for somebody else, or out of its time.
        MalformedError: not a ticket.
    """
    ticket = parse_body(verify(signed, labels.TICKET, roster.round_key, what="The ticket"), Ticket, what="The ticket")
    if (ticket.federation, ticket.querier, ticket.silo) != (roster.federation, querier, silo):
        raise VerificationError("The ticket is for another federation, querier or silo.")
    if release is not None and ticket.release != release:
        raise VerificationError("The ticket is for another release.")
    if not 0 < ticket.expires_ms - ticket.issued_ms <= _MAXIMUM_LIFETIME_MS:
        raise VerificationError("The ticket's lifetime is not allowed.")
    # Clocks of hospital and coordinator differ; expiry is lenient by a few minutes, issue by as much as certificates.
    if ticket.issued_ms > now_ms + CLOCK_SKEW_MS:
        raise VerificationError("The ticket was issued in the future.")
    if now_ms >= ticket.expires_ms + TICKET_LIFETIME_MS:
        raise VerificationError("The ticket has expired.")
    return ticket
