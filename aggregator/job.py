"""A job: what the coordinator must know of it for ever, and the two ways in which a round ends (design section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator.events import Effect, Send, Stamp
from aggregator.phases import Ended, Gathering, Phase
from feddrm.contract.announce import Place, outcome_hash, smallest_cohort
from feddrm.contract.chunks import blob_hash
from feddrm.contract.messages import CoordinatorEvent, PlanAnswer, Ready, RoundOutcome
from feddrm.contract.operator_messages import RoundSummary
from feddrm.contract.plan import Plan
from feddrm.contract.release import Reached, required_signatures
from feddrm.contract.roster import Roster, roster_hash
from feddrm.contract.schedule import describe, finished, last_round, rounds_shown, stage_of
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan
from feddrm.contract.transcript import JobRecord
from feddrm.method.layout import Layout, layout_of
from feddrm.method.progress import evaluated, initial_state, reached, segments
from feddrm.method.update import model_hash

LOST_IN_A_ROW: Final = 3
"""After so many lost rounds in a row something is wrong that another round will not mend: the job stops, before it
uses up the budget of every silo for nothing."""


@dataclass(slots=True)
class Presence:
    """A silo as its control stream shows it: when it was last heard, and when its stream last ended.

    `told` is the last round whose outcome the silo has or was sent on this stream; `disputed`
    says that its model differed from the certified one and it was sent the outcome for that on this stream.
    """

    connected: bool = False
    heard_ms: int = 0
    left_ms: int = 0
    ready: Ready | None = None
    told: int = 0
    disputed: bool = False

    def detach(self, now_ms: int) -> None:
        """The stream is gone, and with it perhaps what was sent last."""
        if self.connected:
            self.left_ms = now_ms
        self.connected = False
        self.disputed = False

    @property
    def boot(self) -> bytes:
        """The agent process, empty while none was seen."""
        return self.ready.boot if self.ready is not None else b""


@dataclass(slots=True)
class Room:
    """What the transitions of one event share: who is there, the time, the round key, and the effects so far."""

    stamp: Stamp
    signer: Ed25519PrivateKey = field(repr=False)
    presences: Mapping[str, Presence]
    effects: list[Effect] = field(default_factory=list)

    def send(self, silo: str, event: CoordinatorEvent) -> None:
        """Queue an event for a silo if it is connected; one that is not gets what it needs when it comes back."""
        if self.presence(silo).connected:
            self.effects.append(Send(silo, event))

    def presence(self, silo: str) -> Presence:
        """A silo's presence; one that was never seen has an empty one."""
        return self.presences.get(silo) or Presence()

    @property
    def connected(self) -> frozenset[str]:
        """Silos whose control stream is open."""
        return frozenset(name for name, presence in self.presences.items() if presence.connected)


