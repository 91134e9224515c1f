"""What happened to patients' data, as immutable facts: the parameters necessary and sufficient for accounting.

An event decodes only from its whitelisted type with exactly its fields; anything else is refused, never skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from privacy.errors import MalformedError

MAXIMUM_STEPS: Final = 10**6


@dataclass(frozen=True, slots=True)
class PoissonSubsampledGaussian:
    """`steps` releases of a sum of clipped contributions of Poisson-sampled patients, with Gaussian noise.

    Unit: one patient at one silo; relation: add or remove one. The ranges are those in which the accountants are
    both fast and numerically sound; outside them nobody trains.

    Args:
        noise_multiplier: standard deviation of the noise divided by the clip norm, in [0.3, 1000].
        sampling_rate: probability with which a patient enters a step, in [1e-6, 1].
        steps: number of releases, 1 to 10**6.

    Raises:
        ValueError: a parameter out of its range.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int

    TYPE = "poisson-subsampled-gaussian"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and 0.3 <= self.noise_multiplier <= 1000):
            raise ValueError("noise_multiplier must be from 0.3 to 1000")
        if not 1e-6 <= self.sampling_rate <= 1:
            raise ValueError("sampling_rate must be from 1e-6 to 1")
        if not 1 <= self.steps <= MAXIMUM_STEPS:
            raise ValueError(f"steps must be from 1 to {MAXIMUM_STEPS}")

    def alone(self) -> Self:
        """The event that an adversary sees who gets this silo's vector unmasked.

        Here the silo adds all of the noise itself, so secure aggregation changes nothing.
        """
        return self

    def to_json(self) -> dict[str, object]:
        """The form that `event_from_json` reads."""
        return {
            "type": self.TYPE,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "steps": self.steps,
        }


Event = PoissonSubsampledGaussian
_FIELDS: Final = frozenset({"type", "noise_multiplier", "sampling_rate", "steps"})


def event_from_json(value: object) -> Event:
    """Decode an event.

    Raises:
        MalformedError: unknown type, missing or extra field, or a value out of range.
    """
    if not isinstance(value, Mapping) or value.get("type") != PoissonSubsampledGaussian.TYPE:
        raise MalformedError("unknown event type")
    if set(value) != _FIELDS:
        raise MalformedError("an event has a missing or an unknown field")
    steps = value["steps"]
    if type(steps) is not int:
        raise MalformedError("an event's steps must be an integer")
    try:
        return PoissonSubsampledGaussian(_real(value["noise_multiplier"]), _real(value["sampling_rate"]), steps)
    except ValueError as error:
        raise MalformedError(f"an event is out of range: {error}") from error


def canonical(events: Iterable[Event]) -> tuple[Event, ...]:
    """Sum the steps of events that differ in nothing else; sorted, so that equal charges are equal tuples.

    Raises:
        ValueError: more than `MAXIMUM_STEPS` steps of one kind.
    """
    return tuple(PoissonSubsampledGaussian(*kind, steps) for kind, steps in sorted(_totals(events).items()))


def covers(whole: Iterable[Event], part: Iterable[Event]) -> bool:
    """Whether `part` has no event of a kind that `whole` lacks, and no more steps of any kind."""
    allowed = _totals(whole)
    return all(steps <= allowed.get(kind, 0) for kind, steps in _totals(part).items())


def _totals(events: Iterable[Event]) -> dict[tuple[float, float], int]:
    totals: dict[tuple[float, float], int] = {}
    for event in events:
        kind = (event.noise_multiplier, event.sampling_rate)
        totals[kind] = totals.get(kind, 0) + event.steps
    return totals


def _real(value: object) -> float:
    # JSON has one number type: RFC 8785 writes 2.0 as 2.
    if type(value) not in (int, float):
        raise MalformedError("an event's parameter must be a number")
    return float(value)  # type: ignore[arg-type]
