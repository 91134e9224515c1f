"""A small silo's place in its job, as the certificates of rounds give it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator_identities import Identities

from feddrm.contract import messages as m
from feddrm.contract.release import make_statement, sign_statement
from feddrm.contract.roster import roster_hash
from feddrm.contract.rounds import Lost, verify_outcome
from feddrm.contract.signed_plan import SignedPlan
from feddrm.method.layout import layout_of
from feddrm.method.update import apply, head_hash, model_hash, trunk_hash
from secagg.hashing import blob_hash
from secagg.vector import decode_sum


class MiniJob:
    """What a small silo holds of its job: the plan, and a model for each round that is certified."""

    def __init__(self, name: str, identities: Identities, read_sum: Callable[[bytes], bytes]) -> None:
        self.name, self.identities, self.read_sum = name, identities, read_sum
        self.signer = identities.keys[name].identity
        self.boot = b""
        self.job: SignedPlan | None = None
        self.round = 0
        self.models: list[Any] = []
        self.outcomes: dict[int, m.RoundOutcome] = {}

    @property
    def layout(self) -> Any:
        assert self.job is not None
        return layout_of(self.job.plan)

    def ready(self) -> m.Ready:
        if self.job is None:
            return m.Ready(self.boot, b"", 0, b"", (), roster_hash(self.identities.signed_roster.body))
        return m.Ready(
            self.boot,
            self.job.hash,
            self.round,
            model_hash(self.models[self.round]),
            (),
            roster_hash(self.identities.signed_roster.body),
        )

    def _certify(self, outcome: m.RoundOutcome | None) -> None:
        if outcome is None or outcome.round in self.outcomes:
            return
        assert self.job is not None
        record = verify_outcome(outcome, self.job.plan, self.identities.roster, plan_hash=self.job.hash)
        assert outcome.round in (self.round, self.round + 1)
        before = self.models[outcome.round - 1]
        if isinstance(record, Lost):
            after = before
        else:
            total, _, _ = decode_sum(self.read_sum(record.sum), self.layout.shared_size, 0)
            assert blob_hash(self.read_sum(record.sum)) == record.sum
            after = self._apply(before, total, record.count)
            assert model_hash(after) == record.model
        self.models = [*self.models[: outcome.round], after]
        self.round = outcome.round
        self.outcomes[outcome.round] = outcome

    def _apply(self, before: Any, total: Any, count: int) -> Any:
        assert self.job is not None
        plan = self.job.plan
        return apply(before, total, count, plan.secure_aggregation.fraction_bits, plan.training.server_learning_rate)

    def _release(self, statement: bytes) -> list[Any]:
        assert self.job is not None
        own = make_statement(
            self.job,
            trunk=trunk_hash(self.layout, self.models[-1]),
            head=head_hash(self.layout, self.models[-1]),
            layout=self.layout.fingerprint(),
            rounds=self.published(),
        ).body()
        assert own == statement
        return [m.ReleaseSignature(sign_statement(statement, self.signer))]

    def published(self) -> int:
        # The last round's certificate may not have come yet; its ack shows that it was published.
        return sum(self.outcomes[r].lost is None if r in self.outcomes else True for r in range(1, self.round + 1))
