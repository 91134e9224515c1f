"""The participant: the silo's whole part in a job as a pure state machine (design 5 to 9).

`handle(event, now_ms)` and `tick(now_ms)` return effects. No socket, thread or clock here; entropy and time are
arguments; what an effect rests on is durable (silo.state, the ledger) before it is returned. Nothing that the
coordinator sends is believed: plans carry the operator's signature, announcements must equal what the plan gives,
frames carry silos' signatures, sums verify by their tags or by t silos' acks.
"""

from __future__ import annotations

from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.messages import (
    AbortRequest,
    Announce,
    DeclineReason,
    JobEnded,
    JobOffer,
    Notice,
    OutcomeEvent,
    PlanAnswer,
    Publish,
    Ready,
    ReleaseProposal,
    StepFrames,
)
from feddrm.contract.names import SiloId
from feddrm.method.update import model_hash
from silo.books import Books
from silo.catchup import Outcomes
from silo.context import Context, Work, current_model
from silo.effects import (
    Connected,
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
    Uploaded,
)
from silo.offers import Offers
from silo.peers import Heads
from silo.releases import sign_proposal
from silo.rounds import Rounds
from silo.session import Session
from silo.state import Job


class Participant:
    """One silo in at most one job.

    Args:
        context: who this silo is and where its memory is.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._books = Books(context)
        self._offers = Offers(context, self._books)
        self._outcomes = Outcomes(context, self._books)
        self._rounds = Rounds(context, self._books, self._outcomes)
        self._work: Work | None = None
        self._data_ready = False
        self._waiting_announce: Announce | None = None

    def start(self, now_ms: int) -> list[Effect]:
        """First call: settle what a process before this one left open."""
        job = self._context.state.active_job()
        if job is None:
            return []
        work = self._work_of(job)
        return [*self._rounds.recover(job, work, now_ms), LoadData(job.plan, work.plan)]

    @property
    def due_ms(self) -> int | None:
        """When `tick` is wanted, milliseconds since the epoch."""
        return self._rounds.due_ms

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what has become due."""
        return self._rounds.tick(self._work, now_ms) if self._work is not None else []

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """React to the coordinator or to the shell."""
        match event:
            case Connected():
                return self._connected()
            case JobOffer():
                return self._offers.offer(event, now_ms)
            case DataLoaded():
                return self._loaded(event, now_ms)
            case DataRefused():
                return self._refused(event)
            case Notice():
                return [Log(f"The coordinator says: {event.text}")]
        job = self._context.state.active_job()
        if job is None:
            return []
        return self._in_job(event, job, self._work_of(job), now_ms)

    def _in_job(self, event: Event, job: Job, work: Work, now_ms: int) -> list[Effect]:
        before = self._place(job)
        effects = self._react(event, job, work, now_ms)
        after = self._context.state.active_job()
        if after is None or self._place(after) == before:
            return effects
        # A round ended or was taken back: what is in memory of the session is dead, and the new place is reported. An
        # announcement may take a round back and be entered at once; it says itself where it starts.
        if isinstance(event, Announce) and self._rounds.current is not None:
            return effects
        return [*effects, *self._rounds.forget(), self._ready()]

    def _react(self, event: Event, job: Job, work: Work, now_ms: int) -> list[Effect]:
        match event:
            case Announce():
                return self._announce(event, job, work, now_ms)
            case StepFrames() | Publish():
                return self._step(event)
            case AbortRequest():
                return self._rounds.abort_requested(event, job, work)
            case OutcomeEvent():
                return self._outcomes.outcome(event, job, work, now_ms)
            case Trained():
                return [*self._rounds.trained(event, work, now_ms), *self._rounds.tick(work, now_ms)]
            case TrainingFailed():
                return self._rounds.failed(event, work, now_ms)
            case Uploaded():
                session = self._rounds.current
                return session.uploaded(event.blob) if isinstance(session, Session) else []
            case Fetched():
                return self._fetched(event, job, work, now_ms)
            case ReleaseProposal():
                return sign_proposal(self._context, work, job, event)
            case JobEnded():
                return self._ended(event, job, work, now_ms)
        return []

    def _connected(self) -> list[Effect]:
        job = self._context.state.active_job()
        return [self._ready(), *(self._outcomes.acknowledged(job) if job is not None else ())]

    def _loaded(self, event: DataLoaded, now_ms: int) -> list[Effect]:
        job = self._context.state.active_job()
        if job is None:
            effects = self._offers.loaded(event, now_ms)
            job = self._context.state.active_job()
            if job is None:
                return effects
            self._data_ready = True
            return [*effects, self._ready()]
        if job.plan != event.plan_hash:
            return []
        problem = self._offers.check_public_size(event.public_size)
        if problem:
            return self._refused(DataRefused(event.plan_hash, problem))
        self._books.record_dataset(self._work_of(job), event.commitment, now_ms)
        self._data_ready = True
        waiting, self._waiting_announce = self._waiting_announce, None
        return [] if waiting is None else self._announce(waiting, job, self._work_of(job), now_ms)

    def _refused(self, event: DataRefused) -> list[Effect]:
        job = self._context.state.active_job()
        if job is None or job.plan != event.plan_hash:
            return self._offers.refused(event)
        return [
            Log(f"The records cannot be used any more: {event.detail}", warning=True),
            Send(PlanAnswer(job.plan, accepted=False, reason=DeclineReason.DATA)),
        ]

    def _announce(self, event: Announce, job: Job, work: Work, now_ms: int) -> list[Effect]:
        if not self._data_ready:
            # The DATASET leaf of changed data must precede the reservation of the round that reads them.
            self._waiting_announce = event
            return []
        effects = self._rounds.announce(event, job, work, now_ms)
        return [*effects, *self._rounds.tick(work, now_ms)]

    def _step(self, event: StepFrames | Publish) -> list[Effect]:
        session = self._rounds.current
        if not isinstance(session, Session):
            return []
        if isinstance(event, Publish):
            return session.publish(event)
        return session.request(event) if session.named(event.session) else []

    def _fetched(self, event: Fetched, job: Job, work: Work, now_ms: int) -> list[Effect]:
        session = self._rounds.current
        if not isinstance(session, Session) or not session.wants(event.blob):
            try:
                self._outcomes.fetched(event.blob, event.data, job, work, now_ms)
            except (VerificationError, MalformedError) as error:
                return [Log(f"Refused a sum: {error}", warning=True)]
            return []
        verified, effects = session.fetched(event.data)
        if verified is None:
            return effects
        return [*effects, *self._outcomes.verified(job, work, verified, now_ms)]

    def _ended(self, event: JobEnded, job: Job, work: Work, now_ms: int) -> list[Effect]:
        if event.plan != job.plan:
            return []
        # The leaf first: after a crash between the two the job still counts as running, and is ended once more.
        self._books.close(work, event.completed, now_ms)
        self._context.state.end_job(job.plan, event.reason or ("completed" if event.completed else "stopped"))
        self._data_ready = False
        self._waiting_announce = None
        self._work = None
        return [Log(f"The job has ended: {event.reason or 'completed'}."), *self._rounds.forget(), self._ready()]

    def _ready(self) -> Send:
        state = self._context.state
        job = state.active_job()
        if job is None:
            return Send(Ready(self._context.boot, b"", 0, b"", (), self._context.roster_hash))
        silos = self._work_of(job).plan.silos
        heads = tuple((SiloId(name), size) for name, (size, _) in Heads(state).heads().items() if name in silos)
        model = model_hash(current_model(state, job))
        return Send(Ready(self._context.boot, job.plan, job.round, model, heads, self._context.roster_hash))

    def _place(self, job: Job) -> tuple[bytes, int, bytes]:
        known = self._context.state.outcome(job.plan, job.round)
        return job.plan, job.round, b"" if known is None else known.record

    def _work_of(self, job: Job) -> Work:
        if self._work is None or self._work.plan_hash != job.plan:
            self._work = Work.of(job.signed.body)
        return self._work
