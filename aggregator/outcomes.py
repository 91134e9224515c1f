"""How a round ends for good, and what follows: the next round, the release, the end of the job (design section 5)."""

from __future__ import annotations

from typing import Final

from aggregator.blobs import MODELS, TRANSCRIPTS
from aggregator.events import Journal, StoreBlob
from aggregator.gather import at_round, catch_up
from aggregator.job import LOST_IN_A_ROW, Job, Room, model_bytes
from aggregator.phases import Ended, Gathering, Proposing
from aggregator.release import statement_of
from feddrm.contract.messages import JobEnded, OutcomeEvent, ReleaseProposal, RoundOutcome
from feddrm.contract.operator_messages import RoundSummary
from feddrm.contract.rounds import Lost, sign_lost

BACKOFF_MS: Final = 500
"""Pause before the first retry; it doubles with every further one."""


def begin_round(job: Job, room: Room) -> None:
    """Go on after a round has ended: gather for the next one, propose the release, or give up."""
    now = room.stamp.now_ms
    if job.lost_in_a_row() >= LOST_IN_A_ROW:
        end(job, room, completed=False, reason=f"{LOST_IN_A_ROW} rounds in a row were lost; see the log for why")
    elif shortfall := _shortfall(job):
        end(job, room, completed=False, reason=shortfall)
    elif not job.finished:
        pause = BACKOFF_MS << job.lost_in_a_row() if job.lost_in_a_row() else 0
        job.phase = Gathering(len(job.outcomes) + 1, 1, now, now + pause)
    else:
        job.phase = Proposing(statement_of(job), now)
        room.effects += [
            StoreBlob(MODELS, model_bytes(job)),
            Journal(f"all rounds of {job.plan.name} are done; asking for signatures on the release"),
        ]
        for silo in job.accepting:
            propose(job, room, silo)


def _shortfall(job: Job) -> str:
    """Why no release can come of the job any more, or nothing; asked when a stage has ended, before the next one is
    charged to anybody."""
    done = len(job.outcomes)
    if done == 0 or (done < job.rounds and job.stage(done + 1) == job.stage(done)):
        return ""
    return job.reached().shortfall(job.plan, up_to=job.stage(done))


def propose(job: Job, room: Room, silo: str) -> None:
    """Ask a silo that holds the last model for its signature on the release, once it does."""
    ready = room.presence(silo).ready
    phase = job.phase
    if not isinstance(phase, Proposing) or silo in phase.signatures or ready is None:
        return
    if at_round(job, ready, len(job.outcomes)):
        if job.outcomes:
            # A silo signs only what the certified outcome of the last round covers; who acked it was not sent that.
            room.send(silo, OutcomeEvent(job.outcomes[-1]))
        room.send(silo, ReleaseProposal(phase.statement))


def lose(job: Job, room: Room, number: int, attempt: int, cohort: tuple[str, ...], reason: str) -> None:
    """Declare a round lost: signed by the round key, its budget stays spent, the state stays."""
    lost = Lost(plan=job.hash, stage=job.stage(number), round=number, reason=reason[:200])
    outcome = RoundOutcome(number, lost=sign_lost(lost, room.signer))
    summary = RoundSummary(number, attempt, "lost", cohort, (), (), b"", job.stage(number))
    job.conclude(outcome, summary, None)
    room.effects.append(Journal(f"{job.name(number)} is lost: {reason}"))
    for presence in room.presences.values():
        # Also a silo that has the round's sum already must hear that it does not count.
        presence.told = min(presence.told, number - 1)
    begin_round(job, room)
    tell(job, room)


def end(job: Job, room: Room, *, completed: bool, reason: str) -> None:
    """End the job and tell everybody."""
    job.phase = Ended(completed, reason)
    room.effects += [
        StoreBlob(TRANSCRIPTS, job.record().to_bytes()),
        Journal(f"job {job.plan.name} ended: {reason}"),
    ]
    for silo in job.plan.silos:
        room.send(silo, JobEnded(job.hash, reason, completed))


def tell(job: Job, room: Room) -> None:
    """Send the outcomes they lack to all silos that are there."""
    for silo in job.accepting:
        presence = room.presences.get(silo)
        if presence is not None:
            note(room, catch_up(job, room, silo, presence))


def note(room: Room, text: str) -> None:
    """Write a sentence into the journal, if there is one."""
    if text:
        room.effects.append(Journal(text))
