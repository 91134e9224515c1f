"""Stage 3 at one silo: its own target head, tuned once on the frozen trunk, between two rounds (design 5).

Nothing of it travels, so there is no session; but records are read, so the ledger has the same leaves in the same
order: RESERVE before the first record is read, COMMIT when the head exists, KEEP instead of a release. What was begun
and not finished is spent, and the head of stage 1 stays.
"""

from __future__ import annotations

from feddrm.contract.schedule import place_of_tuning
from feddrm.method.progress import answering_model
from feddrm.method.shared_head import SharedHead
from feddrm.method.update import model_hash
from privacy.errors import BudgetRefused
from privacy.leaves import AbortReason
from silo.books import Books
from silo.context import Context, Work, current_model
from silo.effects import Effect, Log, Tune, Tuned
from silo.slots import UNLIMITED_MS, slot_end_ms
from silo.state import Job


class Tuning:
    """At most one tuning at a time, once for a job.

    Attributes:
        over_ms: before this end of a slot no release may leave that tells that the tuning has ended; 0 if none has.
    """

    def __init__(self, context: Context, books: Books) -> None:
        self._context = context
        self._books = books
        self._refused: set[bytes] = set()
        self._running: bytes | None = None
        self._asked_ms = 0
        self.over_ms = 0

    @property
    def busy(self) -> bool:
        """Whether a head is being tuned."""
        return self._running is not None

    def forget(self) -> None:
        """The job ended: a result is not wanted any more."""
        self._running = None
        self.over_ms = 0

    def due(self, job: Job, work: Work) -> bool:
        """Whether the head is to be tuned now: trunk and routing head are final, and it was not tried before."""
        if work.plan.personal_head is None or job.round + 1 < place_of_tuning(work.plan):
            return False
        if self.busy or job.plan in self._refused:
            return False
        known = self._context.state.outcome(job.plan, job.round)
        settled = job.round == 0 or (known is not None and known.certified)
        return settled and not self._books.tuning_charged(work)

    def begin(self, job: Job, work: Work, now_ms: int, asked_ms: int) -> list[Effect]:
        """Charge it and begin; without budget the head stays as it is.

        Args:
            asked_ms: when what it is begun for arrived.
        """
        state = current_model(self._context.state, job)
        personal, fixed = self._context.state.personal(job.plan), self._books.fixed()
        if personal is None or fixed is None:
            raise LookupError("an accepted job has no personal head or no data set")
        try:
            self._books.reserve_tuning(work, model_hash(state), now_ms)
        except BudgetRefused as error:
            self._refused.add(job.plan)
            return [Log(f"The personal head stays as training left it: {error}.", warning=True)]
        self._running, self._asked_ms = job.plan, asked_ms
        answering = answering_model(work.plan, work.layout, state)
        model, shared = SharedHead.split(work.plan, work.layout, answering, self._context.me)
        return [
            Log("Tuning the personal head."),
            Tune(job.plan, work.plan, fixed.public_size, model, personal[1], shared),
        ]

    def tuned(self, event: Tuned, job: Job, work: Work, now_ms: int) -> bool:
        """Keep the tuned head; False if nobody waited for it."""
        if self._running != event.plan_hash:
            return False
        self._end(now_ms)
        self._books.commit_tuning(work, event.personal, now_ms)
        self._context.state.set_personal(job.plan, place_of_tuning(work.plan), event.personal)
        self._books.keep_tuning(work, now_ms)
        return True

    def failed(self, plan: bytes, work: Work, now_ms: int) -> bool:
        """Its budget is spent and the head stays as it was; False if nobody waited for it."""
        if self._running != plan:
            return False
        self._end(now_ms)
        self._books.abandon_tuning(work, AbortReason.FAILED, now_ms)
        return True

    def recover(self, work: Work, now_ms: int) -> list[Effect]:
        """After a start: what another process had begun is spent."""
        if not self._books.abandon_tuning(work, AbortReason.CRASHED, now_ms):
            return []
        return [Log("The tuning of the personal head was interrupted; its budget stays spent.", warning=True)]

    def _end(self, now_ms: int) -> None:
        self._running = None
        self.over_ms = slot_end_ms(self._asked_ms, now_ms, self._context.slot_ms, UNLIMITED_MS)
