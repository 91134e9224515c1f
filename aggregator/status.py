"""What `feddrm-aggregator status` shows: in one place, so that nothing else decides what leaves the coordinator."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.acknowledge import give_up_ms
from aggregator.coordinator import Coordinator
from aggregator.gather import FOR_GOOD, WAITED_FOR, Standing, at_round, gathered, reason_word, standing
from aggregator.job import Job, Presence, Room
from aggregator.phases import Aborting, Acknowledging, Ended, Gathering, Proposing, Running
from feddrm.contract.operator_messages import HISTORY_LIMIT, SiloStatus, Status
from feddrm.contract.release import release_id, required_signatures
from feddrm.contract.signed import Signed
from feddrm.method.card import figures_of
from secagg.wire import Step

_DOING = {
    Step.KEYS: "training",
    Step.SHARES: "summing",
    Step.MASKED: "summing",
    Step.CONSISTENCY: "summing",
    Step.UNMASK: "summing",
}


def status_of(coordinator: Coordinator, room: Room, capacity: Mapping[str, int]) -> Status:
    """The newest job, or an idle federation.

    Args:
        room: any room of this coordinator.
        capacity: how many queries each silo with an open relay stream takes at once.
    """
    job = coordinator.job
    idle = ("idle", "", 0, (), "no job was started")
    state, step, attempt, waiting, detail = idle if job is None else _phase(job, room)
    names = tuple(silo.name for silo in coordinator.roster.silos)
    return Status(
        federation=coordinator.federation,
        roster_version=coordinator.roster.version,
        plan=b"" if job is None else job.hash,
        job="" if job is None else job.plan.name,
        state=state,
        round=0 if job is None else _round(job),
        rounds=0 if job is None else job.rounds_shown,
        attempt=attempt,
        step=step,
        waiting_for=waiting,
        silos=tuple(
            SiloStatus(
                name=name,
                connected=room.presence(name).connected,
                state=_silo(job, room.presence(name), name),
                rounds_joined=0 if job is None else job.joined(name),
                capacity=capacity.get(name, 0),
            )
            for name in names
        ),
        history=() if job is None else tuple(job.history[-HISTORY_LIMIT:]),
        detail=detail,
        release=coordinator.releases.current,
        stage=0 if job is None or not job.rounds else job.stage(_round(job)),
        figures=() if job is None else figures_of(job.plan, job.reached().evaluation),
    )


def _round(job: Job) -> int:
    return min(len(job.outcomes) + 1, job.rounds_shown)


def _phase(job: Job, room: Room) -> tuple[str, str, int, tuple[str, ...], str]:
    match job.phase:
        case Gathering(attempt=attempt):
            ready, waiting = gathered(job, room)
            return "gathering", "", attempt, waiting, _gathering(job, ready, waiting)
        case Running(attempt=attempt, session=session):
            waiting = session.waiting()
            return _DOING[session.step], session.step.name.lower(), attempt, waiting, _for(waiting)
        case Aborting(attempt=attempt, reason=reason) as phase:
            return "aborting", "abort", attempt, phase.waiting(), f"{reason}; collecting signed aborts"
        case Acknowledging(attempt=attempt) as phase:
            waiting = phase.waiting()
            return "acknowledging", "publish", attempt, waiting, _acknowledging(job, phase, waiting)
        case Proposing(signatures=signatures) as phase:
            waiting = tuple(s for s in job.accepting if s not in signatures)
            required = required_signatures(job.plan)
            count = f"{len(signatures)} of {required} needed signatures"
            released = release_id(Signed(phase.statement, ()))
            if len(signatures) >= required:
                how = f"feddrm-aggregator release publish {released} --operator DIR"
                return "release ready", "", 0, waiting, f"{count}; publish it with: {how}"
            return "releasing", "", 0, waiting, f"{count}; {_for(waiting)}"
        case Ended(completed, reason):
            if completed:
                return "completed", "", 0, (), reason
            return ("stopped" if reason.startswith("stopped") else "failed"), "", 0, (), reason


def _acknowledging(job: Job, phase: Acknowledging, waiting: tuple[str, ...]) -> str:
    if give_up_ms(job, phase) is not None:
        return _for(waiting)
    missing = job.threshold - len(phase.acks)
    return f"{_for(waiting)}; its sum was opened, cannot be had again, and counts once {missing} of them acknowledge it"


def _for(waiting: tuple[str, ...]) -> str:
    return f"waiting for {', '.join(waiting)}" if waiting else ""


def _gathering(job: Job, ready: tuple[str, ...], waiting: tuple[str, ...]) -> str:
    if len(ready) >= job.quorum and not job.releasable:
        missing = tuple(silo for silo in job.plan.silos if silo not in job.accepting)
        return f"{required_signatures(job.plan)} silos must sign its release and take part: {_for(missing)}"
    if len(ready) >= job.quorum:
        return _for(waiting)
    count = f"{len(ready)} silos are ready, {job.quorum} are needed"
    out = tuple(s for s in job.plan.silos if s not in ready and s not in waiting)
    if len(ready) + len(waiting) >= job.quorum:
        return f"{count}; {_for(waiting)}"
    return f"{count}, and too many do not take part: {', '.join(out)}" + (f"; {_for(waiting)}" if waiting else "")


def _silo(job: Job | None, presence: Presence, silo: str) -> str:
    if job is None or silo not in job.plan.silos:
        return "connected" if presence.connected else "offline"
    place = standing(job, presence, silo)
    if place is Standing.DECLINED:
        return f"declined: {reason_word(job.answers[silo].reason)}"
    if place is Standing.BARRED:
        boot, why = job.barred[silo]
        return (
            f"{place.value} {'for the rest of the job' if boot == FOR_GOOD else 'until its agent is restarted'}: {why}"
        )
    if place is Standing.RESTING and isinstance(job.phase, Gathering):
        return f"{place.value}: {job.phase.resting[silo]}"
    if place is Standing.OFFLINE or presence.ready is None:
        return "offline"
    if job.ended:
        return "done" if at_round(job, presence.ready, len(job.outcomes)) else "connected"
    if isinstance(job.phase, Running) and silo in job.phase.session.boots and place not in WAITED_FOR:
        session = job.phase.session
        if silo in session.gone:
            return f"left this attempt: {session.gone[silo]}"
        return _DOING[session.step] if session.expects(silo) else "answered"
    return str(place.value)
