"""What both sides of the comparison are given: the same vectors, the same threshold, the same dropouts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CLIP = 8.0
"""Entries lie in [-CLIP, CLIP): Flower's default clipping range."""


def update(index: int, length: int) -> NDArray[np.float32]:
    """The model update of silo `index`: float32[length], uniform, different for every silo."""
    values = np.random.default_rng(index).random(length, dtype=np.float32)
    # In place: what temporary arrays leave behind decides which pages the allocator has to get anew, on either side.
    values *= 2
    values -= 1
    values *= np.float32(CLIP)
    return values


def threshold(cohort: int) -> int:
    """How many silos unmask a sum: the least number above two thirds, on both sides."""
    return 2 * cohort // 3 + 1
