"""A round from its announcement to this silo's R1 (design 5 and 6): check, enter, reserve, work, commit, join.

The work itself is silo.labour's.

Order is everything here: `entered` is durable before anything answers the announcement, the budget's reservation before
the first record is read, what will be masked and its commitment before the first key leaves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.messages import AbortRequest, Announce, DeclineReason, PlanAnswer, SiloFrame
from privacy.errors import BudgetRefused
from privacy.leaves import AbortReason
from secagg.client import join
from secagg.session import Announcement
from silo.admission import Admission
from silo.books import Books
from silo.boundary import INTERNAL
from silo.catchup import Outcomes
from silo.context import Context, Work
from silo.database import NO_RESTORE
from silo.effects import Contributed, Effect, Log, Send, Trained, TrainingFailed
from silo.labour import Labour
from silo.offers import Offers
from silo.permission import Permission
from silo.refusals import Refusals, limit_ms
from silo.session import Session
from silo.sessions import Entered
from silo.slots import slot_end_ms
from silo.state import Job
from silo.tuning import Tuning
from silo.witnessing import Witnessing

# What the coordinator learns of everything that is this hospital's own business.
_DECLINED: Final = "declined"


@dataclass(frozen=True, slots=True)
class Preparing:
    """An announcement that was entered; `due_ms` once its update is ready (or it `failed`): the end of its slot."""

    event: Announce
    announcement: Announcement
    opened: bytes
    asked_ms: int
    due_ms: int | None = None
    failed: bool = False


class Rounds:
    """At most one round at a time: the one after the job's last."""

    def __init__(
        self,
        context: Context,
        books: Books,
        outcomes: Outcomes,
        permission: Permission,
        tuning: Tuning,
        witnessing: Witnessing,
    ) -> None:
        self._context = context
        self._books = books
        self._outcomes = outcomes
        self._permission = permission
        self._tuning = tuning
        self._witnessing = witnessing
        self._admission = Admission(context, outcomes)
        self._labour = Labour(context, books)
        self._asked: tuple[bytes, int, int] = (b"", 0, 0)
        self._answered: tuple[bytes, int] = (b"", 0)
        self._refusals = Refusals(context)
        self.current: Preparing | Session | None = None

    @property
    def due_ms(self) -> int | None:
        """When `tick` has something to do."""
        joins = self.current.due_ms if isinstance(self.current, Preparing) else None
        return min((due for due in (joins, self._refusals.due_ms) if due is not None), default=None)

    @property
    def busy(self) -> bool:
        """Whether a session, a round's work or a refusal that waits for its slot is in memory."""
        return self.current is not None or self._labour.busy or self._refusals.due_ms is not None

    def forget(self) -> list[Effect]:
        """The round was resolved, or the job ended: what is in memory of it is dead."""
        self.current = None
        self._witnessing.keep()
        self._refusals.forget()
        return self._labour.forget()

    def announce(
        self, event: Announce, job: Job, work: Work, now_ms: int, asked_ms: int, *, problem: str = ""
    ) -> list[Effect]:
        """Enter a session, or refuse it with the reason in the log.

        Args:
            asked_ms: when it arrived.
            problem: why the records cannot be used, if so.
        """
        # All leaves by one write, then all marks by another. A crash between the two leaves a charged round that was
        # not entered: it is spent (`recover`) and never worked on again, as after a crash in the middle of its work.
        with self._context.state.one_write(), self._context.ledger.together():
            effects = self._announce(event, job, work, now_ms, asked_ms, problem)
        return self._refusals.late(effects, asked_ms, now_ms, work)

    def _announce(
        self, event: Announce, job: Job, work: Work, now_ms: int, asked_ms: int, problem: str
    ) -> list[Effect]:
        opened = hashlib.sha256(event.frame.body).digest()
        if self.current is not None and self.current.opened == opened:
            return self._again()
        if not self._admission.signed(event):
            return [Log("Ignored an announcement that the coordinator's round key did not sign.", warning=True)]
        if self._books.behind(work, job):
            # Not even an abort: this copy does not know whether it released shares in that session.
            return [
                Log(f"agent.db is older than the ledger, so round {job.round + 1} is left alone. {NO_RESTORE}", True)
            ]
        try:
            announcement = self._admission.check(event, job, work, now_ms)
        except (VerificationError, MalformedError) as error:
            return [
                *self._refusals.refuse(opened, str(error)),
                *self._outcomes.overruled(event.previous, job, work, now_ms),
            ]
        problem = problem or self._permission.problem(work, now_ms)
        if problem:
            return [
                *self._refusals.refuse(opened, problem),
                Offers.note_declined(self._context, job.plan, DeclineReason.POLICY, problem),
                Send(PlanAnswer(job.plan, accepted=False, reason=DeclineReason.POLICY)),
            ]
        unmaskable = self._admission.retry_problem(event, announcement)
        self._enter(event, announcement, opened)
        preparing = Preparing(event, announcement, opened, asked_ms)
        if unmaskable:
            return self._withdraw(preparing, unmaskable, said=unmaskable)
        return self._prepare(preparing, job, work, now_ms)

    def worked(self, event: Trained | Contributed | TrainingFailed, work: Work, now_ms: int) -> list[Effect]:
        """The work of a round is over: this silo joins, or goes on without what failed, when its slot ends."""
        done = self._labour.take(event, work, now_ms)
        return [] if done is None else [*done.effects, *self._schedule(work, now_ms, failed=done.failed)]

    def tick(self, work: Work, now_ms: int) -> list[Effect]:
        """Join, or refuse, once the slot is over."""
        return [*self._refusals.tick(now_ms), *self._join(work, now_ms)]

    def _join(self, work: Work, now_ms: int) -> list[Effect]:
        preparing = self.current
        if not isinstance(preparing, Preparing) or preparing.due_ms is None or now_ms < preparing.due_ms:
            return []
        a = preparing.announcement
        self._answered = (a.plan, a.round)
        if preparing.failed:
            return self._withdraw(preparing, "training failed")
        q = self._context.state.update(a.plan, a.stage, a.round)
        if q is None:
            raise LookupError("a round is due whose update is not stored")
        proof = self._witnessing.proof(work, a.round, preparing.event.witnessed)
        waiting, keys = join(
            preparing.event.frame,
            server_key=self._context.roster.round_key,
            members=self._context.identities(a.cohort),
            me=self._context.me,
            signer=self._context.signer,
            entropy=self._context.entropy,
            ledger_proof=proof,
        )
        self.current = Session(self._context, self._witnessing, work, a, preparing.opened, waiting, keys, q)
        return [Send(SiloFrame(keys))]

    def collapse(self, event: Announce | None, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """After an internal error: leave what it happened in. A charged round without an update is spent.

        Args:
            event: the announcement in whose handling it happened, if so.
        """
        current = self.current
        if event is not None:
            opened = hashlib.sha256(event.frame.body).digest()
            if current is None or current.opened != opened:
                return self._refusals.refuse(opened, INTERNAL) if self._admission.signed(event) else []
        if isinstance(current, Session):
            return current.collapse()
        if not isinstance(current, Preparing):
            return []
        stopped = self.forget()
        number = current.announcement.round
        if self._context.state.update(job.plan, work.stage(number), number) is None:
            self._books.abandon(work, number, AbortReason.FAILED, now_ms)
        return [*stopped, *self._withdraw(current, INTERNAL)]

    def abort_requested(self, event: AbortRequest, job: Job, work: Work) -> list[Effect]:
        """State, signed and for good, that no share of a session was or will be released."""
        if isinstance(self.current, Session) and self.current.named(event.session):
            return self.current.abort(f"asked by the coordinator: {event.reason}")
        if self._books.behind(work, job):
            return []
        if self.current is not None and self.current.opened == event.session and isinstance(self.current, Preparing):
            return self._withdraw(self.current, "asked by the coordinator", said="asked by the coordinator")
        for entered in self._context.state.entered(job.plan, work.stage(job.round + 1), job.round + 1):
            if entered.session == event.session:
                return [
                    self._refusals.last_word(entered.session, entered.released, "the session is over for this silo")
                ]
        return []

    def recover(self, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """After a start: see Labour.recover."""
        return self._labour.recover(job, work, now_ms)

    def _enter(self, event: Announce, announcement: Announcement, opened: bytes) -> None:
        a = announcement
        self._context.state.enter(
            a.plan, a.stage, a.round, Entered(a.attempt, event.frame.body, opened, self._context.boot)
        )

    def _prepare(self, preparing: Preparing, job: Job, work: Work, now_ms: int) -> list[Effect]:
        state, number = self._context.state, job.round + 1
        self.current = preparing
        if self._asked[:2] != (job.plan, number):
            self._asked = (job.plan, number, preparing.asked_ms)
        q = state.update(job.plan, work.stage(number), number)
        if q is not None:
            if self._books.starts_from(work, number) != preparing.announcement.model:
                return self._withdraw(preparing, "this round was trained from another model here")
            self._books.commit(work, number, q, now_ms)
            return self._schedule(work, now_ms)
        if self._labour.does(job.plan, number):
            return []
        if self._books.charged(work, number):
            return self._withdraw(preparing, "this round was interrupted here")
        tuning = self._tuning.begin(job, work, now_ms, self._asked[2]) if self._tuning.due(job, work) else []
        if self._tuning.busy:
            # The evaluation counts what the tuned head gets right; `proceed` comes back here.
            return tuning
        try:
            return [*tuning, *self._labour.begin(job, work, preparing.announcement.model, now_ms)]
        except BudgetRefused as error:
            return [*tuning, *self._withdraw(preparing, f"no budget: {error}")]

    def proceed(self, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """The personal head is tuned: the round that waited for it goes on."""
        current = self.current
        if not isinstance(current, Preparing) or current.due_ms is not None:
            return []
        # Tuning takes its time, in which the hospital may have taken its permission back.
        problem = self._permission.problem(work, now_ms)
        effects = self._withdraw(current, problem) if problem else self._prepare(current, job, work, now_ms)
        return self._refusals.late(effects, self._asked[2], now_ms, work)

    def _schedule(self, work: Work, now_ms: int, *, failed: bool = False) -> list[Effect]:
        current = self.current
        if isinstance(current, Preparing):
            # Counted from the round's first announcement until it was answered once: else a coordinator that announces
            # again and again would measure how long training takes, one bit at a time.
            place = (current.announcement.plan, current.announcement.round)
            asked = current.asked_ms if self._answered == place else self._asked[2]
            due = slot_end_ms(asked, now_ms, self._context.slot_ms, limit_ms(work))
            self.current = replace(current, due_ms=due, failed=failed)
        return []

    def _again(self) -> list[Effect]:
        if isinstance(self.current, Session):
            return self.current.joined()
        return []

    def _withdraw(self, preparing: Preparing, reason: str, *, said: str = _DECLINED) -> list[Effect]:
        self.current = None
        a = preparing.announcement
        return [
            Log(f"Not in attempt {a.attempt} of round {a.round}: {reason}.", warning=True),
            self._refusals.last_word(preparing.opened, False, said),
        ]
