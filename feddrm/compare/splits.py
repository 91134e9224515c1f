"""Label shift: how one set of records is divided among silos that differ in their mix of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import InputError

Numbers = npt.NDArray[np.int64]

# A silo of fewer records would measure luck.
SMALLEST_SILO: Final = 20
_ATTEMPTS: Final = 200


def dirichlet(labels: Numbers, silos: int, alpha: float, generator: np.random.Generator) -> Numbers:
    """The silo of every record, int64[n]: each class is divided by a draw from Dirichlet(alpha, ..., alpha) (Hsu, Qi
    and Brown 2019, arXiv 1909.06335). Drawn anew while a silo has less than SMALLEST_SILO records.

    Args:
        labels: int64[n].
        silos: K.
        alpha: the smaller, the more silos differ.
        generator: of the draws.

    Raises:
        InputError: no draw leaves every silo enough records.
    """
    for _ in range(_ATTEMPTS):
        owners = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            shares = np.cumsum(generator.dirichlet(np.full(silos, alpha)))
            cuts = np.rint(shares[:-1] * len(rows)).astype(np.int64)
            for silo, part in enumerate(np.split(rows, cuts)):
                owners[part] = silo
        if np.bincount(owners, minlength=silos).min() >= SMALLEST_SILO:
            return owners
    raise InputError(
        f"{len(labels)} records cannot be divided among {silos} silos by Dirichlet({alpha:g}) so that each has "
        f"{SMALLEST_SILO}.",
        remedy="Use fewer silos or a larger alpha.",
    )


def shards(labels: Numbers, silos: int, each: int, generator: np.random.Generator) -> Numbers:
    """The silo of every record, int64[n]: records sorted by label are cut into silos * each runs of (all but) equal
    length, and every silo gets `each` of them at random (McMahan et al. 2017, arXiv 1602.05629).

    Raises:
        InputError: a silo would have less than SMALLEST_SILO records.
    """
    if len(labels) // silos < SMALLEST_SILO:
        raise InputError(f"{len(labels)} records are too few for {silos} silos.", remedy="Use fewer silos.")
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    owners = np.empty(len(labels), dtype=np.int64)
    for place, part in zip(generator.permutation(silos * each), np.array_split(order, silos * each), strict=True):
        owners[part] = place % silos
    return owners


def training_part(owners: Numbers, share: float, generator: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which records are trained on, bool[n]: `share` of each silo's, at random, and at least one is left."""
    training = np.zeros(len(owners), dtype=np.bool_)
    for silo in np.unique(owners):
        rows = generator.permutation(np.flatnonzero(owners == silo))
        training[rows[: min(max(round(share * len(rows)), 1), len(rows) - 1)]] = True
    return training


def held_out(patients: Sequence[bytes], share: float, generator: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which records are held out, bool[n]: all those of `share` of the patients, of one patient at least.

    Args:
        patients: of each of n records.
        share: of them, in (0, 1).
        generator: of the draw.
    """
    different = sorted(set(patients))
    order = generator.permutation(len(different))
    held = {different[number] for number in order[: max(round(share * len(different)), 1)]}
    return np.array([patient in held for patient in patients], dtype=np.bool_)
