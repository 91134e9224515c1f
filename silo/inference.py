"""Answers to sealed queries (design 8): who asks, may they, what does this silo's own model say.

The coordinator relays ciphertext and can forge nothing: the querier's signature is checked against this silo's pinned
roster, the ticket against the round key, and a repeated ciphertext gets the very bytes that were answered before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

from feddrm.contract.errors import FeddrmError, NotAuthorisedError
from feddrm.contract.query_messages import Answer, SealedQuery
from feddrm.contract.roster import Roster
from feddrm.contract.seal import AskContext, OpenedRequest, open_request, query_hash, seal_answer
from feddrm.contract.tickets import TICKET_LIFETIME_MS, Ticket, ticket_hash, verify_ticket
from silo.answers import Answers

_DAY_MS: Final = 86_400_000

# All that a refusal says; the reason is in the hospital's log.
REFUSED: Final = "refused"
# The coordinator knows which roster this silo has pinned, and the querier must know whom to call.
UNKNOWN: Final = "unknown-querier"
BUDGET: Final = "budget"
BUSY: Final = "busy"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A query that may be answered: `features` float32[1, d] go to the model, then `Answerer.finish`."""

    query: bytes
    querier: str
    release: bytes
    features: npt.NDArray[np.float32] = field(repr=False)
    opened: OpenedRequest = field(repr=False)


class Answerer:
    """Admits and answers queries; pure but for its durable replay cache.

    Args:
        roster: the pinned one; a newer one may be put in its place.
        me: this silo's name.
        width_of: (release) -> number of features, or None when this silo cannot or may not answer for that release.
        answers_per_day: budget of each querier, in records; its refused questions count, too.
        capacity: queries in work at once; one querier gets at most half of it.
    """

    def __init__(
        self,
        *,
        answers: Answers,
        roster: Roster,
        me: str,
        signer: Ed25519PrivateKey,
        sealing: MLKEM768X25519PrivateKey,
        width_of: Callable[[bytes], int | None],
        answers_per_day: int,
        capacity: int,
    ) -> None:
        self._answers = answers
        self.roster = roster
        self._me = me
        self._signer = signer
        self._sealing = sealing
        self._width_of = width_of
        self._answers_per_day = answers_per_day
        self._capacity = capacity
        self._working: dict[bytes, str] = {}

    def admit(self, event: SealedQuery, now_ms: int) -> tuple[Answer | Admitted | None, str]:
        """Check a query.

        Returns:
            (answer, detail for the log): what to send at once, or what to predict on, or None when the same query is
            in work already.
        """
        query = query_hash(event.sealed)
        if query != event.query:
            return Answer(event.query, refusal=REFUSED), "the query's bytes do not have its hash"
        known = self._answers.answer(query)
        if known is not None:
            return (Answer(query, answer=known) if known else Answer(query, refusal=REFUSED)), ""
        if query in self._working:
            return None, ""
        mine = sum(name == event.querier for name in self._working.values())
        # One querier alone must not keep all others waiting.
        if len(self._working) >= self._capacity or mine >= max(1, self._capacity // 2):
            return Answer(query, refusal=BUSY), ""
        if not any(member.name == event.querier for member in self.roster.queriers):
            version = self.roster.version
            return (
                Answer(query, refusal=UNKNOWN),
                f"the roster approved here (version {version}) does not list it; see feddrm-silo roster show",
            )
        try:
            ticket, width, admitted = self._open(event, query, now_ms)
        except FeddrmError as error:
            # Nobody knows who asked: charging it to the name would let others use up an honest querier's budget.
            return Answer(query, refusal=REFUSED), str(error)
        day = now_ms // _DAY_MS
        if self._answers.answered(admitted.querier, day) + mine + 1 > self._answers_per_day:
            return Answer(query, refusal=BUDGET), f"{admitted.querier} has used up its answers of today"
        problem = self._problem(ticket, width, admitted)
        if problem:
            self._answers.add(query, admitted.querier, day, 1, b"")
            return Answer(query, refusal=REFUSED), problem
        self._working[query] = admitted.querier
        return admitted, ""

    def finish(self, admitted: Admitted, probabilities: npt.NDArray[np.float32], now_ms: int) -> Answer:
        """Seal and sign an answer, float32[1, classes], refused if not finite; durable before it is returned."""
        if not np.isfinite(probabilities).all():
            return self.fail(admitted, now_ms)
        sealed = seal_answer(admitted.opened, probabilities, signer=self._signer)
        self._answers.add(admitted.query, admitted.querier, now_ms // _DAY_MS, 1, sealed)
        self._working.pop(admitted.query, None)
        return Answer(admitted.query, answer=sealed)

    def fail(self, admitted: Admitted, now_ms: int) -> Answer:
        """The model could not answer; the question counts all the same."""
        if self._working.pop(admitted.query, None) is not None and self._answers.answer(admitted.query) is None:
            self._answers.add(admitted.query, admitted.querier, now_ms // _DAY_MS, 1, b"")
        return Answer(admitted.query, refusal=REFUSED)

    def drop(self, admitted: Admitted) -> None:
        """Nobody waits for the answer any more, or it was given."""
        self._working.pop(admitted.query, None)

    def _problem(self, ticket: Ticket, width: int, admitted: Admitted) -> str:
        """Why a question whose querier is known is refused, or nothing. Uses its ticket up, durably."""
        if not self._answers.use_ticket(ticket.nonce, admitted.query):
            return f"{admitted.querier} asked a second question with one ticket"
        if admitted.features.shape != (1, width):
            shape = "x".join(map(str, admitted.features.shape))
            return f"{admitted.querier} sent {shape} features; a ticket is for one record of {width}"
        # A NaN fails the comparison, too.
        if not (np.abs(admitted.features) <= 1.0).all():
            return f"{admitted.querier} sent features that no record of the schema has"
        return ""

    def _open(self, event: SealedQuery, query: bytes, now_ms: int) -> tuple[Ticket, int, Admitted]:
        self.roster.check_current(now_ms)
        # NotAuthorisedError unless the *pinned* roster lists the querier, whatever the coordinator says.
        querier = self.roster.find(event.querier, "querier")
        ticket = verify_ticket(
            event.ticket, roster=self.roster, querier=querier.name, silo=self._me, release=None, now_ms=now_ms
        )
        # Shorter than verify_ticket allows: a silo relies on no more than what an honest coordinator issues.
        if ticket.expires_ms - ticket.issued_ms > TICKET_LIFETIME_MS:
            raise NotAuthorisedError("The ticket's lifetime is longer than tickets live.")
        width = self._width_of(ticket.release)
        if width is None:
            raise NotAuthorisedError(
                "This silo did not sign the release that the ticket names, or may not answer for it."
            )
        context = AskContext(
            federation=self.roster.federation,
            querier=querier.name,
            silo=self._me,
            roster_version=ticket.roster_version,
            release=ticket.release,
            ticket=ticket_hash(event.ticket),
        )
        opened = open_request(
            event.sealed, context=context, private_key=self._sealing, querier_key=querier.identity, now_ms=now_ms
        )
        return ticket, width, Admitted(query, querier.name, ticket.release, opened.features, opened)
