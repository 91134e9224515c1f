"""Whether this silo takes part in a plan (design 5): signature, roster, policy, data, budget, in that order.

The coordinator learns a generic reason; the detail goes to the hospital's own log and `feddrm-silo status`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from feddrm.contract import labels
from feddrm.contract.charge import Charge, charge
from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.messages import DeclineReason, JobOffer, PlanAnswer
from feddrm.contract.plan import plan_hash
from feddrm.contract.policy import objections
from feddrm.contract.signed import Signed, verify
from feddrm.method.layout import initial_model, initial_personal
from privacy.errors import BudgetRefused
from silo.books import Books
from silo.context import Context, Work
from silo.effects import DataLoaded, DataRefused, Effect, LoadData, Log, Send

_PUBLIC_SIZE: Final = "public size"


@dataclass(frozen=True, slots=True)
class Pending:
    """An offer that passed all checks but those of data and budget."""

    signed: Signed
    work: Work
    charge: Charge


class Offers:
    """Answers job offers; holds at most one that waits for the data."""

    def __init__(self, context: Context, books: Books) -> None:
        self._context = context
        self._books = books
        self._pending: Pending | None = None

    def offer(self, event: JobOffer, now_ms: int) -> list[Effect]:
        """Check all of an offer that needs no data. An accepted plan is not asked about again."""
        name = plan_hash(event.plan.body)
        known = self._context.state.job(name)
        if known is not None:
            if known.ended:
                return self._decline(name, DeclineReason.POLICY, f"it has ended here: {known.ended}")
            return [Send(PlanAnswer(name, accepted=True))]
        if self._context.state.active_job() is not None:
            return self._decline(name, DeclineReason.BUSY, "another job is still running")
        try:
            body = verify(event.plan, labels.PLAN, self._context.roster.operator, what="The plan")
            work = Work.of(body)
        except (VerificationError, MalformedError) as error:
            return self._decline(name, DeclineReason.POLICY, str(error))
        problem = self._roster_problem(work, now_ms)
        if problem:
            return self._decline(name, DeclineReason.ROSTER, problem)
        cost = charge(work.plan)
        problems = objections(
            self._context.policy,
            work.plan,
            cost.epsilon,
            cost.epsilon_alone,
            operator=self._context.roster.operator,
        )
        if problems:
            return self._decline(name, DeclineReason.POLICY, "; ".join(problems))
        self._pending = Pending(event.plan, work, cost)
        return [LoadData(name, work.plan)]

    def loaded(self, event: DataLoaded, now_ms: int) -> list[Effect]:
        """Say yes, durably: PLAN and DATASET leaves, then the job itself, then the answer."""
        pending = self._pending
        if pending is None or pending.work.plan_hash != event.plan_hash:
            return []
        self._pending = None
        name = event.plan_hash
        problem = self.check_public_size(event.public_size)
        if problem:
            return self._decline(name, DeclineReason.DATA, problem)
        try:
            self._books.open_job(pending.work, pending.charge, now_ms)
        except BudgetRefused as error:
            return self._decline(name, DeclineReason.BUDGET, str(error))
        self._books.record_dataset(pending.work, event.commitment, now_ms)
        state, layout = self._context.state, pending.work.layout
        state.add_job(
            name,
            pending.signed,
            initial_model(layout, name),
            initial_personal(layout, name),
        )
        state.note("declined", None)
        return [
            Log(f"Accepted the plan {pending.work.plan.name}: epsilon {pending.charge.epsilon:.3f} when it completes."),
            Send(PlanAnswer(name, accepted=True)),
        ]

    def refused(self, event: DataRefused) -> list[Effect]:
        """Decline for want of usable data."""
        if self._pending is not None and self._pending.work.plan_hash == event.plan_hash:
            self._pending = None
        return self._decline(event.plan_hash, DeclineReason.DATA, event.detail)

    def check_public_size(self, size: int) -> str:
        """Fix the public size at its first use; afterwards say what is wrong with another one, or nothing.

        It divides every step of training, so a silo that could change it would choose its own weight, and a size that
        follows the data would publish the data's size.
        """
        state = self._context.state
        fixed = state.fact(_PUBLIC_SIZE)
        if fixed is None:
            state.set_fact(_PUBLIC_SIZE, str(size).encode())
            return ""
        if int(fixed) == size:
            return ""
        return f"public_size in local/data.toml is {size}, but it was fixed as {int(fixed)} for this silo's life"

    def _roster_problem(self, work: Work, now_ms: int) -> str:
        plan, roster = work.plan, self._context.roster
        if plan.federation != self._context.federation:
            return f"the plan is for the federation {plan.federation}"
        if plan.roster_version != roster.version:
            return (
                f"the plan is for roster version {plan.roster_version}, pinned is {roster.version};"
                " see feddrm-silo roster accept"
            )
        if roster.expires_ms <= now_ms:
            return "the pinned roster has expired"
        if self._context.me not in plan.silos:
            return "the plan does not name this silo"
        absent = [name for name in plan.silos if self._context.silo(name) is None]
        return f"the roster has no silo {absent[0]}" if absent else ""

    def _decline(self, name: bytes, reason: DeclineReason, detail: str) -> list[Effect]:
        self._context.state.note("declined", {"plan": name.hex(), "reason": reason.name.lower(), "detail": detail})
        return [
            Log(f"Declined the plan {name.hex()[:16]} ({reason.name.lower()}): {detail}.", warning=True),
            Send(PlanAnswer(name, accepted=False, reason=reason)),
        ]
