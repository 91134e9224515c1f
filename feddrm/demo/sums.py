"""Checks secure aggregation from outside: every published sum against the plain updates that the demo alone kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feddrm.contract.schedule import NAMES, STAGE_TRAIN
from secagg.vector import decode_sum


@dataclass(frozen=True, slots=True)
class SumCheck:
    """How many published sums were compared, and whether each one matched in every entry."""

    checked: int
    verified: bool


def check(history: Sequence[dict[str, Any]], kept: Path, coordinator: Path) -> SumCheck:
    """Add up the survivors' kept updates of each published round and compare with the published sum.

    Args:
        history: the rounds in the coordinator's status.
        kept: one folder a silo with `round-NNNN-<silo>.npy` (int64[n]) from --demo-keep-updates.
        coordinator: the coordinator's server directory, whose blobs hold the published sums.
    """
    checked, verified = 0, True
    for entry in history:
        if entry["outcome"] != "published":
            continue
        updates = [np.load(kept / silo / f"round-{entry['round']:04d}-{silo}.npy") for silo in entry["survivors"]]
        expected = np.stack(updates).sum(axis=0, dtype=np.int64)
        (published,) = coordinator.rglob(f"sums/{entry['sum']}")
        # Training's sums are of 32-bit entries, those of the later stages of 64-bit ones.
        trained = entry["stage"] == NAMES[STAGE_TRAIN]
        words32, words64, _ = decode_sum(
            published.read_bytes(), *((len(expected), 0) if trained else (0, len(expected)))
        )
        total = words32 if trained else words64
        checked += 1
        verified &= bool(np.array_equal(total, expected))
    return SumCheck(checked, verified and checked > 0)
