"""Release statements: a silo signs only what it recomputed itself (design 5, stage 5)."""

from __future__ import annotations

from feddrm.contract.errors import VerificationError
from feddrm.contract.messages import ReleaseProposal, ReleaseSignature
from feddrm.contract.release import make_statement, release_hash, sign_statement
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan
from feddrm.method.update import head_hash, trunk_hash
from silo.context import Context, Work, current_model
from silo.effects import Effect, Log, ReleaseSigned, Send
from silo.state import Job


def own_statement(context: Context, work: Work, job: Job) -> bytes:
    """The statement's body as this silo's own model gives it."""
    model = current_model(context.state, job)
    return make_statement(
        SignedPlan(work.plan, work.plan_hash, job.signed),
        trunk=trunk_hash(work.layout, model),
        head=head_hash(work.layout, model),
        layout=work.layout.fingerprint(),
        rounds=context.state.released(job.plan),
    ).body()


class Releases:
    """Signs at most one statement for a plan, once the plan's last round is settled for good."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: ReleaseProposal | None = None

    def propose(self, work: Work, job: Job, event: ReleaseProposal) -> list[Effect]:
        """Sign the proposed statement if it is byte for byte this silo's own, after the plan's last round."""
        self._waiting = None
        if job.round != work.plan.training.rounds:
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
        if not self._context.state.add_release(release, job.plan, current_model(self._context.state, job), personal[1]):
            return [Log("Did not sign a release: another one of this plan was signed before.", warning=True)]
        return [Send(ReleaseSignature(sign_statement(statement, self._context.signer))), ReleaseSigned(release)]

    def settled(self, work: Work, job: Job) -> list[Effect]:
        """An outcome has arrived: look at a proposal that waited for it again."""
        waiting = self._waiting
        known = self._context.state.outcome(job.plan, job.round)
        if waiting is None or known is None or not known.certified:
            return []
        return self.propose(work, job, waiting)
