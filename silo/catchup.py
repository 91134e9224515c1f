"""How rounds end here: by a sum that this silo verified itself, or by an outcome that it was not there for.

A silo that was away accepts a sum on at least t agreeing acks (of which an honest majority checked the tags) and checks
that it leads to the very model that they signed; a lost round on the round key's signature (design 5 and 9). A round
that it applied but that t silos did not acknowledge may yet be declared lost: it then goes back to the model before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from feddrm.contract import labels
from feddrm.contract.announce import NO_PREVIOUS, outcome_hash
from feddrm.contract.chunks import blob_hash
from feddrm.contract.documents import canonical
from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.messages import AckEvent, OutcomeEvent, RoundOutcome
from feddrm.contract.rounds import Ack, Lost, sign_ack, verify_outcome
from feddrm.contract.signed import sign
from feddrm.method.update import apply, model_hash
from privacy.leaves import AbortReason
from secagg.client import VerifiedSum
from secagg.errors import WireError
from secagg.vector import decode_sum
from silo.books import Books
from silo.context import Context, Work
from silo.effects import Effect, FetchSum, Int64s, Log, Send
from silo.state import Job, Outcome, Resolved

_LABELS: Final = {"released": labels.ROUND_ACK, "lost": labels.ROUND_LOST}


@dataclass(frozen=True, slots=True)
class Replay:
    """A certified round whose sum is being fetched."""

    plan: bytes
    ack: Ack


class Outcomes:
    """Ends rounds, in order, with model, ledger leaf and acknowledgement."""

    def __init__(self, context: Context, books: Books) -> None:
        self._context = context
        self._books = books
        self._replay: Replay | None = None

    def verified(self, job: Job, work: Work, total: VerifiedSum, now_ms: int) -> list[Effect]:
        """Apply, record and acknowledge the sum of the round after the job's last, whose tags this silo checked."""
        number, count = job.round + 1, len(total.survivors)
        after = self._next(job, work, number, total.words32, count)
        ack = Ack(
            plan=job.plan,
            stage=work.stage,
            round=number,
            session=total.session,
            sum=total.sum,
            count=count,
            model=model_hash(after),
        )
        self._end(job, work, Resolved("released", canonical(ack), certified=False), number, after, now_ms, ack.sum)
        return [
            Log(f"Round {number}: the sum of {count} silos is verified and applied."),
            Send(AckEvent(sign_ack(ack, self._context.signer))),
        ]

    def acknowledged(self, job: Job) -> list[Effect]:
        """The ack of the last round again, while nothing shows that t silos' acks arrived."""
        known = self._context.state.outcome(job.plan, job.round)
        if known is None or known.outcome != "released" or known.certified:
            return []
        return [Send(AckEvent(sign(self._context.signer, labels.ROUND_ACK, known.record)))]

    def certified(self, previous: RoundOutcome | None, job: Job, work: Work) -> bytes:
        """The hash of the outcome on which the next round builds, checked against this silo's own memory.

        Raises:
            VerificationError, MalformedError: it is missing, forged, or another than this silo's.
        """
        if job.round == 0:
            if previous is not None:
                raise VerificationError("The first round has no previous outcome.")
            return NO_PREVIOUS
        if previous is None or previous.round != job.round:
            raise VerificationError(f"It lacks the outcome of round {job.round}.")
        record = self._verify(previous, work)
        known = self._context.state.outcome(job.plan, job.round)
        kind, body = _record_of(previous)
        if known is not None and not known.certified and kind == "lost":
            self._take_back(job, work, record)
        elif known is None or known.outcome != kind or (kind == "released" and known.record != body):
            raise VerificationError(f"Its outcome of round {job.round} is not the one that this silo knows.")
        else:
            self._context.state.certify(job.plan, job.round)
        return outcome_hash(previous)

    def outcome(self, event: OutcomeEvent, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """Replay a missed round, or settle the last one."""
        outcome = event.outcome
        known = self._context.state.outcome(job.plan, outcome.round)
        if outcome.round not in (job.round, job.round + 1) or (known is not None and known.certified):
            return []
        try:
            record = self._verify(outcome, work)
        except (VerificationError, MalformedError) as error:
            return [Log(f"Refused an outcome: {error}", warning=True)]
        kind, body = _record_of(outcome)
        if known is not None and known.outcome == kind == "released" and known.record == body:
            self._context.state.certify(job.plan, outcome.round)
            return []
        if isinstance(record, Lost):
            if known is not None:
                self._take_back(job, work, record)
            else:
                before = self._model(job, job.round)
                self._end(job, work, Resolved("lost", body, certified=True), record.round, before, now_ms, b"")
            return [Log(f"Round {record.round} was lost: {record.reason}.")]
        self._replay = Replay(job.plan, record)
        return [FetchSum(record.sum, work.sum_size)]

    def fetched(self, blob: bytes, data: bytes, job: Job, work: Work, now_ms: int) -> bool:
        """Apply the sum of a replayed round; True if the round is over now.

        Raises:
            VerificationError, MalformedError: the bytes are not what t silos acknowledged.
        """
        replay = self._replay
        if replay is None or replay.plan != job.plan or replay.ack.sum != blob:
            return False
        self._replay = None
        ack = replay.ack
        if blob_hash(data) != ack.sum:
            raise VerificationError(f"The sum of round {ack.round} is not the acknowledged one.")
        try:
            words, _, _ = decode_sum(data, work.layout.shared_size, 0)
        except WireError as error:
            raise MalformedError(f"The sum of round {ack.round} has another length.") from error
        after = self._next(job, work, ack.round, words, ack.count)
        if model_hash(after) != ack.model:
            raise VerificationError(f"The sum of round {ack.round} does not lead to the acknowledged model.")
        self._end(job, work, Resolved("released", canonical(ack), certified=True), ack.round, after, now_ms, ack.sum)
        return True

    def _verify(self, outcome: RoundOutcome, work: Work) -> Ack | Lost:
        record = verify_outcome(outcome, work.plan, self._context.roster, plan_hash=work.plan_hash, stage=work.stage)
        if isinstance(record, Ack) and record.count < work.quorum:
            raise VerificationError(f"The sum of round {record.round} has too few silos in it.")
        return record

    def _take_back(self, job: Job, work: Work, record: Ack | Lost) -> None:
        """The last round was applied here but is lost for the federation. Its ledger leaf stays: the sum was public."""
        body = canonical(record)
        before = self._model(job, job.round - 1)
        self._context.state.resolve(job.plan, work.stage, job.round, Resolved("lost", body, certified=True), before)

    def _next(self, job: Job, work: Work, number: int, words: Int64s, count: int) -> Int64s:
        plan = work.plan
        return apply(
            self._model(job, number - 1),
            words,
            count,
            plan.secure_aggregation.fraction_bits,
            plan.training.server_learning_rate,
        )

    def _model(self, job: Job, number: int) -> Int64s:
        model = self._context.state.model(job.plan, number)
        if model is None:
            raise LookupError("the state holds no model of a round that it needs")
        return model

    def _end(
        self, job: Job, work: Work, resolved: Resolved, number: int, model: Int64s, now_ms: int, total: bytes
    ) -> None:
        # The leaf first: after a crash between the two the round is replayed, and the leaf is found to be there.
        if resolved.outcome == "released" and not self._masked(job, work, number):
            self._books.abandon(work, number, AbortReason.DROPPED, now_ms)
        elif resolved.outcome == "released":
            self._books.released(work, number, total, model_hash(model), now_ms)
        else:
            self._books.abandon(work, number, AbortReason.LOST, now_ms)
        self._context.state.resolve(job.plan, work.stage, number, resolved, model)

    def _masked(self, job: Job, work: Work, number: int) -> bool:
        """Whether this silo's update may be in the round's sum."""
        return any(entered.masked for entered in self._context.state.entered(job.plan, work.stage, number))


def _record_of(outcome: RoundOutcome) -> tuple[Outcome, bytes]:
    if outcome.lost is not None:
        return "lost", outcome.lost.body
    return "released", outcome.acks[0].body
