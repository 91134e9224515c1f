"""Who can take part in the next attempt, who is waited for, and how a silo that was away catches up."""

from __future__ import annotations

from enum import Enum
from typing import Final

from aggregator.job import Job, Presence, Room
from aggregator.phases import Acknowledging, Ended, Gathering
from feddrm.contract.messages import DeclineReason, JobEnded, JobOffer, OutcomeEvent, PlanAnswer, Ready


class Standing(Enum):
    """A silo in a job. Those in `WAITED_FOR` may still become ready by themselves."""

    READY = "ready"
    OFFLINE = "offline"
    ASKED = "asked whether it takes part"
    BEHIND = "catching up"
    DECLINED = "declined"
    BARRED = "left out"
    RESTING = "sits out this round"


# Stands for an agent process that never comes, where a bar lasts as long as the job.
FOR_GOOD: Final = b""

WAITED_FOR = frozenset({Standing.OFFLINE, Standing.ASKED, Standing.BEHIND})


def standing(job: Job, presence: Presence, silo: str) -> Standing:
    """Where a silo of the plan stands with respect to the next attempt."""
    answer = job.answers.get(silo)
    if answer is not None and not answer.accepted:
        return Standing.DECLINED
    if silo in job.barred:
        return Standing.BARRED
    if isinstance(job.phase, Gathering) and silo in job.phase.resting:
        return Standing.RESTING
    if not presence.connected or presence.ready is None:
        return Standing.OFFLINE
    if answer is None:
        return Standing.ASKED
    return Standing.READY if at_round(job, presence.ready, len(job.outcomes)) else Standing.BEHIND


def at_round(job: Job, ready: Ready, after: int) -> bool:
    """Whether a silo's model is the one after round `after`."""
    return ready.plan == job.hash and ready.round == after and ready.model == job.models[after]


def gathered(job: Job, room: Room) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(silos that are ready, silos that are waited for), each in plan order."""
    places = {silo: standing(job, room.presence(silo), silo) for silo in job.plan.silos}
    return (
        tuple(silo for silo, place in places.items() if place is Standing.READY),
        tuple(silo for silo, place in places.items() if place in WAITED_FOR),
    )


def due_ms(job: Job, room: Room, phase: Gathering) -> int | None:
    """When something is to be decided: announce, or give the round up. None while only a silo can change anything."""
    if not job.releasable:
        return None
    ready, waited_for = gathered(job, room)
    patience = max((phase.not_before_ms, *(patience_ms(job, room.presence(silo)) for silo in waited_for)))
    if len(ready) >= job.quorum:
        return patience
    if len(ready) + len(phase.resting) < job.quorum:
        return None
    # Those who sit out this round would be enough for the next one.
    return patience if len(ready) + len(waited_for) >= job.quorum else phase.not_before_ms


def patience_ms(job: Job, presence: Presence) -> int:
    """Until when the others wait for a silo that is not ready.

    One that is connected has something to do (loading data, answering, catching up) and gets as long as for training;
    one that is away is waited for from when it left, so that it delays one round once, not every round.
    """
    deadlines = job.plan.deadlines
    if presence.connected:
        return max(job.started_ms, presence.heard_ms) + round(deadlines.train_seconds * 1000)
    return max(job.started_ms, presence.left_ms) + round(deadlines.gather_seconds * 1000)


def offer(job: Job, room: Room, silo: str, ready: Ready) -> None:
    """Offer the plan to a silo that has not answered, has forgotten its answer, or declined as another process."""
    answer = job.answers.get(silo)
    forgotten = answer is not None and answer.accepted and ready.plan != job.hash
    changed = answer is not None and not answer.accepted and job.declined_boot.get(silo) != ready.boot
    if answer is None or forgotten or changed:
        room.send(silo, JobOffer(job.signed_plan.signed))


def take_answer(job: Job, silo: str, answer: PlanAnswer, boot: bytes) -> str:
    """Note a silo's answer; returns a sentence for the journal."""
    job.answers[silo] = answer
    if answer.accepted:
        job.declined_boot.pop(silo, None)
        return f"{silo} takes part in {job.plan.name}"
    job.declined_boot[silo] = boot
    return f"{silo} declined {job.plan.name}: {reason_word(answer.reason)}"


def reason_word(reason: DeclineReason | None) -> str:
    """The generic reason in a word."""
    return reason.name.lower() if reason is not None else "no reason given"


def catch_up(job: Job, room: Room, silo: str, presence: Presence) -> str:
    """Send a silo the outcomes it lacks, in order; returns a sentence for the journal when it cannot be helped.

    Called when a silo says where it is, and when a round has ended.
    """
    ready = presence.ready
    if ready is None or not presence.connected or ready.plan != job.hash or silo in job.barred:
        return ""
    known = len(job.outcomes)
    if ready.round > known:
        phase = job.phase
        applied = isinstance(phase, Acknowledging) and (ready.round, ready.model) == (phase.round, phase.model_hash)
        return "" if applied else bar(job, silo, ready.boot, "it is ahead of the coordinator; was that restored?")
    if presence.told < known:
        for outcome in job.outcomes[presence.told :]:
            room.send(silo, OutcomeEvent(outcome))
        presence.told = known
    return ""


def hear(job: Job, presence: Presence, silo: str, *, again: bool) -> str:
    """Work out what a silo that says where it is must be told; returns a sentence for the journal if it is barred.

    A silo whose model after a round differs from the certified one (it applied a sum that was lost afterwards) gets
    that round's outcome once more; if it still differs after that, it is left out.

    Args:
        again: it said exactly the same before on this stream, so what it lacked is on its way.
    """
    ready = presence.ready
    if ready is None or ready.plan != job.hash:
        return ""
    if ready.round > len(job.outcomes) or ready.model == job.models[ready.round]:
        presence.disputed = False
        presence.told = max(presence.told, ready.round) if again else ready.round
        return ""
    if ready.round == 0 or presence.disputed:
        return bar(job, silo, ready.boot, f"its model after round {ready.round} differs")
    presence.disputed = True
    presence.told = ready.round - 1
    return ""


def bar(job: Job, silo: str, boot: bytes, why: str, *, lasting: bool = False) -> str:
    """Leave a silo out until another agent process of its appears, or for the rest of the job; returns a sentence for
    the journal."""
    if silo in job.barred and (not lasting or job.barred[silo][0] == FOR_GOOD):
        return ""
    job.barred[silo] = (FOR_GOOD if lasting else boot, why)
    return f"{silo} is left out{' for the rest of the job' if lasting else ''}: {why}"


def say_ended(job: Job, room: Room, silo: str) -> None:
    """Tell a silo that the job is over."""
    if isinstance(job.phase, Ended):
        room.send(silo, JobEnded(job.hash, job.phase.reason, job.phase.completed))
