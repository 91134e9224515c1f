"""What a silo does about each event: which of its parts takes it, and in which order (design 5 to 9).

No boundary here: an error that a peer brings about leaves as it came, for silo.participant to refuse.
"""

from __future__ import annotations

from feddrm.contract.messages import (
    AbortRequest,
    Announce,
    JobEnded,
    JobOffer,
    Notice,
    OutcomeEvent,
    Publish,
    ReleaseProposal,
    StepFrames,
)
from silo.arrivals import Arrivals
from silo.books import Books
from silo.catchup import Outcomes
from silo.context import Context, Work
from silo.effects import (
    Connected,
    Contributed,
    DataLoaded,
    DataRefused,
    Effect,
    Event,
    Fetched,
    LoadData,
    Log,
    Send,
    Trained,
    TrainingFailed,
    Tuned,
    TuningFailed,
    Uploaded,
)
from silo.offers import Offers
from silo.permission import Permission
from silo.proposals import Proposals
from silo.releases import Releases
from silo.rounds import Rounds
from silo.standing import Standing
from silo.state import Job
from silo.tuning import Tuning
from silo.witnessing import Witnessing


class Reactions:
    """One silo in at most one job, in parts.

    Args:
        context: who this silo is and where its memory is.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._books = Books(context)
        self._permission = Permission(context, self._books)
        self._offers = Offers(context, self._books, self._permission)
        self._outcomes = Outcomes(context, self._books)
        self._releases = Releases(context)
        self._tuning = Tuning(context, self._books)
        self._proposals = Proposals(context, self._releases, self._permission, self._tuning)
        self._witnessing = Witnessing(context)
        self._rounds = Rounds(context, self._books, self._outcomes, self._permission, self._tuning, self._witnessing)
        self._arrivals = Arrivals(self._rounds, self._outcomes)
        self._standing = Standing(context, self._witnessing)
        self._work: Work | None = None
        self._data_ready = False
        self._data_problem = ""
        self._waiting_announce: tuple[Announce, int] | None = None

    @property
    def due_ms(self) -> int | None:
        """When `tick` is wanted, milliseconds since the epoch."""
        dues = (self._rounds.due_ms, self._offers.due_ms, self._proposals.due_ms)
        return min((due for due in dues if due is not None), default=None)

    @property
    def between_rounds(self) -> bool:
        """Whether no session, training, reading or unanswered question is in memory: a new start would lose nothing."""
        reading = not (self._data_ready or self._data_problem) and self._context.state.active_job() is not None
        parts = (self._rounds, self._tuning, self._proposals, self._offers)
        return not (reading or any(part.busy for part in parts))

    @property
    def refusing(self) -> bool:
        """Whether this silo stays out of its job or declined the newest offer: what its people change may end that."""
        return bool(self._data_problem) or self._context.state.noted("declined") is not None

    def start(self, now_ms: int) -> list[Effect]:
        """Settle what a process before this one left open."""
        job = self._context.state.active_job()
        if job is None:
            return []
        work = self._work_of(job)
        effects = [*self._tuning.recover(work, now_ms), *self._rounds.recover(job, work, now_ms)]
        problem = self._permission.problem(work, now_ms)
        if problem:
            # Not read before the hospital allows it again.
            self._data_problem = problem
            return [*effects, Log(f"The job {work.plan.name} is not allowed: {problem}.", warning=True)]
        return [*effects, LoadData(job.plan, work.plan)]

    def rounds_due(self, now_ms: int) -> list[Effect]:
        """Go on with the round whose time has come."""
        return self._rounds.tick(self._work, now_ms) if self._work is not None else []

    def releases_due(self, now_ms: int) -> list[Effect]:
        """Propose and sign what its time has come for."""
        job = self._context.state.active_job() if self._proposals.busy else None
        return [] if job is None else self._proposals.tick(job, self._work_of(job), now_ms)

    def offers_due(self, now_ms: int) -> list[Effect]:
        """Answer the offers whose time has come."""
        answers = self._offers.tick(now_ms)
        effects: list[Effect] = [Send(answer) for answer in answers]
        return [*effects, self._ready()] if any(answer.accepted for answer in answers) else effects

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """React to the coordinator or to the shell."""
        match event:
            case Connected():
                return self._connected(now_ms)
            case JobOffer():
                return self._offers.offer(event, now_ms, usable=not self._data_problem)
            case DataLoaded():
                return self._loaded(event, now_ms)
            case DataRefused():
                return self._refused(event, now_ms)
            case Notice():
                if self._context.state.noted("notice") != event.text:
                    self._context.state.note("notice", event.text)
                return [Log(f"The coordinator says: {event.text}", warning=True)]
        job = self._context.state.active_job()
        if job is None:
            if isinstance(event, JobEnded):
                self._offers.ended(event.plan, now_ms)
            return []
        return self._in_job(event, job, self._work_of(job), now_ms)

    def refuse(self, event: Event | None, now_ms: int) -> list[Effect]:
        """After an internal error: refuse what the event was about, with a constant reason."""
        job = self._context.state.active_job()
        if isinstance(event, DataLoaded | DataRefused) and job is not None and not self._data_ready:
            self._data_problem = "an internal error; see the log"
            return []
        if isinstance(event, JobOffer) or (isinstance(event, DataLoaded | DataRefused) and job is None):
            return self._offers.collapse(event, now_ms)
        if job is None or isinstance(event, OutcomeEvent | ReleaseProposal | JobEnded | Connected | Notice):
            return []
        announced = event if isinstance(event, Announce) else None
        return self._rounds.collapse(announced, job, self._work_of(job), now_ms)

    def forget_session(self) -> list[Effect]:
        """End what is in memory of a session, whatever it was."""
        return self._rounds.forget()

    def _in_job(self, event: Event, job: Job, work: Work, now_ms: int, *, asked_ms: int | None = None) -> list[Effect]:
        """`asked_ms`: when the event arrived, if that was earlier."""
        before = self._standing.place(job)
        if isinstance(event, Announce):
            effects = self._announce(event, job, work, now_ms, now_ms if asked_ms is None else asked_ms)
        else:
            effects = self._react(event, job, work, now_ms)
        after = self._context.state.active_job()
        if after is None:
            return effects
        settled = self._releases.settled(after)
        if settled is not None:
            effects += self._propose(settled, after, work, now_ms)
        if self._standing.place(after) == before:
            return effects
        # A round ended or was taken back: what is in memory of the session is dead, and the new place is reported. An
        # announcement may take a round back and be entered at once; it says itself where it starts.
        if isinstance(event, Announce) and self._rounds.current is not None:
            return effects
        return [*effects, *self._rounds.forget(), self._ready()]

    def _react(self, event: Event, job: Job, work: Work, now_ms: int) -> list[Effect]:
        match event:
            case StepFrames() | Publish():
                return self._arrivals.step(event, job, work, now_ms)
            case AbortRequest():
                return self._rounds.abort_requested(event, job, work)
            case OutcomeEvent():
                return self._outcomes.outcome(event, job, work, now_ms)
            case Trained() | Contributed() | TrainingFailed():
                return self._rounds.worked(event, work, now_ms)
            case Tuned() | TuningFailed():
                return self._tuned(event, job, work, now_ms)
            case Uploaded():
                return self._arrivals.uploaded(event.blob)
            case Fetched():
                return self._arrivals.fetched(event, job, work, now_ms)
            case ReleaseProposal():
                return self._propose(event, job, work, now_ms)
            case JobEnded():
                return self._ended(event, job, work, now_ms)
        return []

    def _connected(self, now_ms: int) -> list[Effect]:
        job = self._context.state.active_job()
        if job is None:
            return [self._ready()]
        misfit = self._offers.misfit(self._work_of(job), now_ms)
        return [self._ready(), *misfit, *self._outcomes.acknowledged(job)]

    def _loaded(self, event: DataLoaded, now_ms: int) -> list[Effect]:
        job = self._context.state.active_job()
        if job is None:
            effects = self._offers.loaded(event, now_ms)
            self._data_ready = self._context.state.active_job() is not None
            self._data_problem = ""
            return effects
        if job.plan != event.plan_hash:
            return []
        work = self._work_of(job)
        problem = self._permission.changed(event.patient, event.public_size)
        if problem or event.patient != work.plan.schema_.patient:
            return self._refused(DataRefused(event.plan_hash, problem or "the patient column was changed"), now_ms)
        self._books.record_dataset(work, event, now_ms)
        self._data_ready, self._data_problem = True, ""
        return self._announce_again(job, work, now_ms)

    def _refused(self, event: DataRefused, now_ms: int) -> list[Effect]:
        job = self._context.state.active_job()
        if job is None or job.plan != event.plan_hash:
            return self._offers.refused(event, now_ms)
        self._data_ready, self._data_problem = False, event.detail
        return [
            Log(f"The records cannot be used any more: {event.detail}", warning=True),
            *self._announce_again(job, self._work_of(job), now_ms),
        ]

    def _announce_again(self, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """What waited for the records: an announcement, or a proposal that the personal head is tuned before."""
        effects = self._prepare_release(job, work, now_ms)
        waiting, self._waiting_announce = self._waiting_announce, None
        if waiting is None:
            return effects
        event, asked_ms = waiting
        return [*effects, *self._in_job(event, job, work, now_ms, asked_ms=asked_ms)]

    def _announce(self, event: Announce, job: Job, work: Work, now_ms: int, asked_ms: int) -> list[Effect]:
        if self._offers.waits(job.plan):
            # Answering would say before its time that the plan was accepted.
            return []
        if not self._data_ready and not self._data_problem:
            # The DATASET leaf of changed data must precede the reservation of the round that reads them.
            # Counted from the first, or announcing again and again would tell when the reading ends.
            self._waiting_announce = (event, self._waiting_announce[1] if self._waiting_announce else now_ms)
            return []
        return self._rounds.announce(event, job, work, now_ms, asked_ms, problem=self._data_problem)

    def _propose(self, event: ReleaseProposal, job: Job, work: Work, now_ms: int) -> list[Effect]:
        return self._proposals.propose(event, job, work, now_ms, ready=self._data_ready, problem=self._data_problem)

    def _prepare_release(self, job: Job, work: Work, now_ms: int) -> list[Effect]:
        return self._proposals.proceed(job, work, now_ms, ready=self._data_ready, problem=self._data_problem)

    def _tuned(self, event: Tuned | TuningFailed, job: Job, work: Work, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Tuned):
            if not self._tuning.tuned(event, job, work, now_ms):
                return []
        else:
            if not self._tuning.failed(event.plan_hash, work, now_ms):
                return []
            effects.append(Log(f"The personal head stays as training left it: {event.detail}", warning=True))
        effects += self._prepare_release(job, work, now_ms)
        return [*effects, *self._rounds.proceed(job, work, now_ms)]

    def _ended(self, event: JobEnded, job: Job, work: Work, now_ms: int) -> list[Effect]:
        if event.plan != job.plan:
            return []
        # The leaf first: after a crash between the two the job still counts as running, and is ended once more.
        self._books.close(work, event.completed, now_ms)
        self._context.state.end_job(job.plan, event.reason or ("completed" if event.completed else "stopped"))
        self._data_ready, self._data_problem = False, ""
        self._waiting_announce = None
        self._tuning.forget()
        self._proposals.forget()
        self._work = None
        return [Log(f"The job has ended: {event.reason or 'completed'}."), *self._rounds.forget(), self._ready()]

    def _ready(self) -> Send:
        job = self._context.state.active_job()
        if job is None or self._offers.waits(job.plan):
            return Send(self._standing.idle())
        return Send(self._standing.ready(job, self._work_of(job)))

    def _work_of(self, job: Job) -> Work:
        if self._work is None or self._work.plan_hash != job.plan:
            self._work = Work.of(job.signed.body)
        return self._work
