"""A silo's working memory during a sum, beyond its own vector and the result, by tracemalloc."""

from __future__ import annotations

import tracemalloc
from typing import Self

from bench.inputs import threshold
from bench.ours import session


class Memory:
    """A meter of bytes: the most that a silo holds at once, less the vectors that it has to make.

    Counted are Python's and numpy's allocations, with what the silo keeps between steps (keys, shares, frames). Not
    counted is the state that OpenSSL keeps for a cipher.
    """

    def __init__(self) -> None:
        self.working = 0
        self._kept = 0
        self._before = 0
        self._vectors = 0

    def __enter__(self) -> Self:
        self._before, self._vectors = tracemalloc.get_traced_memory()[0], 0
        tracemalloc.reset_peak()
        return self

    def __exit__(self, *_: object) -> None:
        self._kept += self._settle() - self._before - self._vectors

    def produced(self, size: int) -> None:
        """A vector that the step is there for. It counts from here on, so that it hides no peak of later."""
        self._vectors += size
        self._settle()

    def _settle(self) -> int:
        """Take the peak since the last time into account; returns what is allocated now."""
        current, peak = tracemalloc.get_traced_memory()
        self.working = max(self.working, self._kept + peak - self._before - self._vectors)
        tracemalloc.reset_peak()
        return current


def client_memory(words: int, cohort: int) -> int:
    """Bytes of the silo that needed most, in one sum of `cohort` silos without dropouts."""
    # Modules that load late and constants of the process are no working memory of a sum.
    session(64, cohort, threshold(cohort), 0, Memory)
    tracemalloc.start()
    try:
        measured = session(words, cohort, threshold(cohort), 0, Memory)
    finally:
        tracemalloc.stop()
    return max(silo.working for silo in measured.silos)
