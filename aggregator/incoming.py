"""What a silo says to the coordinator, and what follows (design sections 5 and 9)."""

from __future__ import annotations

from aggregator import aborting, acknowledge, gather, offences, outcomes, rounds
from aggregator.events import Journal
from aggregator.job import Job, Room
from aggregator.phases import Aborting, Acknowledging, Proposing, Running
from feddrm.contract.messages import (
    AckEvent,
    JobEnded,
    PlanAnswer,
    Ready,
    ReleaseSignature,
    SiloEvent,
    SiloFrame,
)
from secagg.wire import Step


def receive(job: Job | None, room: Room, silo: str, message: SiloEvent) -> None:
    """Act on what a silo says; what it may not say, or not now, changes nothing."""
    if isinstance(message, Ready):
        _greet(job, room, silo, message)
        return
    if job is None or silo not in job.plan.silos or job.ended:
        return
    text = ""
    match message, job.phase:
        case PlanAnswer(plan=plan) as answer, phase if plan == job.hash:
            text = gather.take_answer(job, silo, answer, room.presence(silo).boot)
            if not answer.accepted and isinstance(phase, Running):
                phase.session.lose(silo, "declined")
        case SiloFrame(frame), Running(session=session) | Aborting(session=session) if frame.step == Step.ABORT:
            abort = session.receive_abort(silo, frame, job.key(silo))
            text = "" if abort is None else f"{silo} aborts: {abort.reason}"
        case SiloFrame(frame), Acknowledging() as phase if frame.step == Step.ABORT:
            acknowledge.take_abort(job, room, phase, silo, frame)
        case SiloFrame(frame), Running(session=session):
            text = session.receive(silo, frame)
        case AckEvent(ack), Acknowledging() as phase:
            acknowledge.take_ack(job, room, phase, silo, ack)
        case ReleaseSignature(statement), Proposing() as phase:
            acknowledge.take_signature(job, room, phase, silo, statement)
        case _:
            pass
    if text:
        room.effects.append(Journal(text))
    if isinstance(job.phase, Running | Aborting):
        offences.keep_evidence(job, room, job.phase.session)


def _greet(job: Job | None, room: Room, silo: str, ready: Ready) -> None:
    presence = room.presences[silo]
    again = presence.connected and presence.ready == ready
    presence.connected, presence.ready = True, ready
    if job is None or silo not in job.plan.silos:
        if ready.plan:
            room.send(silo, JobEnded(ready.plan, "this job is not running here", completed=False))
        return
    if ready.plan and ready.plan != job.hash:
        room.send(silo, JobEnded(ready.plan, "another job took its place", completed=False))
    if silo in job.barred and job.barred[silo][0] not in (gather.FOR_GOOD, ready.boot):
        del job.barred[silo]
    aborting.say_why(job, room, silo)
    notes = [gather.hear(job, presence, silo, again=again)]
    if job.ended:
        if ready.plan == job.hash:
            notes.append(gather.catch_up(job, room, silo, presence))
            gather.say_ended(job, room, silo)
    else:
        gather.offer(job, room, silo, ready)
        rounds.resume(job, room, silo, ready)
        notes.append(gather.catch_up(job, room, silo, presence))
        if not again:
            outcomes.propose(job, room, silo)
    room.effects += [Journal(note) for note in notes if note]
