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
class PlanTerms:
    """What a *verified* signed plan implies.

    Args:
        name: of the job.
        delta: at which its epsilon is stated.
        stages: for each stage one round's event and the number of rounds.
        patient: the schema's patient column.
        schema: hash of the schema (32 bytes).
        initial: for each stage, the hash of the model from which its first round starts (32 bytes).
    """

    name: str
    delta: float
    stages: Mapping[int, tuple[Event, int]]
    patient: str
    schema: bytes
    initial: Mapping[int, bytes]

    def events(self) -> tuple[Event, ...]:
        """Everything that one patient may undergo in the completed job."""
        return canonical(repeated(event, rounds) for event, rounds in self.stages.values() if rounds)
