"""What an auditor's check says, and what a signed plan implies for a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from privacy.events import Event, canonical, repeated


@dataclass(frozen=True, slots=True)
class Check:
    """One check's result. `leaf` is the number of the leaf at fault. `note`: nothing failed, but the reader should
    know, for instance what was not checked."""

    name: str
    passed: bool
    leaf: int | None
    message: str
    note: bool = False


@dataclass(frozen=True, slots=True)
class StageTerms:
    """One stage of a signed plan: what each of its rounds does to a patient, the number of its first round (rounds are
    counted on from stage to stage) and how many there are."""

    event: Event
    first: int
    rounds: int


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """What a *verified* signed plan implies.

    Args:
        name: of the job.
        delta: at which its epsilon is stated.
        stages: the stages that run, by their number.
        patient: the schema's patient column.
        schema: hash of the schema (32 bytes).
        initial: hash of the model from which round 1 starts (32 bytes).
    """

    name: str
    delta: float
    stages: Mapping[int, StageTerms]
    patient: str
    schema: bytes
    initial: bytes

    def events(self) -> tuple[Event, ...]:
        """Everything that one patient may undergo in the completed job."""
        return canonical(repeated(stage.event, stage.rounds) for stage in self.stages.values() if stage.rounds)
