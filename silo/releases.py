"""Release statements: a silo signs only what it recomputed itself (design 5, stage 5)."""

from __future__ import annotations

from feddrm.contract.errors import VerificationError
from feddrm.contract.messages import ReleaseProposal, ReleaseSignature
from feddrm.contract.release import release_hash, sign_statement
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan
from feddrm.method.progress import answering_model, statement_of
from silo.context import Context, Work, current_model, needs_no_round
from silo.effects import Effect, Log, ReleaseSigned, Send
from silo.state import Job


def own_statement(context: Context, work: Work, job: Job) -> bytes:
    """The statement's body as this silo's own model gives it."""
    signed = SignedPlan(work.plan, work.plan_hash, job.signed)
    state = current_model(context.state, job)
    return statement_of(signed, work.layout, state, context.state.released(job.plan)).body()


class Releases:
    """Signs at most one statement for a plan, once the plan's last round is settled for good."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: ReleaseProposal | None = None

    def propose(self, work: Work, job: Job, event: ReleaseProposal) -> list[Effect]:
        """Sign the proposed statement if it is byte for byte this silo's own, after the plan's last round."""
        self._waiting = None
        if not needs_no_round(self._context.state, work, job):
            return [Log(f"Did not sign a release: this silo has only seen round {job.round}.", warning=True)]
        known = self._context.state.outcome(job.plan, job.round)
        if known is None or not known.certified:
            # It may yet be declared lost. The outcome comes before the proposal, or after it, or after the next Ready.
            self._waiting = event
            return [Log(f"Will sign the release when round {job.round} is certified.")]
        try:
            statement = own_statement(self._context, work, job)
        except VerificationError as error:
            return [Log(f"Did not sign a release: {error}", warning=True)]
        if event.statement != statement:
            return [Log("Did not sign a release: it is not what this silo's own model gives.", warning=True)]
        release = release_hash(Signed(statement, ()))
        personal = self._context.state.personal(job.plan)
        if personal is None:
            raise LookupError("an accepted job has no personal head")
        model = answering_model(work.plan, work.layout, current_model(self._context.state, job))
        if not self._context.state.add_release(release, job.plan, model, personal[1]):
            return [Log("Did not sign a release: another one of this plan was signed before.", warning=True)]
        return [Send(ReleaseSignature(sign_statement(statement, self._context.signer))), ReleaseSigned(release)]

    def settled(self, job: Job) -> ReleaseProposal | None:
        """A proposal that waited for an outcome which has arrived."""
        known = self._context.state.outcome(job.plan, job.round)
        return self._waiting if known is not None and known.certified else None
