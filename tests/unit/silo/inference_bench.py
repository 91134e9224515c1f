"""A silo's answerer of sealed queries, and a querier."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from silo_harness import FEDERATION, NOW, Trial

from feddrm.contract.identity import MemberKeys
from feddrm.contract.query_messages import Answer, SealedQuery
from feddrm.contract.seal import AskContext, PendingAnswer, query_hash, seal_request
from feddrm.contract.tickets import Ticket, issue_ticket, ticket_hash
from silo.answers import Answers
from silo.inference import Admitted, Answerer
from silo.state import State

RELEASE = bytes(range(32))
DAY = 86_400_000


class Bench:
    """An answerer at alpha, and a querier that may be anybody."""

    def __init__(self, path: Path, **settings: int) -> None:
        self.trial = Trial.make()
        self.path = path
        self.settings = {"answers_per_day": 10, "capacity": 4, **settings}
        self.width = 3
        self.start()

    def start(self) -> None:
        self.state = State.open(self.path / "agent.db")
        alpha = self.trial.keys["alpha"]
        self.answerer = Answerer(
            answers=Answers(self.state),
            roster=self.trial.roster,
            me="alpha",
            signer=alpha.identity,
            sealing=alpha.sealing.hpke(),
            width_of=lambda release: 3 if release == RELEASE else None,
            **self.settings,
        )

    def ticket(self, **change: Any) -> Any:
        fields = {
            "federation": FEDERATION,
            "querier": "desk",
            "silo": "alpha",
            "release": RELEASE,
            "roster_version": 1,
            "issued_ms": NOW,
            "expires_ms": NOW + 60_000,
            "nonce": os.urandom(32),
        }
        key = change.pop("key", self.trial.round_key)
        return issue_ticket(Ticket.model_validate({**fields, **change}), key)

    def ask(
        self,
        *,
        keys: MemberKeys | None = None,
        width: int = 3,
        records: int = 1,
        value: float = 1.0,
        ticket: Any = None,
        **context: Any,
    ) -> tuple[SealedQuery, PendingAnswer]:
        ticket = ticket or self.ticket()
        fields = {
            "federation": FEDERATION,
            "querier": "desk",
            "silo": "alpha",
            "roster_version": 1,
            "release": RELEASE,
            "ticket": ticket_hash(ticket),
        }
        sealed, pending = seal_request(
            np.full((records, width), value, np.float32),
            context=AskContext(**{**fields, **context}),
            sealing_key=self.trial.keys["alpha"].sealing.public(),
            signer=(keys or self.trial.querier).identity,
            now_ms=NOW,
        )
        return SealedQuery("desk", query_hash(sealed), sealed, ticket), pending

    def answer(self, event: SealedQuery, now_ms: int = NOW) -> Answer | None:
        admitted, _ = self.answerer.admit(event, now_ms)
        if not isinstance(admitted, Admitted):
            return admitted
        probabilities = np.tile(np.array([0.25, 0.75], np.float32), (len(admitted.features), 1))
        return self.answerer.finish(admitted, probabilities, now_ms)
