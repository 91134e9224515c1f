"""What happened to patients' data, as immutable facts: the parameters necessary and sufficient for accounting.

Unit: one patient at one silo; relation: add or remove one. An event decodes only from its whitelisted type with
exactly its fields; anything else is refused, never skipped. docs/privacy.md proves what each kind is charged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Final, Self

from privacy.errors import MalformedError

MAXIMUM_STEPS: Final = 10**6
MAXIMUM_SHARES: Final = 100
# Below it the reserve that the proof takes out of the variance (accounting.SMOOTHING_VARIANCE) would be felt, and the
# sum of shares would differ from a discrete Gaussian by more than nothing.
MINIMUM_SCALE: Final = 16
_LARGEST: Final = 1 << 40
_MAXIMUM_MULTIPLIER: Final = 1024


@dataclass(frozen=True, slots=True)
class PoissonSubsampledGaussian:
    """`steps` releases of a sum of clipped contributions of Poisson-sampled patients, with Gaussian noise.

    The ranges are those in which the accountants are both fast and numerically sound; outside them nobody trains.

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

    TYPE: ClassVar = "poisson-subsampled-gaussian"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and 0.3 <= self.noise_multiplier <= 1000):
            raise ValueError("noise_multiplier must be from 0.3 to 1000")
        if not 1e-6 <= self.sampling_rate <= 1:
            raise ValueError("sampling_rate must be from 1e-6 to 1")
        _whole("steps", self.steps, 1, MAXIMUM_STEPS)

    def alone(self) -> Self:
        """The event that an adversary sees who gets this silo's vector unmasked.

        Here the silo adds all of the noise itself, so secure aggregation changes nothing.
        """
        return self

    def to_json(self) -> dict[str, object]:
        """The form that `event_from_json` reads."""
        return {"type": self.TYPE, **dataclasses.asdict(self)}


@dataclass(frozen=True, slots=True)
class LocalDiscreteGaussian:
    """`steps` releases of an integer vector, full batch, to which the silo itself added all of the noise.

    Everything is an integer, so that the sampler, the ledger and the proof speak of the same numbers. It is also what
    remains of `DistributedDiscreteGaussian` for whoever sees one share.

    Args:
        scale: the discrete Gaussian's parameter sigma, N_Z(0, scale**2) in each coordinate, 16 to 2**40.
        sensitivity: L2 norm that one patient's contribution cannot exceed, 1 to 2**40.
        dimension: number of coordinates, 1 to 2**31.
        steps: number of releases, 1 to 10**6.

    Raises:
        ValueError: a parameter out of its range, or a noise multiplier outside 0.01 to 1024.
    """

    scale: int
    sensitivity: int
    dimension: int
    steps: int

    TYPE: ClassVar = "local-discrete-gaussian"

    def __post_init__(self) -> None:
        _discrete(self.scale, self.sensitivity, self.dimension, self.steps)
        if not self.sensitivity <= 100 * self.scale or not self.scale <= _MAXIMUM_MULTIPLIER * self.sensitivity:
            raise ValueError(f"the noise multiplier must be from 0.01 to {_MAXIMUM_MULTIPLIER}")

    @classmethod
    def calibrated(cls, noise_multiplier: float, *, sensitivity: int, dimension: int, steps: int = 1) -> Self:
        """The event with the smallest scale that is at least `noise_multiplier` times the sensitivity (exact).

        Raises:
            ValueError: a parameter out of its range; a scale below 16 asks for contributions in finer units.
        """
        return cls(_scale(noise_multiplier, sensitivity, 1), sensitivity, dimension, steps)

    @property
    def noise_multiplier(self) -> float:
        """Scale of the noise divided by the sensitivity."""
        return self.scale / self.sensitivity

    def alone(self) -> Self:
        """The same: the silo adds all of the noise itself."""
        return self

    def to_json(self) -> dict[str, object]:
        """The form that `event_from_json` reads."""
        return {"type": self.TYPE, **dataclasses.asdict(self)}


@dataclass(frozen=True, slots=True)
class DistributedDiscreteGaussian:
    """`steps` releases of a secure sum of integer vectors, full batch, whose noise the silos add in shares.

    Every silo adds N_Z(0, scale**2) to each coordinate; the claim counts `shares` of them, those of silos that neither
    collude nor draw no noise. More honest silos only add noise.

    Args:
        scale: of one share, 16 to 2**40.
        sensitivity: L2 norm that one patient's contribution cannot exceed, 1 to 2**40.
        shares: how many honest shares are in every sum at the least, 1 to 100.
        dimension: number of coordinates, 1 to 2**31.
        steps: number of sums, 1 to 10**6.

    Raises:
        ValueError: a parameter out of its range, or a noise multiplier of the sum outside 0.3 to 1024.
    """

    scale: int
    sensitivity: int
    shares: int
    dimension: int
    steps: int

    TYPE: ClassVar = "distributed-discrete-gaussian"

    def __post_init__(self) -> None:
        _discrete(self.scale, self.sensitivity, self.dimension, self.steps)
        _whole("shares", self.shares, 1, MAXIMUM_SHARES)
        variance, square = self.shares * self.scale**2, self.sensitivity**2
        if not 9 * square <= 100 * variance or not variance <= _MAXIMUM_MULTIPLIER**2 * square:
            raise ValueError(f"the noise multiplier of the sum must be from 0.3 to {_MAXIMUM_MULTIPLIER}")

    @classmethod
    def calibrated(
        cls, noise_multiplier: float, *, sensitivity: int, shares: int, dimension: int, steps: int = 1
    ) -> Self:
        """The event with the smallest scale for which `shares` shares together have at least `noise_multiplier` times
        the sensitivity: shares * scale**2 >= (noise_multiplier * sensitivity)**2, exactly.

        Raises:
            ValueError: a parameter out of its range; a scale below 16 asks for contributions in finer units.
        """
        _whole("shares", shares, 1, MAXIMUM_SHARES)
        return cls(_scale(noise_multiplier, sensitivity, shares), sensitivity, shares, dimension, steps)

    @property
    def noise_multiplier(self) -> float:
        """Scale of the noise of all `shares` together divided by the sensitivity."""
        return math.sqrt(self.shares) * self.scale / self.sensitivity

    def alone(self) -> LocalDiscreteGaussian:
        """What an adversary sees who gets this silo's vector unmasked: one share."""
        return LocalDiscreteGaussian(self.scale, self.sensitivity, self.dimension, self.steps)

    def to_json(self) -> dict[str, object]:
        """The form that `event_from_json` reads."""
        return {"type": self.TYPE, **dataclasses.asdict(self)}


