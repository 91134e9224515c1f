"""How rounds end here: by a sum that this silo verified itself, or by an outcome that it was not there for.

A silo that was away accepts a sum on at least t agreeing acks (of which an honest majority checked the tags) and checks
that it leads to the very model that they signed; a lost round on the round key's signature (design 5 and 9). A round
that it applied but that t silos did not acknowledge may yet be declared lost: it then goes back to the model before.
So only a certified round counts as released in the ledger. Silos' acks are worth more than the coordinator's word: t of
them bring a round back that it declared lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from feddrm.contract import labels
from feddrm.contract.announce import NO_PREVIOUS, outcome_hash
from feddrm.contract.chunks import blob_hash
from feddrm.contract.documents import canonical, parse_body
from feddrm.contract.errors import MalformedError, NotAuthorisedError, VerificationError
from feddrm.contract.messages import AckEvent, OutcomeEvent, RoundOutcome
from feddrm.contract.rounds import Ack, Lost, sign_ack, verify_outcome
from feddrm.contract.signed import sign
from feddrm.method.progress import Words, advance
from feddrm.method.update import model_hash
from privacy.leaves import AbortReason
from secagg.client import VerifiedSum
from secagg.errors import WireError
from secagg.vector import decode_sum
from silo.books import Books
from silo.context import Context, Work
from silo.effects import Effect, FetchSum, Int64s, Log, Send
from silo.state import Job, Outcome, Resolved


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

    def verified(self, job: Job, work: Work, total: VerifiedSum) -> list[Effect]:
        """Apply, record and acknowledge the sum of the round after the job's last, whose tags this silo checked."""
        number, count = job.round + 1, len(total.survivors)
        after = self._next(job, work, number, total.words32, total.words64, count)
        ack = Ack(
            plan=job.plan,
            stage=work.stage(number),
            round=number,
            session=total.session,
            sum=total.sum,
            count=count,
            model=model_hash(after),
        )
        # No leaf yet: the sum is public, but only t acks make it the round's outcome.
        self._context.state.resolve(job.plan, number, Resolved("released", canonical(ack), certified=False), after)
        return [
            Log(f"{work.title(number)}: the sum of {count} silos is verified and applied."),
            Send(AckEvent(sign_ack(ack, self._context.signer))),
        ]

    def acknowledged(self, job: Job) -> list[Effect]:
        """The ack of the last round again, while nothing shows that t silos' acks arrived."""
        known = self._context.state.outcome(job.plan, job.round)
        if known is None or known.outcome != "released" or known.certified:
            return []
        return [Send(AckEvent(sign(self._context.signer, labels.ROUND_ACK, known.record)))]

    def certified(self, previous: RoundOutcome | None, job: Job, work: Work, now_ms: int) -> bytes:
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
        if known is not None and not known.certified and isinstance(record, Lost):
            self._lose(job, work, record, previous, now_ms)
        elif known is None or known.outcome != kind or (kind == "released" and known.record != body):
            raise VerificationError(f"Its outcome of round {job.round} is not the one that this silo knows.")
        elif isinstance(record, Ack):
            self._certify(job, work, record, now_ms)
        return outcome_hash(previous)

    def outcome(self, event: OutcomeEvent, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """Replay a missed round, or settle the last one."""
        outcome = event.outcome
        known = self._context.state.outcome(job.plan, outcome.round)
        if outcome.round not in (job.round, job.round + 1):
            return []
        # What t silos acknowledged is final, and a lost round is not lost twice.
        if known is not None and known.certified and (known.outcome == "released" or outcome.lost is not None):
            return []
        try:
            record = self._verify(outcome, work)
        except (VerificationError, MalformedError) as error:
            return [Log(f"Refused an outcome: {error}", warning=True)]
        if isinstance(record, Lost):
            self._lose(job, work, record, outcome, now_ms)
            return [Log(f"Round {record.round} was lost: {record.reason}.")]
        if known is not None and known.outcome == "released" and known.record == canonical(record):
            self._certify(job, work, record, now_ms)
            return []
        effects: list[Effect] = [FetchSum(record.sum, work.sum_size(record.round))]
        if known is not None and known.outcome == "lost":
            effects.insert(0, self._contradiction(job, outcome))
        self._replay = Replay(job.plan, record)
        return effects

    def overruled(self, previous: RoundOutcome | None, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """What an announcement proves of the last round although this silo was told that it is lost."""
        known = self._context.state.outcome(job.plan, job.round)
        if known is None or known.outcome != "lost" or previous is None or previous.round != job.round:
            return []
        return self.outcome(OutcomeEvent(previous), job, work, now_ms)

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
            words32, words64, _ = decode_sum(data, *work.segments(ack.round))
        except WireError as error:
            raise MalformedError(f"The sum of round {ack.round} has another length.") from error
        after = self._next(job, work, ack.round, words32, words64, ack.count)
        if model_hash(after) != ack.model:
            raise VerificationError(f"The sum of round {ack.round} does not lead to the acknowledged model.")
        # A round that was taken for lost until now: the one begun after it was trained from a model that no longer is.
        self._books.abandon(work, ack.round + 1, AbortReason.LOST, now_ms)
        before = self._context.state.outcome(job.plan, ack.round - 1)
        if before is not None and before.outcome == "released" and not before.certified:
            # t silos built on exactly what this one holds of the round before, so that was certified, too.
            self._certify(job, work, parse_body(before.record, Ack, what="The stored ack"), now_ms)
        # Leaves first, here as everywhere below: after a crash between the two the same happens again, and finds them.
        self._settle(job, work, ack, now_ms)
        self._context.state.resolve(job.plan, ack.round, Resolved("released", canonical(ack), certified=True), after)
        return True

    def _verify(self, outcome: RoundOutcome, work: Work) -> Ack | Lost:
        try:
            record = verify_outcome(outcome, work.plan, self._context.roster, plan_hash=work.plan_hash)
        except NotAuthorisedError as error:
            # The roster lost a silo of this plan in the middle of the job.
            raise VerificationError(
                f"The outcome of round {outcome.round} cannot be verified: {error.message}",
                remedy="A silo of this plan is no longer in the pinned roster; the job needs a new plan.",
            ) from error
        if isinstance(record, Ack) and record.count < work.quorum:
            raise VerificationError(f"The sum of round {record.round} has too few silos in it.")
        return record

    def _lose(self, job: Job, work: Work, record: Lost, outcome: RoundOutcome, now_ms: int) -> None:
        """The round, applied here or not, does not count; the state is the one before it."""
        # The round before may still wait for its certificate, which comes no more: it counts as not released, either.
        for number in (record.round - 1, record.round):
            self._books.abandon(work, number, AbortReason.LOST, now_ms)
        if outcome.lost is not None:
            self._context.state.keep_evidence(job.plan, record.round, outcome.lost.to_json())
        self._context.state.resolve(
            job.plan,
            record.round,
            Resolved("lost", canonical(record), certified=True),
            self._model(job, record.round - 1),
        )

    def _certify(self, job: Job, work: Work, ack: Ack, now_ms: int) -> None:
        self._settle(job, work, ack, now_ms)
        self._context.state.certify(job.plan, ack.round)

    def _settle(self, job: Job, work: Work, ack: Ack, now_ms: int) -> None:
        """End a certified round in the ledger: as released if this silo's update may be in its sum."""
        if any(entered.masked for entered in self._context.state.entered(job.plan, work.stage(ack.round), ack.round)):
            self._books.released(work, ack.round, ack.sum, ack.model, now_ms)
        else:
            self._books.abandon(work, ack.round, AbortReason.DROPPED, now_ms)

    def _contradiction(self, job: Job, outcome: RoundOutcome) -> Log:
        """t silos certify a round that the coordinator signed as lost: both are kept, as evidence against it."""
        state = self._context.state
        acks = f"[{','.join(ack.to_json() for ack in outcome.acks)}]"
        lost = state.evidence(job.plan, outcome.round)
        if acks not in lost:
            state.keep_evidence(job.plan, outcome.round, acks)
        return Log(
            f"The coordinator declared round {outcome.round} lost, yet t silos acknowledged it; the round counts."
            f" Evidence: {' '.join(lost)} {acks}",
            warning=True,
        )

    def _next(self, job: Job, work: Work, number: int, words32: Words, words64: Words, count: int) -> Int64s:
        before = self._model(job, number - 1)
        return advance(work.plan, work.layout, work.stage(number), before, words32, words64, count)

    def _model(self, job: Job, number: int) -> Int64s:
        model = self._context.state.model(job.plan, number)
        if model is None:
            raise LookupError("the state holds no model of a round that it needs")
        return model


def _record_of(outcome: RoundOutcome) -> tuple[Outcome, bytes]:
    if outcome.lost is not None:
        return "lost", outcome.lost.body
    return "released", outcome.acks[0].body
