"""The plan's sections for what follows training: routing fit, personal heads, evaluation (design 5, stages 2 to 4).

Each section is optional, and absent means that the stage does not run. Integer bounds are here, not in the method,
because a plan that could leave the ring of 64 bits is refused before anybody signs it.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from feddrm.contract.architecture import Pattern
from feddrm.contract.names import Document, Grown, Name
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian
from secagg.session import MAXIMUM_WORDS64, WORD64_BOUND

DiscreteEvent = DistributedDiscreteGaussian | LocalDiscreteGaussian

MAXIMUM_SUMS: Final = 200
# The sampler never gives more than 16 scale + 16 (privacy.discrete).
NOISE_TAIL: Final = 16

# Stage 4: (1, own head right, routed here, both) for each held-out patient, each the mean over the patient's records
# and at most 1, rounded down to multiples of 2**-16.
EVALUATION_WORDS: Final = 4
EVALUATION_FRACTION_BITS: Final = 16
EVALUATION_SENSITIVITY: Final = 2 << EVALUATION_FRACTION_BITS

# Stage 2: a patient's residual is the probabilities less what is true, in multiples of 2**-24; the router's alone is at
# most sqrt(2) long.
RESIDUAL_BITS: Final = 24
LONGEST_RESIDUAL: Final = math.sqrt(2)

FractionBits = Annotated[int, Field(ge=8, le=24)]
NoiseMultiplier = Annotated[float, Field(ge=0.3, le=1000)]
Noise = Literal["shares", "local"]
Patients = Annotated[int, Field(ge=1, le=100_000_000)]


class RoutingFit(Grown):
    """Stage 2: the routing head is fitted on the frozen trunk by full-batch gradient steps, each one secure sum.

    Attributes:
        sums: network rounds.
        noise_multiplier: of the *sum*: standard deviation of its noise divided by `sensitivity`.
        noise: "shares": every silo adds a part, and only a sum has it all; "local": every silo adds all of it itself,
            which costs accuracy and needs no secure aggregation.
        step_size, momentum: of the gradient steps.
        average_from: the head is the mean of those after this sum and all later ones.
        fraction_bits: a patient's gradient is rounded to multiples of 2**-fraction_bits.
        public_sizes: every silo's public approximate number of patients, as in its local/data.toml; their logarithms
            are subtracted from the logits, which leaves density ratios.
        largest_silo: no silo has more patients; its sum is clamped to what that many can contribute.
        minimum_sums: fewer published sums are never released (default: half of them, rounded up).
        clip_norm: a patient's residual (what the probabilities say, less what is true) is shortened to this where it is
            longer. At sqrt(2) no router's is. The noise is relative to it, so that less of both is often better.
        shared_target: whether the same sums fit one target head for all silos, too; silos with a target of their own
            add noise to it. Silos and coordinator hold it, and silos answer queries with it beside their own.
    """

    later: ClassVar[frozenset[str]] = frozenset({"clip_norm", "shared_target"})

    sums: Annotated[int, Field(ge=1, le=MAXIMUM_SUMS)]
    noise_multiplier: NoiseMultiplier
    noise: Noise = "shares"
    step_size: Annotated[float, Field(ge=2**-16, le=127)]
    momentum: Annotated[float, Field(ge=0, le=0.999)] = 0.9
    average_from: Annotated[int, Field(ge=1, le=MAXIMUM_SUMS)] = 1
    fraction_bits: FractionBits = 16
    public_sizes: Annotated[dict[Name, Patients], Field(min_length=3, max_length=100)]
    largest_silo: Patients = 1_000_000
    minimum_sums: Annotated[int | None, Field(ge=1, le=MAXIMUM_SUMS)] = None
    clip_norm: Annotated[float, Field(ge=2**-6, le=LONGEST_RESIDUAL)] = LONGEST_RESIDUAL
    shared_target: bool = False

    @property
    def required_sums(self) -> int:
        """The fewest published sums that may be released."""
        return self.minimum_sums if self.minimum_sums is not None else (self.sums + 1) // 2

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.average_from > self.sums:
            raise ValueError(f"average_from: exceeds the {self.sums} sums")
        if self.required_sums > self.sums:
            raise ValueError(f"minimum_sums: exceeds the {self.sums} sums")
        return self

    def event(self, entries: int, shares: int) -> DiscreteEvent:
        """What one sum of so many entries does to a patient. `shares`: how many silos' noise counts.

        Raises:
            ValueError: out of the range in which it can be accounted for.
        """
        return noise_event(
            self.noise_multiplier,
            sensitivity=fit_sensitivity(entries, self.fraction_bits, self.clip_norm),
            shares=shares if self.noise == "shares" else None,
            dimension=entries,
        )


class PersonalHead(Grown):
    """Stage 3: each silo fine-tunes its own target head by DP-SGD on the frozen trunk. It adds all of the noise itself,
    and the head never leaves it.

    Attributes:
        tensors: shell patterns over tensor names: what is tuned. With all of them a silo's own model becomes a copy of
            the whole network (FedAvg with fine-tuning); what is shared and released stays as training left it.
        momentum: of the steps.
        average_from: the head is the mean of those after this step, counted from 1, and all later ones; absent, the
            last alone. Like momentum it works on what was noised, and costs no privacy.
        start: "trained": from the head that training left; "shared": from the target head of all silos that the
            routing fit left (`routing_fit.shared_target`), where a silo answers the same question.
    """

    later: ClassVar[frozenset[str]] = frozenset({"tensors", "momentum", "average_from", "start"})

    steps: Annotated[int, Field(ge=1, le=100_000)]
    sampling_rate: Annotated[float, Field(ge=1e-6, le=1)]
    noise_multiplier: NoiseMultiplier
    clip_norm: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    learning_rate: Annotated[float, Field(ge=1e-9, le=1e6)]
    tensors: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=64)] = ("target_head.*",)
    momentum: Annotated[float, Field(ge=0, le=0.999)] = 0.0
    average_from: Annotated[int | None, Field(ge=1, le=100_000)] = None
    start: Literal["trained", "shared"] = "trained"

    @model_validator(mode="after")
    def _averages(self) -> Self:
        if self.average_from is not None and self.average_from > self.steps:
            raise ValueError(f"average_from: exceeds the {self.steps} steps")
        return self


class Evaluation(Document):
    """Stage 4: noised counts on held-out patients, one secure sum.

    Attributes:
        noise_multiplier: of the sum, relative to one patient's contribution.
        noise: as in the routing fit.
        held_out: share of each silo's patients who are kept out of stages 1 to 3 and counted here; drawn by a secret
            key of the silo, for its life.
        largest_silo: as in the routing fit.
        attempts: rounds that there are for it. One that is lost stays charged, so that what may be tried again is part
            of the plan's charge; a job whose evaluation is published needs no other, and is not charged for it.
        required: whether a release needs the figures. If not, a coordinator that declares the evaluation lost can have
            the release published without, and the model card says so.
    """

    noise_multiplier: NoiseMultiplier
    noise: Noise = "shares"
    held_out: Annotated[float, Field(ge=0.01, le=0.5)] = 0.2
    largest_silo: Patients = 1_000_000
    attempts: Annotated[int, Field(ge=1, le=2)] = 2
    required: bool = True

    def event(self, shares: int) -> DiscreteEvent:
        """What the evaluation does to a patient, as in the routing fit."""
        return noise_event(
            self.noise_multiplier,
            sensitivity=EVALUATION_SENSITIVITY,
            shares=shares if self.noise == "shares" else None,
            dimension=EVALUATION_WORDS,
        )


def residual_limit(clip_norm: float) -> int:
    """The square of the longest residual, in multiples of 2**-48: clip_norm**2, rounded down, and exactly 2 at most."""
    if clip_norm >= LONGEST_RESIDUAL:
        return 2 << (2 * RESIDUAL_BITS)
    return math.floor(math.ldexp(clip_norm, RESIDUAL_BITS)) ** 2


def fit_sensitivity(entries: int, fraction_bits: int, clip_norm: float = LONGEST_RESIDUAL) -> int:
    """D: the L2 norm in integers that no patient's contribution of so many entries exceeds (design 7).

    2**f clip_norm bounds the gradient of a normalised patient, sqrt(entries) / 2 what rounding adds.
    """
    longest = math.isqrt((residual_limit(clip_norm) << (2 * fraction_bits)) >> (2 * RESIDUAL_BITS))
    return longest + 1 + (math.isqrt(entries) + 2) // 2


def noise_event(noise_multiplier: float, *, sensitivity: int, shares: int | None, dimension: int) -> DiscreteEvent:
    """What one secure sum with discrete noise does to a patient.

    Args:
        noise_multiplier: of the sum where the noise comes in `shares`, else of each silo's own.

    Raises:
        ValueError: the noise is out of the range in which it can be accounted for.
    """
    if shares is None:
        return LocalDiscreteGaussian.calibrated(noise_multiplier, sensitivity=sensitivity, dimension=dimension)
    return DistributedDiscreteGaussian.calibrated(
        noise_multiplier, sensitivity=sensitivity, shares=shares, dimension=dimension
    )


def entry_bound(event: DiscreteEvent, patients: int) -> int:
    """Largest magnitude of one entry that a silo of at most so many patients sends, noise included."""
    return patients * event.sensitivity + NOISE_TAIL * (event.scale + 1)


def check_ring(event: DiscreteEvent, patients: int) -> None:
    """Refuse a silo's entries that may leave what secure aggregation sums.

    Args:
        patients: the most that a silo has.

    Raises:
        ValueError: they may, or there are too many of them.
    """
    if event.dimension > MAXIMUM_WORDS64:
        raise ValueError(f"a sum of {event.dimension} entries; {MAXIMUM_WORDS64} is the most that is summed")
    bound = entry_bound(event, patients)
    if bound > WORD64_BOUND:
        raise ValueError(
            f"a silo of {patients} patients may send {bound}, and 2**40 is the most that is summed; lower "
            "fraction_bits, noise_multiplier or largest_silo"
        )
