"""A round from its announcement on: which session is open, who comes back in the middle, what can be closed.

Every function takes the job and the room of the event at hand, and leaves effects in the room (design section 5).
"""

from __future__ import annotations

from aggregator.aborting import advance_abort, break_session
from aggregator.acknowledge import advance_acks, publish, publish_to
from aggregator.events import Journal
from aggregator.gather import due_ms, gathered
from aggregator.job import Job, Room
from aggregator.outcomes import lose
from aggregator.phases import Aborting, Acknowledging, Gathering, Running
from aggregator.session import Broken, Session, Summed
from feddrm.contract.announce import announcement_of
from feddrm.contract.messages import Announce, CoordinatorEvent, Ready
from feddrm.contract.sections import MAXIMUM_SILOS
from secagg.server import open_session


def gather(job: Job, room: Room, phase: Gathering) -> None:
    """The time to decide has come: announce to those who are ready, or give the round up for the next one."""
    due = due_ms(job, room, phase)
    if due is None or room.stamp.now_ms < due:
        return
    ready, _ = gathered(job, room)
    if len(ready) >= job.quorum:
        announce(job, room, phase)
    else:
        resting = ", ".join(sorted(phase.resting))
        lose(job, room, phase.round, phase.attempt, (), f"too few silos may try it again; without {resting}")


def announce(job: Job, room: Room, phase: Gathering) -> None:
    """Open a session with the silos that are ready."""
    cohort, _ = gathered(job, room)
    now = room.stamp.now_ms
    deadline = now + round(job.plan.deadlines.train_seconds * 1000)
    announcement = announcement_of(
        job.plan, job.place(), attempt=phase.attempt, cohort=cohort, deadline_ms=deadline, nonce=room.stamp.seed
    )
    keys = {silo: job.key(silo) for silo in cohort}
    state, frame = open_session(announcement, room.signer, keys)
    outbox: dict[str, CoordinatorEvent] = {
        silo: Announce(
            frame, phase.certificate, job.outcomes[-1] if job.outcomes else None, _witnessed(room, phase, cohort, silo)
        )
        for silo in cohort
    }
    session = Session(
        announcement=announcement,
        frame=frame,
        state=state,
        keys=keys,
        boots={silo: room.presence(silo).boot for silo in cohort},
        deadline_ms=deadline,
        step_ms=round(job.plan.deadlines.step_seconds * 1000),
        outbox=outbox,
        shown={silo: set(sizes) for silo, sizes in phase.shown.items()},
    )
    job.phase = Running(phase.round, phase.attempt, session, phase.resting, phase.certificate)
    room.effects.append(
        Journal(
            f"{job.name(phase.round)} attempt {phase.attempt}: announced to {len(cohort)} silos ({', '.join(cohort)})"
        )
    )
    for silo in cohort:
        room.send(silo, outbox[silo])


def resume(job: Job, room: Room, silo: str, ready: Ready) -> None:
    """A silo says where it is in the middle of a round: send it again what it has not answered, or note that its agent
    was restarted, so that what it held in memory is gone."""
    match job.phase:
        case Running(session=session) if silo in session.boots:
            if ready.boot != session.boots[silo]:
                session.lose(silo, "its agent was restarted")
            elif session.expects(silo) and silo in session.outbox:
                room.send(silo, session.outbox[silo])
        case Aborting(session=session, reason=reason) as phase if silo in phase.waiting():
            room.send(silo, session.request_abort(reason)[silo])
        case Acknowledging(session=session) as phase if silo in phase.waiting():
            applied = (ready.plan, ready.round, ready.model) == (job.hash, phase.round, phase.model_hash)
            if ready.boot != session.boots[silo] and not applied:
                phase.gone[silo] = "its agent was restarted"
            elif not applied:
                publish_to(phase, room, silo)
        case _:
            pass


def _witnessed(room: Room, phase: Gathering, cohort: tuple[str, ...], silo: str) -> tuple[int, ...]:
    """What the peers say that they hold of a silo's ledger, and what they were shown of it since they said so."""
    sizes = set(phase.shown.get(silo, ()))
    for peer in cohort:
        ready = room.presence(peer).ready
        if peer != silo and ready is not None:
            sizes |= {size for name, size in ready.witnessed if name == silo}
    return tuple(sorted(sizes))[-MAXIMUM_SILOS:]


def advance(job: Job, room: Room) -> None:
    """Close what can be closed, whatever the phase; idempotent."""
    match job.phase:
        case Running():
            _advance_session(job, room, job.phase)
        case Aborting():
            advance_abort(job, room, job.phase)
        case Acknowledging():
            advance_acks(job, room, job.phase)
        case _:
            pass


def _advance_session(job: Job, room: Room, phase: Running) -> None:
    session = phase.session
    recipients, end_of_session = session.advance(room.stamp.now_ms, room.connected)
    for silo in recipients:
        room.send(silo, session.outbox[silo])
    match end_of_session:
        case Summed(published):
            publish(job, room, phase, published)
        case Broken(reason, masked):
            break_session(job, room, phase, reason, masked=masked)
