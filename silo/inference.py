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

from feddrm.contract.errors import FeddrmError, MalformedError, NotAuthorisedError
from feddrm.contract.messages import Answer, SealedQuery
from feddrm.contract.roster import Roster
from feddrm.contract.seal import AskContext, OpenedRequest, open_request, query_hash, seal_answer
from feddrm.contract.tickets import ticket_hash, verify_ticket
from silo.answers import Answers

_DAY_MS: Final = 86_400_000

# All that a refusal says; the reason is in the hospital's log.
REFUSED: Final = "refused"
BUDGET: Final = "budget"
BUSY: Final = "busy"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A query that may be answered: `features` float32[n, d] go to the model, then `Answerer.finish`."""

    query: bytes
    querier: str
    release: bytes
    features: npt.NDArray[np.float32] = field(repr=False)
    opened: OpenedRequest = field(repr=False)


class Answerer:
    """Admits and answers queries; pure but for its durable replay cache.

    Args:
        roster: the pinned one.
        me: this silo's name.
        width_of: (release) -> number of features, or None when this silo cannot answer for that release.
        answers_per_day: budget of each querier, in records.
        capacity: queries in work at once.
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
        self._roster = roster
        self._me = me
        self._signer = signer
        self._sealing = sealing
        self._width_of = width_of
        self._answers_per_day = answers_per_day
        self._capacity = capacity
        self._working: dict[bytes, tuple[str, int]] = {}

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
            return Answer(query, answer=known), ""
        if query in self._working:
            return None, ""
        if len(self._working) >= self._capacity:
            return Answer(query, refusal=BUSY), ""
        try:
            admitted = self._open(event, query, now_ms)
        except FeddrmError as error:
            return Answer(query, refusal=REFUSED), str(error)
        records = len(admitted.features)
        used = self._answers.answered(admitted.querier, now_ms // _DAY_MS)
        used += sum(count for name, count in self._working.values() if name == admitted.querier)
        if used + records > self._answers_per_day:
            return Answer(query, refusal=BUDGET), f"{admitted.querier} has used up its answers of today"
        self._working[query] = (admitted.querier, records)
        return admitted, ""

    def finish(self, admitted: Admitted, probabilities: npt.NDArray[np.float32], now_ms: int) -> Answer:
        """Seal and sign an answer, float32[n, classes]; durable before it is returned."""
        sealed = seal_answer(admitted.opened, probabilities, signer=self._signer)
        self._answers.add(admitted.query, admitted.querier, now_ms // _DAY_MS, len(admitted.features), sealed)
        self._working.pop(admitted.query, None)
        return Answer(admitted.query, answer=sealed)

    def fail(self, admitted: Admitted) -> Answer:
        """The model could not answer."""
        self._working.pop(admitted.query, None)
        return Answer(admitted.query, refusal=REFUSED)

    def _open(self, event: SealedQuery, query: bytes, now_ms: int) -> Admitted:
        self._roster.check_current(now_ms)
        # NotAuthorisedError unless the *pinned* roster lists the querier, whatever the coordinator says.
        querier = self._roster.find(event.querier, "querier")
        ticket = verify_ticket(
            event.ticket, roster=self._roster, querier=querier.name, silo=self._me, release=None, now_ms=now_ms
        )
        width = self._width_of(ticket.release)
        if width is None:
            raise NotAuthorisedError("This silo did not sign the release that the ticket names.")
        context = AskContext(
            federation=self._roster.federation,
            querier=querier.name,
            silo=self._me,
            roster_version=ticket.roster_version,
            release=ticket.release,
            ticket=ticket_hash(event.ticket),
        )
        opened = open_request(
            event.sealed, context=context, private_key=self._sealing, querier_key=querier.identity, now_ms=now_ms
        )
        if opened.features.shape[1] != width:
            raise MalformedError(f"The query has {opened.features.shape[1]} features, the release {width}.")
        return Admitted(query, querier.name, ticket.release, opened.features, opened)
