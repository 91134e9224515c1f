"""Whether this silo takes part in a plan (design 5): signature, roster, policy, budget, and only then the records.

Everything after the roster is one reason to the coordinator and leaves at the end of a slot: what this hospital allows,
has spent and holds is nobody's business. The detail goes to its own log and `feddrm-silo status`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from feddrm.contract import labels
from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.messages import DeclineReason, JobOffer, PlanAnswer
from feddrm.contract.plan import plan_hash
from feddrm.contract.signed import Signed, verify
from feddrm.method.layout import initial_personal, layout_of
from feddrm.method.progress import initial_state
from privacy.errors import BudgetRefused, GateError
from silo.books import Books
from silo.context import Context, Work
from silo.effects import DataLoaded, DataRefused, Effect, LoadData, Log, Send
from silo.permission import Permission
from silo.slots import slot_end_ms

# What waits for an answer gives up after train_seconds; the last slot ends before.
_LIMIT: Final = 0.9


@dataclass(frozen=True, slots=True)
class Pending:
    """An offer whose allocation is charged and whose records are being read."""

    signed: Signed
    work: Work
    asked_ms: int


@dataclass(frozen=True, slots=True)
class Due:
    """An answer that waits for the end of its slot."""

    answer: PlanAnswer
    due_ms: int


class Offers:
    """Answers job offers; holds at most one that waits for the data."""

    def __init__(self, context: Context, books: Books, permission: Permission) -> None:
        self._context = context
        self._books = books
        self._permission = permission
        self._pending: Pending | None = None
        self._due: dict[bytes, Due] = {}

    @property
    def due_ms(self) -> int | None:
        """When `tick` has something to do."""
        return min((due.due_ms for due in self._due.values()), default=None)

    @property
    def busy(self) -> bool:
        """Whether an offer was not answered yet."""
        return self._pending is not None or bool(self._due)

    def misfit(self, work: Work, now_ms: int) -> list[Effect]:
        """Leave a job accepted before whose plan does not fit the roster that this hospital has approved since."""
        problem = self._roster_problem(work, now_ms)
        return self._refuse(work.plan_hash, DeclineReason.ROSTER, problem) if problem else []

    def waits(self, plan: bytes) -> bool:
        """Whether the answer to an offer has not left yet."""
        return plan in self._due

    def tick(self, now_ms: int) -> tuple[PlanAnswer, ...]:
        """The answers that leave now."""
        over = [name for name, due in self._due.items() if due.due_ms <= now_ms]
        return tuple(self._due.pop(name).answer for name in over)

    def offer(self, event: JobOffer, now_ms: int, *, usable: bool) -> list[Effect]:
        """Check all of an offer that needs no record. A plan accepted before is judged by the present policy.

        Args:
            usable: the records of the plan accepted before can be used, as far as is known.
        """
        name = plan_hash(event.plan.body)
        if name in self._due or (self._pending is not None and self._pending.work.plan_hash == name):
            # It is on its way; asked again it must not come at another time.
            return []
        state = self._context.state
        known = state.job(name)
        if known is None and state.active_job() is not None:
            return self._refuse(name, DeclineReason.BUSY, "another job is still running")
        try:
            body = verify(event.plan, labels.PLAN, self._context.roster.operator, what="The plan")
            work = Work.of(body)
        except (VerificationError, MalformedError) as error:
            return self._refuse(name, DeclineReason.POLICY, str(error))
        problem = self._roster_problem(work, now_ms)
        if problem:
            return self._refuse(name, DeclineReason.ROSTER, problem)
        if known is not None and known.ended:
            return self._decline(work, now_ms, now_ms, f"it has ended here: {known.ended}")
        problem = self._permission.problem(work, now_ms)
        if problem:
            return self._decline(work, now_ms, now_ms, problem)
        if known is not None:
            if not usable:
                return self._decline(work, now_ms, now_ms, "its records cannot be used")
            self._answer(work, now_ms, now_ms, accepted=True)
            return []
        try:
            self._books.open_job(work, self._permission.charge(work), now_ms)
        except (BudgetRefused, GateError) as error:
            return self._decline(work, now_ms, now_ms, str(error))
        self._pending = Pending(event.plan, work, now_ms)
        return [LoadData(name, work.plan)]

    def loaded(self, event: DataLoaded, now_ms: int) -> list[Effect]:
        """Say yes, durably: the DATASET leaf, then the job itself, then the answer."""
        pending = self._pending
        if pending is None or pending.work.plan_hash != event.plan_hash:
            return []
        work, state = pending.work, self._context.state
        problem = self._permission.problem(work, now_ms) or self._permission.changed(event.patient, event.public_size)
        if problem or event.patient != work.plan.schema_.patient:
            return self._decline(work, pending.asked_ms, now_ms, problem or "the patient column was changed meanwhile")
        self._books.record_dataset(work, event, now_ms)
        name, layout = work.plan_hash, work.layout
        first = initial_state(work.plan, layout, name)
        state.add_job(name, pending.signed, first, initial_personal(layout_of(work.plan.at(self._context.me)), name))
        state.note("declined", None)
        self._pending = None
        self._answer(work, pending.asked_ms, now_ms, accepted=True)
        epsilon, _ = self._books.claimed(name) or (float("nan"), 0.0)
        return [Log(f"Accepted the plan {work.plan.name}: epsilon {epsilon:.3f} when it completes.")]

    def refused(self, event: DataRefused, now_ms: int) -> list[Effect]:
        """Decline for want of a table. The allocation waits for a next offer of the same plan, or another one."""
        pending = self._pending
        if pending is None or pending.work.plan_hash != event.plan_hash:
            return []
        return self._decline(pending.work, pending.asked_ms, now_ms, event.detail)

    def ended(self, plan: bytes, now_ms: int) -> None:
        """A job that was never accepted here is over: give its allocation back."""
        if self._pending is not None and self._pending.work.plan_hash == plan:
            self._pending = None
        self._books.give_back(plan, now_ms)

    def collapse(self, event: JobOffer | DataLoaded | DataRefused, now_ms: int) -> list[Effect]:
        """Something unexpected went wrong with an offer: it is declined like any other."""
        name = plan_hash(event.plan.body) if isinstance(event, JobOffer) else event.plan_hash
        pending = self._pending
        if self._context.state.job(name) is None and pending is not None and pending.work.plan_hash == name:
            return self._decline(pending.work, pending.asked_ms, now_ms, "an internal error; see the log")
        return self._refuse(name, DeclineReason.POLICY, "an internal error; see the log")

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

    def _answer(self, work: Work, asked_ms: int, now_ms: int, *, accepted: bool) -> None:
        answer = PlanAnswer(work.plan_hash, accepted=accepted, reason=None if accepted else DeclineReason.POLICY)
        limit = round(work.plan.deadlines.train_seconds * 1000 * _LIMIT)
        self._due[work.plan_hash] = Due(answer, slot_end_ms(asked_ms, now_ms, self._context.slot_ms, limit))

    def _decline(self, work: Work, asked_ms: int, now_ms: int, detail: str) -> list[Effect]:
        if self._pending is not None and self._pending.work.plan_hash == work.plan_hash:
            self._pending = None
        self._answer(work, asked_ms, now_ms, accepted=False)
        return [self.note_declined(self._context, work.plan_hash, DeclineReason.POLICY, detail)]

    def _refuse(self, name: bytes, reason: DeclineReason, detail: str) -> list[Effect]:
        """At once: it rests on nothing that the coordinator does not know."""
        return [
            self.note_declined(self._context, name, reason, detail),
            Send(PlanAnswer(name, accepted=False, reason=reason)),
        ]

    @staticmethod
    def note_declined(context: Context, name: bytes, reason: DeclineReason, detail: str) -> Log:
        """Keep the detail for `status` and the log, where it stays."""
        context.state.note("declined", {"plan": name.hex(), "reason": reason.name.lower(), "detail": detail})
        return Log(f"Declined the plan {name.hex()[:16]} ({reason.name.lower()}): {detail.rstrip('.')}.", warning=True)
