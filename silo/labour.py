"""A round's work: charged before the first record is read, kept and committed to before it is masked (design 5 and 7).

What the work is follows from the round's stage: training, a share of the routing fit's gradient, counts of held-out
patients. All else is the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from feddrm.contract.schedule import STAGE_TRAIN
from feddrm.method.progress import Parts, shared_model
from privacy.leaves import AbortReason
from secagg.errors import MisuseError
from secagg.quantise import quantise
from silo.books import Books
from silo.context import Context, Work, current_model
from silo.effects import Contribute, Contributed, Effect, Log, StopTraining, Train, Trained, TrainingFailed
from silo.state import Int64s, Integers, Job


@dataclass(frozen=True, slots=True)
class Done:
    """Work that is over, with or without something to mask."""

    effects: tuple[Effect, ...] = ()
    failed: bool = False


class Labour:
    """The work of at most one round at a time."""

    def __init__(self, context: Context, books: Books) -> None:
        self._context = context
        self._books = books
        self._working: tuple[bytes, int] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is work in hand."""
        return self._working is not None

    def does(self, plan: bytes, number: int) -> bool:
        """Whether the work of this round is in hand."""
        return self._working == (plan, number)

    def forget(self) -> list[Effect]:
        """Nothing that is in hand counts any more."""
        working, self._working = self._working, None
        return [] if working is None else [StopTraining()]

    def begin(self, job: Job, work: Work, model: bytes, now_ms: int) -> list[Effect]:
        """Charge the round after the job's last and begin its work. `model`: hash of the state that it starts from.

        Raises:
            BudgetRefused: as Books.reserve.
        """
        number = job.round + 1
        self._books.reserve(work, number, model, now_ms)
        self._working = (job.plan, number)
        return [Log(f"{work.title(number)}: working."), self._work(job, work)]

    def take(self, event: Trained | Contributed | TrainingFailed, work: Work, now_ms: int) -> Done | None:
        """Keep what came of the work in hand; None if the event is about other work.

        A trained update is quantised; one that is not finite is a training that failed. What failed stays charged.
        """
        if not self.does(event.plan_hash, event.round):
            return None
        match event:
            case TrainingFailed():
                return self._failed(event.round, event.detail, work, now_ms)
            case Contributed():
                return self._store(event.round, event.words, None, work, now_ms)
            case Trained():
                sums = work.plan.secure_aggregation
                try:
                    q = quantise(event.update, sums.clip, sums.fraction_bits)
                except MisuseError as error:
                    return self._failed(event.round, f"the update: {error}", work, now_ms)
                return self._store(event.round, q, event.personal, work, now_ms)

    def _store(self, number: int, q: Integers, personal: Int64s | None, work: Work, now_ms: int) -> Done:
        self._working = None
        self._context.state.set_update(work.plan_hash, work.stage(number), number, q, personal)
        self._books.commit(work, number, q, now_ms)
        return Done()

    def _failed(self, number: int, detail: str, work: Work, now_ms: int) -> Done:
        self._working = None
        self._books.abandon(work, number, AbortReason.FAILED, now_ms)
        return Done((Log(f"The work of {work.name(number)} failed: {detail}", warning=True),), failed=True)

    def recover(self, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """After a start: what another process had begun and not stored is spent, what it stored is committed."""
        number = job.round + 1
        q = self._context.state.update(job.plan, work.stage(number), number)
        if q is not None:
            self._books.commit(work, number, q, now_ms)
            return []
        if self._books.abandon(work, number, AbortReason.CRASHED, now_ms):
            return [Log(f"{work.title(number)} was interrupted; its budget stays spent.", warning=True)]
        return []

    def _work(self, job: Job, work: Work) -> Train | Contribute:
        state, number = self._context.state, job.round + 1
        personal, fixed = state.personal(job.plan), self._books.fixed()
        if personal is None or fixed is None:
            raise LookupError("an accepted job has no personal head or no data set")
        before, stage = current_model(state, job), work.stage(number)
        if stage == STAGE_TRAIN:
            shared = shared_model(work.plan, work.layout, before)
            kept = Parts.of(work.plan, work.layout, before).kept
            return Train(job.plan, work.plan, number, fixed.public_size, shared, personal[1], kept)
        return Contribute(job.plan, work.plan, stage, number, before, personal[1])
