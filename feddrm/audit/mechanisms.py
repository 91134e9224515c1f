"""What a ledger's events say was done with patients' records, for readers: one line for each mechanism."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from privacy.events import (
    DistributedDiscreteGaussian,
    Event,
    LocalDiscreteGaussian,
    PoissonSubsampledGaussian,
    canonical,
)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism of a job. `noise` and `noise_alone` are standard deviations in units of one patient's largest
    contribution, against those who see sums only and against whoever sees this hospital's own numbers."""

    name: str
    times: int
    noise: float
    noise_alone: float
    detail: str


def mechanisms(events: Iterable[Event]) -> tuple[Mechanism, ...]:
    """Equal ones are counted together."""
    return tuple(_mechanism(event) for event in canonical(events))


def _mechanism(event: Event) -> Mechanism:
    match event:
        case PoissonSubsampledGaussian():
            return Mechanism(
                "Noised gradients (DP-SGD)",
                event.steps,
                event.noise_multiplier,
                event.noise_multiplier,
                f"each patient enters a step by chance, with probability {event.sampling_rate:g}; one record, its "
                "gradient clipped; each hospital adds all of the noise",
            )
        case DistributedDiscreteGaussian():
            return Mechanism(
                "Secure sums, noise in shares",
                event.steps,
                event.noise_multiplier,
                event.alone().noise_multiplier,
                f"sums of {_numbers(event.dimension)} over all patients; each hospital adds a share of the noise, of "
                f"which {event.shares} are counted (whole numbers; scale {event.scale} for contributions of length "
                f"{event.sensitivity} at most)",
            )
        case LocalDiscreteGaussian():
            return Mechanism(
                "Secure sums, full noise from each hospital",
                event.steps,
                event.noise_multiplier,
                event.noise_multiplier,
                f"sums of {_numbers(event.dimension)} over all patients; each hospital adds all of the noise (whole "
                f"numbers; scale {event.scale} for contributions of length {event.sensitivity} at most)",
            )


def _numbers(dimension: int) -> str:
    return "one number" if dimension == 1 else f"{dimension} numbers"
