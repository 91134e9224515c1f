"""A round from its announcement to this silo's R1 (design 5 and 6): check, enter, reserve, train, commit, join.

Order is everything here: `entered` is durable before anything answers the announcement, the budget's reservation before
the first record is read, the quantised update and its commitment before the first key leaves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from feddrm.contract.announce import check_announcement
from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.messages import AbortRequest, Announce, SiloFrame
from privacy.errors import BudgetRefused
from privacy.leaves import AbortReason
from secagg.aborts import abort_certificate_valid, abort_frame
from secagg.client import join
from secagg.errors import ProtocolViolation, UnsoundError, WireError
from secagg.keys import signature_valid
from secagg.quantise import quantise
from secagg.session import Announcement
from secagg.wire import COORDINATOR, Step
from silo.books import Books
from silo.catchup import Outcomes
from silo.context import Context, Work, current_model, place_of
from silo.effects import Effect, Log, Send, StopTraining, Train, Trained, TrainingFailed
from silo.session import Session
from silo.state import Entered, Job

_LARGEST_ATTEMPT: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Preparing:
    """An announcement that was entered; `due_ms` once its update is ready and waits for the end of its slot."""

    event: Announce
    announcement: Announcement
    opened: bytes
    due_ms: int | None = None


class Rounds:
    """At most one round at a time: the one after the job's last."""

    def __init__(self, context: Context, books: Books, outcomes: Outcomes) -> None:
        self._context = context
        self._books = books
        self._outcomes = outcomes
        self._training: tuple[bytes, int] | None = None
        self.current: Preparing | Session | None = None

    @property
    def due_ms(self) -> int | None:
        """When `tick` has something to do."""
        return self.current.due_ms if isinstance(self.current, Preparing) else None

    def forget(self) -> list[Effect]:
        """The round was resolved, or the job ended: what is in memory of it is dead."""
        self.current = None
        training, self._training = self._training, None
        return [] if training is None else [StopTraining()]

    def announce(self, event: Announce, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """Enter a session, or refuse it with the reason in the log."""
        opened = hashlib.sha256(event.frame.body).digest()
        if self.current is not None and self.current.opened == opened:
            return self._again()
        frame = event.frame
        if (
            frame.step != Step.ANNOUNCE
            or frame.sender != COORDINATOR
            or not signature_valid(Step.ANNOUNCE, frame.body, frame.signature, self._context.roster.round_key)
        ):
            return [Log("Ignored an announcement that the coordinator's round key did not sign.", warning=True)]
        try:
            announcement = self._check(event, job, work, now_ms)
        except (VerificationError, MalformedError) as error:
            return self._refuse(opened, str(error))
        problem = self._retry_problem(event, announcement)
        self._enter(event, announcement, opened)
        if problem:
            return self._withdraw(announcement, opened, problem)
        return self._prepare(Preparing(event, announcement, opened), job, work, now_ms)

    def trained(self, event: Trained, work: Work, now_ms: int) -> list[Effect]:
        """Keep a trained round: quantise, store, commit."""
        if self._training != (event.plan_hash, event.round):
            return []
        self._training = None
        sums = work.plan.secure_aggregation
        q = quantise(event.update, sums.clip, sums.fraction_bits)
        self._context.state.set_update(event.plan_hash, work.stage, event.round, q, event.personal)
        self._books.commit(work, event.round, q, now_ms)
        return self._schedule(now_ms)

    def failed(self, event: TrainingFailed, work: Work, now_ms: int) -> list[Effect]:
        """The reservation is spent and the round goes on without this silo."""
        if self._training != (event.plan_hash, event.round):
            return []
        self._training = None
        self._books.abandon(work, event.round, AbortReason.FAILED, now_ms)
        effects: list[Effect] = [Log(f"Training failed: {event.detail}", warning=True)]
        if isinstance(self.current, Preparing):
            effects += self._withdraw(self.current.announcement, self.current.opened, "training failed")
        return effects

    def tick(self, work: Work, now_ms: int) -> list[Effect]:
        """Join once the slot is over."""
        preparing = self.current
        if not isinstance(preparing, Preparing) or preparing.due_ms is None or now_ms < preparing.due_ms:
            return []
        a = preparing.announcement
        q = self._context.state.update(a.plan, a.stage, a.round)
        if q is None:
            raise LookupError("a round is due whose update is not stored")
        proof = self._books.proof(work, a.round, preparing.event.witnessed)
        waiting, keys = join(
            preparing.event.frame,
            server_key=self._context.roster.round_key,
            members=self._context.identities(a.cohort),
            me=self._context.me,
            signer=self._context.signer,
            entropy=self._context.entropy,
            ledger_proof=proof,
        )
        self.current = Session(self._context, self._books, work, a, preparing.opened, waiting, keys, q)
        return [Send(SiloFrame(keys))]

    def abort_requested(self, event: AbortRequest, job: Job, work: Work) -> list[Effect]:
        """State, signed and for good, that no share of a session was or will be released."""
        if isinstance(self.current, Session) and self.current.named(event.session):
            return self.current.abort(f"asked by the coordinator: {event.reason}")
        if self.current is not None and self.current.opened == event.session and isinstance(self.current, Preparing):
            return self._withdraw(self.current.announcement, event.session, "asked by the coordinator")
        for entered in self._context.state.entered(job.plan, work.stage, job.round + 1):
            if entered.session == event.session:
                return [self._last_word(entered.session, entered.released, "the session is over for this silo")]
        return []

    def recover(self, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """After a start: what another process had begun and not stored is spent, what it stored is committed."""
        number = job.round + 1
        q = self._context.state.update(job.plan, work.stage, number)
        if q is not None:
            self._books.commit(work, number, q, now_ms)
            return []
        if self._books.abandon(work, number, AbortReason.CRASHED, now_ms):
            return [Log(f"Round {number} was interrupted in training; its budget stays spent.", warning=True)]
        return []

    def _refuse(self, opened: bytes, reason: str) -> list[Effect]:
        """Say so at once, or the coordinator waits for the deadline. The statement is for good, so it is durable."""
        state = self._context.state
        entered = state.session(opened)
        if entered is None:
            state.refuse(opened)
        released = entered is not None and entered.released
        return [
            Log(f"Refused an announcement: {reason}", warning=True),
            self._last_word(opened, released, "announcement refused"),
        ]

    def _check(self, event: Announce, job: Job, work: Work, now_ms: int) -> Announcement:
        try:
            announcement = Announcement.decode(event.frame.body)
        except (WireError, UnsoundError) as error:
            raise VerificationError(f"It is unsound: {error}.") from error
        previous = self._outcomes.certified(event.previous, job, work)
        place = place_of(self._context, work, job, previous)
        check_announcement(announcement, work.plan, place, self._context.me)
        position = (announcement.stage, announcement.round, announcement.attempt)
        if position <= self._context.state.highest(job.plan):
            raise VerificationError("Its stage, round and attempt do not rise.")
        if self._context.state.was_refused(announcement.hash()):
            raise VerificationError("It was refused before.")
        if announcement.attempt > _LARGEST_ATTEMPT:
            raise VerificationError("Its attempt is out of range.")
        if announcement.deadline_ms <= now_ms:
            raise VerificationError("Its deadline has passed.")
        return announcement

    def _retry_problem(self, event: Announce, announcement: Announcement) -> str:
        """Why the update of this round may not be masked again, or nothing (design 6, "Spent rounds and retries")."""
        a, state = announcement, self._context.state
        for entered in state.entered(a.plan, a.stage, a.round):
            if entered.released:
                return "unmasking shares of this round were released here"
            if not entered.masked or entered.certified:
                continue
            try:
                abort_certificate_valid(
                    event.abort_certificate,
                    announce_body=entered.announcement,
                    members=self._context.identities(entered.members),
                    u1=entered.members,
                )
            except ProtocolViolation as violation:
                return f"attempt {entered.attempt} was masked and has no abort certificate: {violation.reason}"
            state.mark(a.plan, a.stage, a.round, entered.attempt, "certified")
        return ""

    def _enter(self, event: Announce, announcement: Announcement, opened: bytes) -> None:
        a = announcement
        self._context.state.enter(
            a.plan, a.stage, a.round, Entered(a.attempt, event.frame.body, opened, self._context.boot)
        )

    def _prepare(self, preparing: Preparing, job: Job, work: Work, now_ms: int) -> list[Effect]:
        state, number = self._context.state, job.round + 1
        self.current = preparing
        if state.update(job.plan, work.stage, number) is not None:
            return self._schedule(now_ms)
        if self._training == (job.plan, number):
            return []
        if self._books.charged(work, number):
            return self._withdraw(preparing.announcement, preparing.opened, "this round was interrupted here")
        try:
            self._books.reserve(work, number, preparing.announcement.model, now_ms)
        except BudgetRefused as error:
            return [
                Log(f"No budget for round {number}: {error}", warning=True),
                *self._withdraw(preparing.announcement, preparing.opened, "declined"),
            ]
        self._training = (job.plan, number)
        personal = state.personal(job.plan)
        size = state.fact("public size")
        if personal is None or size is None:
            raise LookupError("an accepted job has no personal head or public size")
        return [
            Log(f"Round {number}: training."),
            Train(job.plan, work.plan, number, int(size), current_model(state, job), personal[1]),
        ]

    def _schedule(self, now_ms: int) -> list[Effect]:
        if isinstance(self.current, Preparing):
            slot = self._context.slot_ms
            due = now_ms if slot == 0 else -(-now_ms // slot) * slot
            self.current = Preparing(self.current.event, self.current.announcement, self.current.opened, due)
        return []

    def _again(self) -> list[Effect]:
        if isinstance(self.current, Session):
            return self.current.joined()
        return []

    def _withdraw(self, announcement: Announcement, opened: bytes, reason: str) -> list[Effect]:
        self.current = None
        return [
            Log(f"Not in attempt {announcement.attempt} of round {announcement.round}: {reason}.", warning=True),
            self._last_word(opened, False, reason),
        ]

    def _last_word(self, opened: bytes, released: bool, reason: str) -> Send:
        return Send(
            SiloFrame(
                abort_frame(
                    announcement=opened,
                    me=self._context.me,
                    signer=self._context.signer,
                    released=released,
                    reason=reason,
                )
            )
        )