@dataclass(slots=True)
class Job:
    """One job. `models[r]` is the hash of its state after round r; `model` the newest state (feddrm.method.progress).

    `barred` holds silos left out until another agent process of theirs appears, or for good: (boot, why).
    `offences` counts proven faults of a silo, `accusers` holds who ever blamed it in this job, `quarrels` how often one
    silo blamed another ("accuser>accused").
    """

    signed_plan: SignedPlan
    roster: Roster
    signed_roster: Signed
    layout: Layout
    model: npt.NDArray[np.int64] = field(repr=False)
    models: list[bytes]
    started_ms: int
    phase: Phase
    answers: dict[str, PlanAnswer] = field(default_factory=dict)
    declined_boot: dict[str, bytes] = field(default_factory=dict)
    barred: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    offences: dict[str, int] = field(default_factory=dict)
    accusers: dict[str, set[str]] = field(default_factory=dict)
    quarrels: dict[str, int] = field(default_factory=dict)
    outcomes: list[RoundOutcome] = field(default_factory=list)
    history: list[RoundSummary] = field(default_factory=list)
    _named: tuple[npt.NDArray[np.int64], bytes] | None = field(default=None, repr=False)

    @property
    def blob(self) -> bytes:
        """The blob name of `model_bytes`, taken once for each model: a large one takes a while."""
        if self._named is None or self._named[0] is not self.model:
            self._named = (self.model, blob_hash(model_bytes(self)))
        return self._named[1]

    @classmethod
    def start(cls, plan: SignedPlan, roster: Roster, signed_roster: Signed, now_ms: int) -> Self:
        """The job of a verified plan, in its first phase."""
        layout = layout_of(plan.plan)
        model = initial_state(plan.plan, layout, plan.hash)
        return cls(
            signed_plan=plan,
            roster=roster,
            signed_roster=signed_roster,
            layout=layout,
            model=model,
            models=[model_hash(model)],
            started_ms=now_ms,
            phase=Gathering(round=1, attempt=1, since_ms=now_ms, not_before_ms=now_ms),
        )

    @property
    def plan(self) -> Plan:
        """The plan, parsed."""
        return self.signed_plan.plan

    @property
    def hash(self) -> bytes:
        """The plan's hash, which names the job."""
        return self.signed_plan.hash

    @property
    def threshold(self) -> int:
        """Acks, release signatures and shares that are needed."""
        return self.plan.secure_aggregation.threshold

    @property
    def quorum(self) -> int:
        """The smallest cohort."""
        return smallest_cohort(self.plan)

    @property
    def accepting(self) -> tuple[str, ...]:
        """Silos that take part, in plan order."""
        return tuple(s for s in self.plan.silos if s in self.answers and self.answers[s].accepted)

    @property
    def releasable(self) -> bool:
        """Whether as many silos take part as must sign its release: otherwise no round may charge anybody."""
        return len(self.accepting) >= required_signatures(self.plan)

    @property
    def ended(self) -> bool:
        """Whether nothing happens any more."""
        return isinstance(self.phase, Ended)

    def key(self, silo: str) -> bytes:
        """The identity key of a silo of the plan, from the roster that the plan names."""
        return self.roster.find(silo, "silo").identity

    @property
    def rounds(self) -> int:
        """How many rounds the job has in all its stages, at most."""
        return last_round(self.plan)

    @property
    def finished(self) -> bool:
        """Whether it needs no further round."""
        return finished(self.plan, len(self.outcomes), evaluated=evaluated(self.plan, self.layout, self.model))

    @property
    def rounds_shown(self) -> int:
        """How many rounds it has if no evaluation is lost from now on."""
        return rounds_shown(self.plan, len(self.outcomes), evaluated=evaluated(self.plan, self.layout, self.model))

    def stage(self, number: int) -> int:
        """The stage of a round."""
        return stage_of(self.plan, number)

    def name(self, number: int) -> str:
        """A round in words."""
        return describe(self.plan, number)

    def place(self) -> Place:
        """What the next announcement is about."""
        number = len(self.outcomes) + 1
        stage = self.stage(number)
        words32, words64 = segments(self.plan, self.layout, stage)
        return Place(
            plan=self.hash,
            roster=roster_hash(self.signed_roster.body),
            layout=self.layout.fingerprint(),
            words32=words32,
            words64=words64,
            stage=stage,
            round=number,
            model=self.models[-1],
            previous=outcome_hash(self.outcomes[-1] if self.outcomes else None),
        )

    def conclude(self, outcome: RoundOutcome, summary: RoundSummary, model: npt.NDArray[np.int64] | None) -> None:
        """Write down how a round ended; `model` is the next state, None when the round was lost."""
        self.outcomes.append(outcome)
        self.history.append(summary)
        if model is not None:
            self.model = model
            self.models.append(model_hash(model))
        else:
            self.models.append(self.models[-1])

    def record(self) -> JobRecord:
        """What became of it so far, for an auditor."""
        return JobRecord(self.signed_plan.signed, self.signed_roster, tuple(self.outcomes))

    def published(self) -> int:
        """How many rounds were published so far."""
        return sum(outcome.lost is None for outcome in self.outcomes)

    def reached(self) -> Reached:
        """How far the job came in each stage."""
        return reached(self.plan, self.layout, self.model, self.published())

    def lost_in_a_row(self) -> int:
        """How many of the newest rounds were lost."""
        count = 0
        for outcome in reversed(self.outcomes):
            if outcome.lost is None:
                break
            count += 1
        return count

    def joined(self, silo: str) -> int:
        """In how many published sums a silo took part."""
        return sum(silo in summary.survivors for summary in self.history)


def model_bytes(job: Job) -> bytes:
    """The newest state as its blob holds it: int64, little-endian."""
    return job.model.astype("<i8", copy=False).tobytes()
