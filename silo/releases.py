"""Release statements: a silo signs only what it recomputed itself (design 5, stage 5)."""

from __future__ import annotations

import hashlib

from feddrm.contract.errors import VerificationError
from feddrm.contract.messages import ReleaseProposal, ReleaseSignature
from feddrm.contract.release import make_statement, sign_statement
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


def sign_proposal(context: Context, work: Work, job: Job, event: ReleaseProposal) -> list[Effect]:
    """Sign the proposed statement if it is byte for byte this silo's own, after the plan's last round."""
    if job.round != work.plan.training.rounds:
        return [Log(f"Did not sign a release: this silo has only seen round {job.round}.", warning=True)]
    try:
        statement = own_statement(context, work, job)
    except VerificationError as error:
        return [Log(f"Did not sign a release: {error}", warning=True)]
    if event.statement != statement:
        return [Log("Did not sign a release: it is not what this silo's own model gives.", warning=True)]
    release = hashlib.sha256(statement).digest()
    context.state.add_release(release, job.plan)
    return [Send(ReleaseSignature(sign_statement(statement, context.signer))), ReleaseSigned(release)]