Event = PoissonSubsampledGaussian | DistributedDiscreteGaussian | LocalDiscreteGaussian
_TYPES: Final[dict[str, type[Event]]] = {
    kind.TYPE: kind for kind in (PoissonSubsampledGaussian, DistributedDiscreteGaussian, LocalDiscreteGaussian)
}
_Kind = tuple[str, tuple[float, ...]]


def event_from_json(value: object) -> Event:
    """Decode an event.

    Raises:
        MalformedError: unknown type, missing or extra field, or a value out of range.
    """
    name = value.get("type") if isinstance(value, Mapping) else None
    event_type = _TYPES.get(name) if isinstance(name, str) else None
    if event_type is None or not isinstance(value, Mapping):
        raise MalformedError("unknown event type")
    fields = dataclasses.fields(event_type)
    if set(value) != {"type", *(field.name for field in fields)}:
        raise MalformedError("an event has a missing or an unknown field")
    arguments = {field.name: _number(value[field.name], real=field.type == "float") for field in fields}
    try:
        return event_type(**arguments)  # type: ignore[arg-type]
    except ValueError as error:
        raise MalformedError(f"an event is out of range: {error}") from error


def repeated(event: Event, rounds: int) -> Event:
    """`rounds` rounds of an event as one event.

    Raises:
        ValueError: more than `MAXIMUM_STEPS` steps, or no round.
    """
    return replace(event, steps=event.steps * rounds)


def canonical(events: Iterable[Event]) -> tuple[Event, ...]:
    """Sum the steps of events that differ in nothing else; sorted, so that equal charges are equal tuples.

    Raises:
        ValueError: more than `MAXIMUM_STEPS` steps of one kind.
    """
    return tuple(replace(event, steps=steps) for _, (event, steps) in sorted(_totals(events).items()))


def covers(whole: Iterable[Event], part: Iterable[Event]) -> bool:
    """Whether `part` has no event of a kind that `whole` lacks, and no more steps of any kind."""
    allowed = {kind: steps for kind, (_, steps) in _totals(whole).items()}
    return all(steps <= allowed.get(kind, 0) for kind, (_, steps) in _totals(part).items())


def _totals(events: Iterable[Event]) -> dict[_Kind, tuple[Event, int]]:
    totals: dict[_Kind, tuple[Event, int]] = {}
    for event in events:
        kind = _kind(event)
        first, steps = totals.get(kind, (event, 0))
        totals[kind] = (first, steps + event.steps)
    return totals


def _kind(event: Event) -> _Kind:
    """All but the steps."""
    match event:
        case PoissonSubsampledGaussian():
            return event.TYPE, (event.noise_multiplier, event.sampling_rate)
        case LocalDiscreteGaussian():
            return event.TYPE, (event.scale, event.sensitivity, event.dimension)
        case DistributedDiscreteGaussian():
            return event.TYPE, (event.scale, event.sensitivity, event.shares, event.dimension)


def _scale(noise_multiplier: float, sensitivity: int, shares: int) -> int:
    if not (math.isfinite(noise_multiplier) and 0 < noise_multiplier <= _MAXIMUM_MULTIPLIER):
        raise ValueError(f"noise_multiplier must be above 0 and at most {_MAXIMUM_MULTIPLIER}")
    # Exact: a float is a rational number, and the ceiling of a root is found among integers.
    variance = math.ceil((Fraction(noise_multiplier) * sensitivity) ** 2 / shares)
    return math.isqrt(variance - 1) + 1


def _discrete(scale: int, sensitivity: int, dimension: int, steps: int) -> None:
    _whole("scale", scale, MINIMUM_SCALE, _LARGEST)
    _whole("sensitivity", sensitivity, 1, _LARGEST)
    _whole("dimension", dimension, 1, 1 << 31)
    _whole("steps", steps, 1, MAXIMUM_STEPS)


def _whole(name: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}")


def _number(value: object, *, real: bool) -> float:
    # JSON has one number type: RFC 8785 writes 2.0 as 2.
    if type(value) is int:
        return float(value) if real else value
    if type(value) is not float or not real:
        raise MalformedError("an event's parameter must be a number, and whole where it counts something")
    return value
