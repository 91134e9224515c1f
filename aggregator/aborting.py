"""A session that broke: whom to leave out, the abort certificate, and the next attempt (design section 6)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aggregator.certify import certificate
from aggregator.events import Journal
from aggregator.gather import FOR_GOOD
from aggregator.job import Job, Room
from aggregator.offences import punish
from aggregator.outcomes import BACKOFF_MS, lose
from aggregator.phases import Aborting, Gathering, Running
from aggregator.session import Session
from feddrm.contract.messages import Notice
from secagg.wire import Frame

MAXIMUM_ATTEMPTS: Final = 5


def break_session(job: Job, room: Room, phase: Running, reason: str, *, masked: bool) -> None:
    """Go on after a session that cannot produce a sum. `masked`: a member may have sent a masked input."""
    room.effects.append(Journal(f"{job.name(phase.round)} attempt {phase.attempt} broke: {reason}"))
    session = phase.session
    settled = punish(job, room, session, broken=True)
    judge_accusations(job, session, phase.resting, settled)
    if not masked:
        # Nobody was told whom to mask with, so nobody can have masked: no certificate is needed.
        _retry(job, room, phase, reason, phase.certificate)
        return
    deadline = room.stamp.now_ms + round(job.plan.deadlines.step_seconds * 1000)
    job.phase = Aborting(phase.round, phase.attempt, session, reason, deadline, phase.resting)
    for silo in sorted(session.unmasked):
        phase.resting.setdefault(silo, "it released shares in this round")
    for silo, request in session.request_abort(reason).items():
        if silo not in session.aborts:
            room.send(silo, request)
    advance_abort(job, room, job.phase)


def judge_accusations(job: Job, session: Session, resting: dict[str, str], settled: Collection[str] = ()) -> None:
    """What neither proof nor number has settled (aggregator.offences): nobody can tell who lies, so accuser and accused
    sit a round out in turn, or a liar could keep one chosen victim out of every sum by making it complain."""
    for silo in sorted(session.aborts.keys() - set(settled)):
        accused = session.said[silo].blamed
        if accused in session.punished:
            continue
        quarrel = f"{silo}>{accused}"
        job.quarrels[quarrel] = job.quarrels.get(quarrel, 0) + 1
        if accused in session.boots and job.quarrels[quarrel] % 2 == 0:
            resting.setdefault(accused, f"{silo} blames it again")
        else:
            resting.setdefault(silo, session.gone.get(silo, "it left the attempt"))


def say_why(job: Job, room: Room, silo: str) -> None:
    """Tell a silo that is left out why: its own people are the ones who can act on it."""
    if silo in job.barred:
        boot, why = job.barred[silo]
        until = "for the rest of the job" if boot == FOR_GOOD else "until its agent is restarted"
        room.send(silo, Notice(f"{silo} is left out of {job.plan.name} {until}: {why}"))


def advance_abort(job: Job, room: Room, phase: Aborting) -> None:
    """Retry as soon as there is a certificate; give the round up when none can come any more."""
    session = phase.session
    over = room.stamp.now_ms >= phase.deadline_ms or not phase.waiting()
    found = certificate(session, {silo: job.key(silo) for silo in session.announcement.cohort}, last_chance=over)
    if found or over:
        # Who was away when the attempt broke may have brought evidence only now.
        punish(job, room, session, broken=True)
    if found:
        _retry(job, room, phase, phase.reason, found)
    elif over:
        lose(job, room, phase.round, phase.attempt, session.announcement.cohort, phase.reason)


def _retry(job: Job, room: Room, phase: Running | Aborting, reason: str, abort_certificate: tuple[Frame, ...]) -> None:
    if phase.attempt >= MAXIMUM_ATTEMPTS:
        lose(job, room, phase.round, phase.attempt, phase.session.announcement.cohort, reason)
        return
    now = room.stamp.now_ms
    job.phase = Gathering(
        phase.round,
        phase.attempt + 1,
        now,
        now + (BACKOFF_MS << phase.attempt),
        abort_certificate,
        phase.resting,
        phase.session.shown,
    )
