"""Stage 4: how good the federation is, from patients that no stage trained on, by one secure sum (design section 7).

A held-out patient gives the mean over its records of (1, answered right as the silo's own patient, routed here, routed
here and answered right as a query), as integers. All four lie in [0, 1], so one patient moves a silo's vector by at
most 2, and what is published are ratios of noised sums with the noise's standard deviation beside them. No silo's own
figure is in anything that leaves it unmasked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from feddrm.contract import labels
from feddrm.contract.errors import MalformedError
from feddrm.contract.stages import EVALUATION_FRACTION_BITS as FRACTION_BITS
from feddrm.contract.stages import EVALUATION_SENSITIVITY as SENSITIVITY
from feddrm.contract.stages import EVALUATION_WORDS as WORDS
from feddrm.method.shared_head import linear_logits

__all__ = [
    "FRACTION_BITS",
    "SENSITIVITY",
    "WORDS",
    "Figure",
    "Figures",
    "choose",
    "contribution",
    "held_out",
]

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

KEY_BYTES: Final = 32
# A ratio is published where its denominator is this many standard deviations of its noise: closer to zero the ratio's
# own spread is no longer what the delta method says.
_CLEAR: Final = 10


def held_out(key: bytes, patients: Sequence[bytes], share: float) -> Flags:
    """Which patients evaluation keeps from training, bool[n]: each with probability `share`, by a PRF of the patient.

    It depends on nothing but key, patient and share, so that it is the same in every stage and job and no patient
    decides about another. A smaller share holds out a part of those of a larger one.

    Args:
        key: 32 bytes, the silo's own, drawn once from a CSPRNG and kept for life. A key that others knew would let them
            make patients that are always held out.
        patients: of each record, so that all records of a patient are held out together.
        share: from 0 to 1, exclusively; of the plan.

    Raises:
        ValueError: a wrong key or share.
    """
    if len(key) != KEY_BYTES or not 0 < share < 1:
        raise ValueError("held-out patients need a key of 32 bytes and a share between 0 and 1")
    threshold = int(Fraction(share) * (1 << 64))
    draws = (blake2b(labels.HELD_OUT + b"\0" + patient, key=key, digest_size=8).digest() for patient in patients)
    return np.fromiter((int.from_bytes(draw) < threshold for draw in draws), dtype=np.bool_, count=len(patients))


def choose(weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32], rows: npt.NDArray[np.float32]) -> Integers:
    """arg max of weight @ row + bias, int64[n], each row by itself; ties go to the earlier class.

    Args:
        weight: float32[K, d].
        bias: float32[K].
        rows: float32[n, d].

    Raises:
        MalformedError: the shapes do not fit.
    """
    chosen: Integers = linear_logits(weight, bias, rows).argmax(axis=1)
    return chosen


def contribution(patients: Sequence[bytes], correct: Flags, routed: Flags, answered: Flags) -> Integers:
    """A silo's vector int64[4] in FRACTION_BITS, *without noise*: the sum over its held-out patients.

    Without any one patient it is the same less that patient's part, whose L2 norm is at most SENSITIVITY.

    Args:
        patients: of each held-out record.
        correct: bool[n], whether what this silo says of its own patient is right.
        routed: bool[n], whether the record, as a querier would send it, is routed to this silo.
        answered: bool[n], whether what this silo would tell a querier is right.

    Raises:
        MalformedError: the lengths differ.
    """
    if not len(patients) == len(correct) == len(routed) == len(answered):
        raise MalformedError("Every record has one patient and three outcomes.")
    records: dict[bytes, list[int]] = {}
    outcomes = zip(patients, correct.tolist(), routed.tolist(), answered.tolist(), strict=True)
    for patient, right, here, told in outcomes:
        counts = records.setdefault(patient, [0, 0, 0, 0])
        for place, hit in enumerate((True, right, here, told and here)):
            counts[place] += hit
    total = np.zeros(WORDS, dtype=np.int64)
    for counts in records.values():
        # Rounded down: every part stays at most 1.
        total += np.array([(count << FRACTION_BITS) // counts[0] for count in counts], dtype=np.int64)
    return total


@dataclass(frozen=True, slots=True)
class Figure:
    """A published probability, and the standard deviation that the noise gives it (not that of the sample).

    Both are None where there were too few patients for the noise.
    """

    value: float | None
    std: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What stage 4 publishes, over the held-out patients of all silos in the sum.

    Args:
        own_correct: P(the own silo's model is right).
        routed_to_own: P(a patient is routed to the own silo).
        both: P(a patient is routed to the own silo, whose answer to the query is right). Without second opinions what a
            query gets right at the least, as other silos may be right, too.
    """

    own_correct: Figure
    routed_to_own: Figure
    both: Figure

    @classmethod
    def of(cls, total: Integers, noise_std: float) -> Self:
        """Figures from the noised sum.

        A ratio's deviation by the delta method: the sums have independent noise of one size s, so that with a/n = r it
        is s / n * sqrt(1 + r**2).

        Args:
            total: int64[4].
            noise_std: of each entry: scale * sqrt(silos that added noise).

        Raises:
            MalformedError: not int64[4].
        """
        if total.shape != (WORDS,) or total.dtype != np.int64:
            raise MalformedError(f"Evaluation's sum is {WORDS} int64.")
        count, *hits = (int(entry) for entry in total)
        if count <= 0 or count < _CLEAR * noise_std:
            return cls(*[Figure(None, None)] * 3)
        ratios = [min(max(hit / count, 0.0), 1.0) for hit in hits]
        return cls(*[Figure(ratio, noise_std / count * math.sqrt(1 + ratio**2)) for ratio in ratios])
