"""A sum is published: acks make it the round's certified outcome, signatures make the last model a release."""

from __future__ import annotations

from aggregator.blobs import SUMS
from aggregator.events import Journal, StoreBlob
from aggregator.job import Job, Room
from aggregator.offences import punish
from aggregator.outcomes import begin_round, lose, note, tell
from aggregator.phases import Acknowledging, Proposing, Running
from feddrm.contract import labels
from feddrm.contract.documents import canonical
from feddrm.contract.messages import SMALL_VECTOR, Publish, RoundOutcome
from feddrm.contract.operator_messages import RoundSummary
from feddrm.contract.release import required_signatures
from feddrm.contract.rounds import Ack
from feddrm.contract.schedule import STAGE_EVALUATE
from feddrm.contract.signed import Signed, signers
from feddrm.method.progress import advance
from feddrm.method.update import model_hash
from secagg.server import Published
from secagg.wire import Frame


def publish(job: Job, room: Room, phase: Running, published: Published) -> None:
    """Compute the next state, keep the sum, and tell the members of it."""
    plan, session = job.plan, phase.session
    punish(job, room, session, broken=False)
    frame = published.frame
    count = len(published.survivors)
    stage = job.stage(phase.round)
    model = advance(plan, job.layout, stage, job.model, published.words32, published.words64, count)
    ack = Ack(
        plan=job.hash,
        stage=stage,
        round=phase.round,
        session=session.state.session,
        sum=published.sum,
        count=count,
        model=model_hash(model),
    )
    wait = plan.deadlines.step_seconds + plan.deadlines.gather_seconds
    job.phase = Acknowledging(
        round=phase.round,
        attempt=phase.attempt,
        session=session,
        frame=frame if len(frame.attachment) <= SMALL_VECTOR else frame.without_attachment(),
        sum=published.sum,
        survivors=published.survivors,
        opened=published.opened,
        model=model,
        model_hash=model_hash(model),
        body=canonical(ack),
        deadline_ms=room.stamp.now_ms + round(wait * 1000),
        gone=dict(session.gone),
    )
    opened = f"; mask keys of {', '.join(job.phase.opened)} were opened" if job.phase.opened else ""
    room.effects += [
        StoreBlob(SUMS, frame.attachment),
        Journal(f"{job.name(phase.round)}: sum of {', '.join(published.survivors)} published{opened}"),
    ]
    for silo in job.phase.waiting():
        publish_to(job.phase, room, silo)


def publish_to(phase: Acknowledging, room: Room, silo: str) -> None:
    """Tell a member of the session about the sum. One that cannot use it gets the certified outcome instead."""
    room.send(silo, Publish(phase.frame, phase.sum))


def take_ack(job: Job, room: Room, phase: Acknowledging, silo: str, ack: Signed) -> None:
    """Count a silo's ack if it is about exactly this sum and model."""
    if silo not in phase.recipients() or silo in phase.acks:
        return
    key = job.key(silo)
    if ack.body != phase.body:
        note(room, f"{silo} acknowledges something else than round {phase.round} published")
    elif key not in signers(ack, labels.ROUND_ACK):
        note(room, f"{silo} sent an ack without its signature")
    else:
        own = tuple(signature for signature in ack.signatures if signature.key == key)
        phase.acks[silo] = Signed(ack.body, own[:1])
        room.presences[silo].told = max(room.presences[silo].told, phase.round)
        advance_acks(job, room, phase)


def take_abort(job: Job, room: Room, phase: Acknowledging, silo: str, frame: Frame) -> None:
    """Count a member's accusation that came only after the sum: what it proves is proven all the same."""
    abort = phase.session.receive_abort(silo, frame, job.key(silo))
    if abort is None:
        return
    note(room, f"{silo} aborts: {abort.reason}")
    phase.gone.setdefault(silo, abort.reason)
    punish(job, room, phase.session, broken=False)


def advance_acks(job: Job, room: Room, phase: Acknowledging) -> None:
    """Certify the round with t acks; give it up when so many cannot come any more."""
    if len(phase.acks) >= job.threshold:
        acks = tuple(phase.acks[silo] for silo in job.plan.silos if silo in phase.acks)
        cohort = phase.session.announcement.cohort
        job.conclude(
            RoundOutcome(phase.round, acks, phase.sum),
            RoundSummary(
                round=phase.round,
                attempt=phase.attempt,
                outcome="published",
                cohort=cohort,
                survivors=phase.survivors,
                mask_keys_opened=phase.opened,
                sum=phase.sum,
                stage=job.stage(phase.round),
            ),
            phase.model,
        )
        room.effects.append(Journal(f"{job.name(phase.round)} is certified by {len(acks)} silos"))
        begin_round(job, room)
        tell(job, room)
        return
    possible = [silo for silo in phase.recipients() if silo in phase.acks or silo not in phase.gone]
    due = give_up_ms(job, phase)
    if len(possible) < job.threshold or (due is not None and room.stamp.now_ms >= due):
        absent = ", ".join(silo for silo in phase.recipients() if silo not in phase.acks)
        reason = f"fewer than {job.threshold} silos acknowledged the sum; without {absent}"
        lose(job, room, phase.round, phase.attempt, phase.session.announcement.cohort, reason)


def give_up_ms(job: Job, phase: Acknowledging) -> int | None:
    """When a sum counts as lost that too few have acknowledged; None: never while enough still can.

    An evaluation that was opened cannot be repeated: silos refuse a second sum beside one that may be known. Where a
    release requires it, giving it up would cost the release, and nothing else waits for it.
    """
    evaluation = job.plan.evaluation
    insisted = evaluation is not None and evaluation.required and job.stage(phase.round) == STAGE_EVALUATE
    return None if insisted else phase.deadline_ms


def take_signature(job: Job, room: Room, phase: Proposing, silo: str, statement: Signed) -> None:
    """Count a silo's signature on the release statement."""
    key = job.key(silo)
    if statement.body != phase.statement or key not in signers(statement, labels.RELEASE):
        note(room, f"{silo} signed another release statement than the proposed one")
        return
    if silo in phase.signatures or silo not in job.accepting:
        return
    phase.signatures[silo] = next(s for s in statement.signatures if s.key == key)
    required = required_signatures(job.plan)
    if len(phase.signatures) == required:
        room.effects.append(Journal(f"the release of {job.plan.name} has {required} signatures; it can be published"))
