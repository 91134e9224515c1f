"""What a patient is to the routing fit: features and labels as integers, each patient's by its own records alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import MalformedError
from feddrm.method.probabilities import P_BITS

Integers = npt.NDArray[np.int64]

# Of phi: an entry is an integer multiple of 2**-20, so that ||phi|| <= 2**20.
PHI_BITS: Final = 20


def patient_phi(embeddings: npt.NDArray[np.float32], patients: Sequence[bytes]) -> Integers:
    """Every patient's phi, int64[P, d + 1] in PHI_BITS, in the order of first appearance.

    A record that is not finite counts as zeros. Every operation is exact or correctly rounded by IEEE 754 and keeps to
    one record, so that a patient's row does not depend on others' records.

    Args:
        embeddings: float32[n, d] of the frozen trunk, each computed without the others (`model.embed_each`).
        patients: of each record.

    Raises:
        MalformedError: not float32[n, d] with n patients.
    """
    if embeddings.ndim != 2 or embeddings.dtype != np.float32 or len(embeddings) != len(patients):
        raise MalformedError("Embeddings are rows of float32 values, one patient each.")
    columns = embeddings.astype(np.float64).T
    usable = np.isfinite(columns).all(axis=0)
    columns = np.where(usable, columns, 0.0)
    squares = np.ones(len(patients))
    for column in columns:
        squares += column * column
    # Rounded towards zero and aimed below 1: the norm of the integers stays within 2**20 in spite of all roundings.
    scale = (2.0**PHI_BITS) * (1.0 - 2.0**-30) / np.sqrt(squares)
    rows = np.empty((len(patients), len(columns) + 1), dtype=np.int64)
    for index, column in enumerate([*columns, np.ones(len(patients))]):
        rows[:, index] = np.trunc(column * scale)
    rows[~usable] = 0
    owners, count = _owners(patients)
    totals = np.zeros((count, rows.shape[1]), dtype=np.int64)
    np.add.at(totals, owners, rows)
    counts = np.bincount(owners, minlength=count)[:, None]
    return np.sign(totals) * (np.abs(totals) // counts)


def patient_labels(targets: npt.NDArray[np.int64], patients: Sequence[bytes], classes: int) -> Integers:
    """Every patient's y, int64[P, C] in multiples of 2**-24, in the order of first appearance: the part that each class
    has of its records, rounded down, so that y >= 0 and the entries sum to at most 1.

    A record whose target is none of the classes does not count; a patient without any other has zeros, and adds
    nothing to the target head.

    Args:
        targets: int64[n], class numbers.
        patients: of each record.
        classes: C.

    Raises:
        MalformedError: not n int64 targets for n patients.
    """
    if targets.dtype != np.int64 or targets.shape != (len(patients),):
        raise MalformedError("Targets are int64 class numbers, one a record.")
    owners, count = _owners(patients)
    known = (targets >= 0) & (targets < classes)
    counts = np.zeros((count, classes), dtype=np.int64)
    np.add.at(counts, (owners[known], targets[known]), 1)
    labels: Integers = (counts << P_BITS) // np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return labels


def _owners(patients: Sequence[bytes]) -> tuple[npt.NDArray[np.intp], int]:
    """(each record's patient's number, intp[n], in the order of first appearance; how many patients there are)."""
    numbers: dict[bytes, int] = {}
    owners = np.array([numbers.setdefault(patient, len(numbers)) for patient in patients], dtype=np.intp)
    return owners, len(numbers)
