"""A federation in one process: real keys, roster, plan, ledgers and state databases; participants without sockets."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.announce import Place, announcement_of, outcome_hash
from feddrm.contract.chunks import blob_hash
from feddrm.contract.identity import MemberKeys, sign_sealing_key
from feddrm.contract.messages import (
    AckEvent,
    Announce,
    JobOffer,
    PlanAnswer,
    Publish,
    Ready,
    RoundOutcome,
    SiloFrame,
    StepFrames,
)
from feddrm.contract.names import SiloId
from feddrm.contract.plan import Plan
from feddrm.contract.policy import Policy
from feddrm.contract.roster import Member, Roster, roster_hash, sign_roster
from feddrm.contract.rounds import Lost, sign_lost
from feddrm.contract.signed_plan import SignedPlan, sign_plan
from feddrm.method.layout import initial_model, layout_of
from feddrm.method.progress import segments
from feddrm.method.update import apply, model_hash
from privacy.gate import Gate
from privacy.ledger import Ledger
from secagg.client import join
from secagg.server import open_session
from secagg.session import Announcement
from secagg.wire import Frame, Step
from silo.books import caps_of, origin_of
from silo.context import Context
from silo.effects import (
    Connected,
    Contribute,
    Contributed,
    DataLoaded,
    Effect,
    Fetched,
    FetchSum,
    ForgetDeleted,
    LoadData,
    Log,
    Send,
    Train,
    Trained,
    TrainingFailed,
    Tune,
    Tuned,
    TuningFailed,
    Upload,
    Uploaded,
)
from silo.home import DataSettings
from silo.participant import Participant
from silo.state import State
from silo.worker import Worker

NAMES = ("alpha", "beta", "delta", "gamma")
NOW = 1_700_000_000_000
FEDERATION = "trial"


def entropy_of(seed: object) -> Any:
    """Reproducible bytes."""
    return random.Random(str(seed)).randbytes


def plan_document(**changes: object) -> dict[str, Any]:
    """A small plan of four silos; keyword arguments replace keys of its training section, or are sections."""
    names = ("routing_fit", "personal_head", "evaluation", "model", "own_targets")
    sections = {name: changes.pop(name) for name in names if name in changes}
    return {
        "federation": FEDERATION,
        "name": "first",
        "roster_version": 1,
        "silos": list(NAMES),
        "schema": {
            "patient": "id",
            "target": {"kind": "threshold", "column": "y", "operator": ">", "value": 0.0, "labels": ["no", "yes"]},
            "columns": [{"kind": "numeric", "name": "a", "lower": 0.0, "upper": 1.0}],
        },
        "model": {"kind": "mlp", "hidden": [3]},
        "training": {
            "rounds": 4,
            "local_steps": 2,
            "sampling_rate": 0.1,
            "clip_norm": 1.0,
            "noise_multiplier": 4.0,
            "target_weight": 0.5,
            "learning_rate": 0.1,
            **changes,
        },
        "privacy": {"delta": 1e-5},
        "secure_aggregation": {"threshold": 3, "minimum_cohort": 3, "colluders": 1, "clip": 1.0, "fraction_bits": 20},
        **sections,
    }


@dataclass
class Trial:
    """Keys, roster and plan of a federation of four silos."""

    operator: Ed25519PrivateKey
    round_key: Ed25519PrivateKey
    keys: dict[str, MemberKeys]
    querier: MemberKeys
    roster: Roster
    roster_signed: Any
    plan: Plan
    signed_plan: SignedPlan
    uploads: dict[bytes, bytes] = field(default_factory=dict)
    sums: dict[bytes, bytes] = field(default_factory=dict)

    @classmethod
    def make(cls, **training: object) -> Trial:
        """Fresh keys."""
        operator, round_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        keys = {name: MemberKeys.generate() for name in NAMES}
        querier = MemberKeys.generate()
        members = [_member(name, "silo", key) for name, key in keys.items()]
        members.append(_member("desk", "querier", querier))
        roster = Roster(
            federation=FEDERATION,
            version=1,
            issued_ms=NOW - 1000,
            expires_ms=NOW + 10**10,
            operator=operator.public_key().public_bytes_raw(),
            round_key=round_key.public_key().public_bytes_raw(),
            members=tuple(members),
        )
        plan = Plan.model_validate(plan_document(**training))
        return cls(
            operator, round_key, keys, querier, roster, sign_roster(roster, operator), plan, sign_plan(plan, operator)
        )

    @property
    def plan_hash(self) -> bytes:
        """Names the plan."""
        return self.signed_plan.hash

    def policy(self, **budget: object) -> Policy:
        """A policy that accepts the plan; keyword arguments replace keys of its budget."""
        return Policy.model_validate(
            {
                "budget": {
                    "job_epsilon": 5.0,
                    "job_epsilon_alone": 5.0,
                    "job_delta": 1e-4,
                    "life_epsilon": 10.0,
                    "life_epsilon_alone": 10.0,
                    "life_delta": 1e-3,
                    "rounds_without_release": 10,
                    **budget,
                },
                "jobs": {
                    "operators": [self.roster.operator.hex()],
                    "models": ["mlp"],
                    "smallest_cohort": 3,
                    "colluders": 1,
                    "routing_fit": True,
                    "personal_head": True,
                    "evaluation": True,
                },
                "queries": {"serve": True},
            }
        )


def _member(name: str, role: Any, keys: MemberKeys) -> Member:
    sealing = keys.sealing.public()
    return Member.model_validate(
        {
            "name": name,
            "role": role,
            "identity": keys.identity_public,
            "sealing": sealing,
            "sealing_signature": sign_sealing_key(keys.identity, name, sealing),
            "certificate": os.urandom(32),
        }
    )


@dataclass
class House:
    """One silo: its durable files, and the participant of its current process."""

    trial: Trial
    name: str
    directory: Path
    policy: Policy
    slot_ms: int = 0
    boots: int = 0
    participant: Participant = field(init=False)
    sent: list[Any] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    hold: type | None = None
    update: Any = None
    contribution: float = 0.0
    patient: str = "id"
    public_size: int = 100
    worker: Worker | None = None
    internal: list[str] = field(default_factory=list)
    expects_internal: bool = False

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """A process begins."""
        self.boots += 1
        keys = self.trial.keys[self.name]
        self.state = State.open(self.directory / "agent.db")
        self.ledger = Ledger.open(
            self.directory / "ledger.db", origin_of(FEDERATION, self.name), keys.identity, now_ms=NOW
        )
        self.gate = Gate(self.ledger, caps_of(self.policy))
        self.context = Context(
            federation=FEDERATION,
            me=SiloId(self.name),
            signer=keys.identity,
            roster=self.trial.roster,
            signed_roster=self.trial.roster_signed,
            read_policy=lambda: self.policy,
            read_data=lambda: DataSettings(records="records.csv", patient=self.patient, public_size=self.public_size),
            state=self.state,
            ledger=self.ledger,
            gate=self.gate,
            boot=self.name.encode().ljust(15, b"-") + bytes([self.boots]),
            entropy=os.urandom,
            slot_ms=self.slot_ms,
        )
        self.participant = Participant(self.context)
        self.perform(self.participant.start(NOW))
        self.handle(Connected())

    def die(self) -> None:
        """The process is gone: memory lost, files as they are."""
        self.state.close()
        self.ledger.close()
        self.sent.clear()

    def restart(self) -> None:
        """Die and begin again."""
        self.die()
        self.start()

    def handle(self, event: Any, now_ms: int = NOW) -> list[Any]:
        """Give an event to the participant and carry out what it asks; returns what it sent."""
        before = len(self.sent)
        effects = self.participant.handle(event, now_ms)
        self.perform(effects)
        if self.hold is not ForgetDeleted and any(isinstance(effect, ForgetDeleted) for effect in effects):
            self.state.forget_deleted()
        return self.sent[before:]

    def perform(self, effects: Iterable[Effect]) -> None:
        """Carry out effects like the shell does, except those of the type `hold`."""
        for effect in effects:
            self.effects.append(effect)
            if self.hold is not None and isinstance(effect, self.hold):
                continue
            match effect:
                case Send():
                    self.sent.append(effect.event)
                case Log() if effect.text.startswith("An internal error"):
                    # The participant survives its own faults, which must not hide them from the tests.
                    self.internal.append(effect.text)
                    assert self.expects_internal, effect.text
                case LoadData():
                    self.handle(self.loaded_event(effect.plan_hash))
                case Train():
                    self.trained.append(effect.round)
                    self.handle(self.trained_event(effect))
                case Contribute():
                    self.trained.append(effect.round)
                    self.handle(self.contributed_event(effect))
                case Tune():
                    self.handle(self.tuned_event(effect))
                case Upload():
                    self.trial.uploads[effect.blob] = effect.data
                    self.handle(Uploaded(effect.blob))
                case FetchSum():
                    data = self.trial.sums.get(effect.blob)
                    if data is not None:
                        self.handle(Fetched(effect.blob, data))

    def loaded_event(self, plan: bytes, commitment: bytes = b"\1" * 32) -> DataLoaded:
        """What the workshop reports of the hospital's records."""
        return DataLoaded(plan, commitment, bytes(32), self.patient, self.public_size)

    def trained_event(self, effect: Train) -> Trained:
        """A round's result: `update` if set, or something that differs by silo and round."""
        size = len(effect.model)
        if self.contribution:
            update = np.full(size, self.contribution)
            return Trained(effect.plan_hash, effect.round, update, effect.personal + 1)
        update = np.full(size, 0.01 * (1 + NAMES.index(self.name)) * effect.round)
        return Trained(
            effect.plan_hash, effect.round, update if self.update is None else self.update, effect.personal + 1
        )

    def contributed_event(self, effect: Contribute) -> Contributed | TrainingFailed:
        """A round's integers: of `worker` if there is one, else 2**place in every entry."""
        if self.worker is not None:
            return self.worker.contribute(effect)
        _, words = segments(effect.plan, layout_of(effect.plan), effect.stage)
        place = 1 << NAMES.index(self.name)
        return Contributed(effect.plan_hash, effect.stage, effect.round, np.full(words, place, np.int64))

    def tuned_event(self, effect: Tune) -> Tuned | TuningFailed:
        """A tuned head: of `worker` if there is one, else recognisable."""
        if self.worker is not None:
            return self.worker.tune(effect, threading.Event())
        return Tuned(effect.plan_hash, effect.personal + 1000)

    def twin_keys(self, event: Announce) -> Frame:
        """A second R1 of this silo for the same announcement, as a dishonest one would sign it."""
        _, frame = join(
            event.frame,
            server_key=self.trial.roster.round_key,
            members={name: keys.identity_public for name, keys in self.trial.keys.items()},
            me=self.name,
            signer=self.trial.keys[self.name].identity,
            entropy=os.urandom,
            ledger_proof=b"",
        )
        return frame

    @property
    def ready(self) -> Ready:
        """The last Ready that was sent."""
        return next(event for event in reversed(self.sent) if isinstance(event, Ready))

    def frames(self, step: Step) -> list[Frame]:
        """All frames of a step that were sent, newest last."""
        return [e.frame for e in self.sent if isinstance(e, SiloFrame) and e.frame.step == step]


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


def sum_of(house: House) -> bytes:
    """Hash of the shared model after the silo's last round."""
    return house.ready.model


__all__ = ["NAMES", "NOW", "Desk", "House", "Trial", "blob_hash", "entropy_of", "plan_document", "sum_of"]
