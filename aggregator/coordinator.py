"""The coordinator as a pure state machine: events in, effects out (design sections 5, 8 and 9).

It trusts no silo and is trusted by none: what it decides here is who is waited for and when to go on, never what a silo
may do. `handle` never fails on what a peer sends; `admit` says beforehand why an operator's order is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator import aborting, gather, incoming, outcomes, rounds
from aggregator.acknowledge import give_up_ms
from aggregator.events import (
    Detached,
    Effect,
    Event,
    FromSilo,
    JobStarted,
    JobStopped,
    Journal,
    PublishRelease,
    ReleaseOrdered,
    Restarted,
    RosterChanged,
    Stamp,
    Ticked,
)
from aggregator.job import Job, Presence, Room
from aggregator.phases import Aborting, Acknowledging, Gathering, Proposing, Running
from aggregator.release import Candidate, Releases
from feddrm.contract.errors import InputError, NotAuthorisedError
from feddrm.contract.messages import JobOffer, RosterOffer, SiloFrame
from feddrm.contract.roster import Roster, verify_roster
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan, verify_plan
from secagg.wire import Step


class Coordinator:
    """All that the coordinator knows.

    Args:
        federation: the federation's name.
        operator: the operator's Ed25519 key (32 bytes), which signs rosters and plans.
        signer: the round key.
        roster: the newest roster, verified.
    """

    def __init__(self, *, federation: str, operator: bytes, signer: Ed25519PrivateKey, roster: Signed) -> None:
        self.federation: Final = federation
        self.operator: Final = operator
        self.signer: Final = signer
        self.signed_roster = roster
        self.roster: Roster = verify_roster(roster, federation=federation, operator=operator)
        self.presences: dict[str, Presence] = {}
        self.job: Job | None = None
        self.used_plans: set[bytes] = set()
        self.releases = Releases()

    # what the shell asks

    def due_ms(self) -> int | None:
        """When `Ticked` is due, or None while only a new event can change anything."""
        if self.job is None:
            return None
        match self.job.phase:
            case Gathering() as phase:
                return gather.due_ms(self.job, self._room(Stamp(0, b"")), phase)
            case Running(session=session):
                return session.deadline_ms
            case Aborting(deadline_ms=deadline):
                return deadline
            case Acknowledging() as phase:
                return give_up_ms(self.job, phase)
            case _:
                return None

    def milestone(self) -> tuple[bytes, int, int, str] | None:
        """Changes whenever a checkpoint is worth while; None while a session is open, whose secrets stay in the log."""
        if self.job is None:
            return (b"", 0, 0, "")
        phase = self.job.phase
        if isinstance(phase, Running | Aborting | Acknowledging):
            return None
        attempt = phase.attempt if isinstance(phase, Gathering) else 0
        return (self.job.hash, len(self.job.outcomes), attempt, type(phase).__name__)

    def upload_size(self, silo: str) -> int | None:
        """How many bytes the masked input has that this silo is to upload now, or None when it is not its turn."""
        if self.job is None or not isinstance(self.job.phase, Running):
            return None
        session = self.job.phase.session
        due = session.step == Step.MASKED and session.expects(silo)
        return session.announcement.vector_size if due else None

    def stays_open(self, event: FromSilo, now_ms: int) -> bool:
        """Whether an event is a frame of the step at hand that leaves it open: others are waited for.

        Such a frame is counted or an offence; either way nothing more is expected of its silo in this step, so that a
        silo has at most one frame in memory, whatever it sends.
        """
        if self.job is None or not isinstance(self.job.phase, Running) or not isinstance(event.event, SiloFrame):
            return False
        session = self.job.phase.session
        if not session.concerns(event.event.frame) or now_ms >= session.deadline_ms or not session.expects(event.silo):
            return False
        return bool(session.awaited(self._room(Stamp(0, b"")).connected) - {event.silo})

    def admit(self, event: Event, now_ms: int) -> None:
        """Refuse an operator's order that cannot be carried out; events of silos always pass.

        Raises:
            FeddrmError: why.
        """
        match event:
            case JobStarted(signed):
                self._admit_job(verify_plan(signed, federation=self.federation, operator=self.operator), now_ms)
            case JobStopped(plan):
                if self.job is None or self.job.hash != plan or self.job.ended:
                    raise InputError("No such job is running.", remedy="See: feddrm-aggregator status")
            case RosterChanged(signed):
                roster = verify_roster(signed, federation=self.federation, operator=self.operator)
                roster.check_current(now_ms)
                if roster.version <= self.roster.version and signed.body != self.signed_roster.body:
                    raise InputError(f"Roster version {roster.version} is not above {self.roster.version}.")
                if roster.round_key != self.roster.round_key:
                    raise InputError("The roster names another round key than this server's.")
            case ReleaseOrdered(release):
                candidate = self.releases.candidates.get(release)
                if candidate is None:
                    raise InputError(f"There is no release {release}.", remedy="See: feddrm-aggregator release list")
                if len(candidate.signatures) < candidate.threshold:
                    raise InputError(
                        f"Release {release} has {len(candidate.signatures)} of {candidate.threshold} signatures.",
                        remedy="Wait for more silos: feddrm-aggregator status",
                    )
            case _:
                pass

    def _admit_job(self, plan: SignedPlan, now_ms: int) -> None:
        self.roster.check_current(now_ms)
        if self.job is not None and not self.job.ended:
            raise InputError(
                f"Job {self.job.plan.name} is not over yet.",
                remedy="Publish its release or stop it first: feddrm-aggregator job stop",
            )
        if plan.hash in self.used_plans:
            raise InputError(
                f"Plan {plan.plan.name} was started before; its budget is charged once only.",
                remedy="Give the plan another name and sign it again.",
            )
        if plan.plan.roster_version != self.roster.version:
            raise InputError(
                f"The plan is for roster version {plan.plan.roster_version}, but {self.roster.version} is current.",
                remedy="Set roster_version and sign the plan again.",
            )
        for silo in plan.plan.silos:
            try:
                self.roster.find(silo, "silo")
            except NotAuthorisedError as error:
                raise InputError(f"silos: {error.message}") from error

    # what happens

    def handle(self, event: Event, stamp: Stamp) -> tuple[Effect, ...]:
        """Act on an event that is durable; returns the effects in order."""
        room = self._room(stamp)
        before = set() if self.job is None else set(self.job.barred)
        match event:
            case FromSilo(silo, message):
                self.presences.setdefault(silo, Presence()).heard_ms = stamp.now_ms
                incoming.receive(self.job, room, silo, message)
            case Detached(silo):
                if silo in self.presences:
                    self.presences[silo].detach(stamp.now_ms)
            case Restarted():
                for presence in self.presences.values():
                    presence.detach(stamp.now_ms)
            case JobStarted(plan):
                self._start(room, plan)
            case Ticked():
                if self.job is not None and isinstance(self.job.phase, Gathering):
                    rounds.gather(self.job, room, self.job.phase)
            case order:
                self._order(room, order)
        if self.job is not None:
            rounds.advance(self.job, room)
            if isinstance(self.job.phase, Gathering) and not gather.gathered(self.job, room)[1]:
                # Nobody is waited for: no reason to let the clock say so.
                rounds.gather(self.job, room, self.job.phase)
            self._note_release(self.job)
            for silo in sorted(self.job.barred.keys() - before):
                aborting.say_why(self.job, room, silo)
        return tuple(room.effects)

    def _order(self, room: Room, order: JobStopped | RosterChanged | ReleaseOrdered) -> None:
        match order:
            case JobStopped(_, reason):
                if self.job is not None and not self.job.ended:
                    outcomes.end(self.job, room, completed=False, reason=f"stopped by the operator: {reason}")
            case RosterChanged(signed):
                self.signed_roster = signed
                self.roster = verify_roster(signed, federation=self.federation, operator=self.operator)
                room.effects.append(Journal(f"roster version {self.roster.version} is current"))
                # Those who are away get it with the greeting.
                for member in self.roster.silos:
                    room.send(member.name, RosterOffer(signed))
            case ReleaseOrdered(release):
                self._release(room, release)

    def _room(self, stamp: Stamp) -> Room:
        return Room(stamp, self.signer, self.presences)

    def _start(self, room: Room, signed: Signed) -> None:
        plan = verify_plan(signed, federation=self.federation, operator=self.operator)
        self.job = job = Job.start(plan, self.roster, self.signed_roster, room.stamp.now_ms)
        self.used_plans.add(plan.hash)
        room.effects.append(Journal(f"job {plan.plan.name} started with {len(plan.plan.silos)} silos"))
        for silo in plan.plan.silos:
            room.send(silo, JobOffer(signed))
        if job.rounds == 0:
            outcomes.begin_round(job, room)

    def _release(self, room: Room, release: str) -> None:
        candidate = replace(self.releases.candidates[release], published=True)
        self.releases.candidates[release] = candidate
        self.releases.current = release
        room.effects += [PublishRelease(release), Journal(f"release {release} is in service")]
        if self.job is not None and self.job.hash == candidate.plan.hash and not self.job.ended:
            outcomes.end(self.job, room, completed=True, reason=f"release {release} is published")

    def _note_release(self, job: Job) -> None:
        phase = job.phase
        if isinstance(phase, Proposing):
            signatures = tuple(phase.signatures[silo] for silo in job.plan.silos if silo in phase.signatures)
            candidate = Candidate(job.signed_plan, phase.statement, signatures, job.blob)
            known = self.releases.candidates.get(candidate.id)
            if known is None or not known.published:
                self.releases.candidates[candidate.id] = candidate
