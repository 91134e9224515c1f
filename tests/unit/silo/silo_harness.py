"""An honest coordinator around whole silos in one process, that tests make dishonest piece by piece."""

from __future__ import annotations

import os
from typing import Any

from silo_house import House
from silo_trial import FEDERATION, NAMES, NOW, Trial, plan_document

from feddrm.contract.announce import Place, announcement_of, outcome_hash
from feddrm.contract.messages import (
    AckEvent,
    Announce,
    JobOffer,
    PlanAnswer,
    Publish,
    RoundOutcome,
    SiloFrame,
    StepFrames,
)
from feddrm.contract.roster import roster_hash
from feddrm.contract.rounds import Lost, sign_lost
from feddrm.method.layout import initial_model, layout_of
from feddrm.method.update import apply, model_hash
from secagg.server import open_session
from secagg.session import Announcement
from secagg.wire import Frame, Step


class Desk:
    """An honest coordinator around secagg.server, one session at a time, that tests make dishonest piece by piece."""

    def __init__(self, trial: Trial, houses: dict[str, House]) -> None:
        self.trial = trial
        self.houses = houses
        self.layout = layout_of(trial.plan)
        self.model = self.first_model = initial_model(self.layout, trial.plan_hash)
        self.round = 0
        self.outcomes: dict[int, RoundOutcome] = {}
        self.server: Any = None
        self.announce: Frame
        self.published: Any = None
        self.members = {name: keys.identity_public for name, keys in trial.keys.items()}

    def offer(self) -> dict[str, PlanAnswer]:
        """Offer the plan to everybody."""
        answers = {}
        for name, house in self.houses.items():
            sent = house.handle(JobOffer(self.trial.signed_plan.signed))
            answers[name] = next(event for event in sent if isinstance(event, PlanAnswer))
        return answers

    @property
    def announcement_hash(self) -> bytes:
        """Names the last announcement."""
        return Announcement.decode(self.announce.body).hash()

    def place(self) -> Place:
        """Where the next round starts."""
        return Place(
            plan=self.trial.plan_hash,
            roster=roster_hash(self.trial.roster_signed.body),
            layout=self.layout.fingerprint(),
            words32=self.layout.shared_size,
            round=self.round + 1,
            model=model_hash(self.model),
            previous=outcome_hash(self.outcomes.get(self.round)),
        )

    def announcement(self, attempt: int = 1, cohort: tuple[str, ...] = NAMES) -> Announcement:
        """R0 as the plan gives it."""
        return announcement_of(
            self.trial.plan,
            self.place(),
            attempt=attempt,
            cohort=cohort,
            deadline_ms=NOW + 60_000,
            nonce=os.urandom(32),
        )

    def open(self, announcement: Announcement | None = None, certificate: tuple[Frame, ...] = ()) -> None:
        """Announce to the cohort and collect R1."""
        announcement = announcement or self.announcement()
        self.server, self.announce = open_session(announcement, self.trial.round_key, self.members)
        self.cohort = announcement.cohort
        for name in self.cohort:
            house = self.houses[name]
            house.sent = [e for e in house.sent if not isinstance(e, SiloFrame)]
            house.handle(self.announce_event(name, certificate))
        self.collect(Step.KEYS)

    def announce_event(self, name: str, certificate: tuple[Frame, ...] = ()) -> Announce:
        """The announcement as one silo gets it."""
        sizes = []
        for other in self.cohort:
            sizes += [size for silo, size in self.houses[other].ready.witnessed if silo == name]
        return Announce(self.announce, certificate, self.outcomes.get(self.round), tuple(sorted(set(sizes))))

    def collect(self, step: Step, without: tuple[str, ...] = ()) -> None:
        """Take in everybody's frames of a step."""
        for name in self.cohort:
            if name in without:
                continue
            for frame in self.houses[name].frames(step):
                if step == Step.MASKED:
                    frame = Frame(frame.step, frame.sender, frame.body, frame.signature, self._vector(frame))
                self.server.receive(frame)

    def _vector(self, frame: Frame) -> bytes:
        from secagg.bodies import Masked

        return self.trial.uploads[Masked.decode(frame.body).vector]

    def request(self, step: Step) -> dict[str, StepFrames]:
        """Close the collecting of a step: what every member gets."""
        session = self.server.session
        self.server = self.server.close()
        return {name: StepFrames(session, int(step), f) for name, f in self.server.outgoing.items()}

    def advance(self, step: Step, without: tuple[str, ...] = ()) -> None:
        """Close a step, relay it, and collect the next one."""
        for name, event in self.request(step).items():
            if name not in without:
                self.houses[name].handle(event)
        self.collect(Step(step + 1), without)

    def publish(self, without: tuple[str, ...] = ()) -> Publish:
        """Close R5, publish, collect the acks, certify the round."""
        published = self.server.close()
        self.trial.sums[published.sum] = published.frame.attachment
        self.published = published
        event = Publish(published.frame.without_attachment(), published.sum)
        for name in self.server.expected:
            if name not in without:
                self.houses[name].handle(event)
        self.certify()
        return event

    def certify(self) -> None:
        """The round's outcome from the acks that were sent."""
        acks = []
        for house in self.houses.values():
            found = [e.ack for e in house.sent if isinstance(e, AckEvent)]
            acks += found[-1:]
            house.sent = [e for e in house.sent if not isinstance(e, AckEvent)]
        self.round += 1
        plan = self.trial.plan
        self.model = apply(
            self.model,
            self.published.words32,
            len(self.published.survivors),
            plan.secure_aggregation.fraction_bits,
            plan.training.server_learning_rate,
        )
        self.outcomes[self.round] = RoundOutcome(self.round, tuple(acks), self.published.sum)

    def lose(self) -> RoundOutcome:
        """Declare the running round lost."""
        self.round += 1
        lost = sign_lost(
            Lost(plan=self.trial.plan_hash, round=self.round, reason="too few silos"), self.trial.round_key
        )
        self.outcomes[self.round] = RoundOutcome(self.round, lost=lost)
        return self.outcomes[self.round]

    def run(self, cohort: tuple[str, ...] = NAMES) -> None:
        """One whole round."""
        self.open(self.announcement(cohort=cohort))
        for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY):
            self.advance(step)
        self.publish()


__all__ = ["FEDERATION", "NAMES", "NOW", "Desk", "House", "Trial", "plan_document"]
