"""Poisson sampling of patients by a pseudo-random function of the patient.

A draw that depended on the patient's place in a list would move for everybody when one patient is removed; keyed by
the patient, neighbouring data sets share all other draws, and a test can measure the sensitivity itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from privacy import labels

KEY_BYTES = 32


def poisson_mask(key: bytes, patients: Sequence[bytes], rate: float) -> npt.NDArray[np.bool_]:
    """Select each patient independently with probability floor(rate * 2**64) / 2**64, never above `rate`.

    Args:
        key: 32 bytes, fresh from a CSPRNG for every step.
        patients: distinct patient ids.
        rate: the plan's sampling rate, in (0, 1].

    Returns:
        bool[len(patients)].

    Raises:
        ValueError: wrong key length, rate out of range, or an id that appears twice (it would be drawn twice and so
            count twice in one step).
    """
    _check_key(key)
    if not 0 < rate <= 1:
        raise ValueError("the sampling rate must be in (0, 1]")
    if len(set(patients)) != len(patients):
        raise ValueError("a patient appears twice")
    threshold = int(Fraction(rate) * (1 << 64))
    return np.fromiter(
        (_draw(labels.POISSON_DRAW, key, patient, 8) < threshold for patient in patients),
        dtype=np.bool_,
        count=len(patients),
    )


def pick_record(key: bytes, patient: bytes, records: int) -> int:
    """Return which of a patient's `records` records this step uses: uniform in [0, records) up to 2**-64.

    Raises:
        ValueError: wrong key length, or fewer than one record.
    """
    _check_key(key)
    if records < 1:
        raise ValueError("a patient needs at least one record")
    return _draw(labels.RECORD_DRAW, key, patient, 16) % records


def _draw(label: bytes, key: bytes, patient: bytes, size: int) -> int:
    return int.from_bytes(blake2b(label + b"\0" + patient, key=key, digest_size=size).digest())


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a sampling key has {KEY_BYTES} bytes, not {len(key)}")
