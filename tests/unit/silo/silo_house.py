"""One silo with its real ledger and state database; its participant without sockets."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from silo_trial import FEDERATION, NAMES, NOW, Trial

from feddrm.contract.messages import (
    Announce,
    Ready,
    SiloFrame,
)
from feddrm.contract.names import SiloId
from feddrm.contract.policy import Policy
from feddrm.method.layout import layout_of
from feddrm.method.progress import segments
from privacy.gate import Gate
from privacy.ledger import Ledger
from secagg.client import join
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
