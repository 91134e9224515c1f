"""Which drifts a comparison has, and how one is run and kept, beside the comparison's cells."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddrm.compare import cells, drift
from feddrm.compare.cells import Cell
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store
from feddrm.contract.files import atomic_write


@dataclass(frozen=True, slots=True)
class DriftRun:
    """One training through a change; `strength` is that of consolidation, 0 for none."""

    cell: Cell
    strength: float

    @property
    def name(self) -> str:
        """Of its file."""
        return f"drift-{self.cell.name}-w{self.strength!r}"


def runs(settings: Settings) -> list[DriftRun]:
    """All of them, of the methods that average in all of their rounds."""
    averaging = [method.name for method in settings.chosen if not method.tunes and "*" not in method.personal]
    every = itertools.product(
        settings.seeds, settings.data.silos or (0,), averaging, settings.epsilons, (0.0, settings.drift.strength)
    )
    return [DriftRun(Cell(method, epsilon, silos, seed), strength) for seed, silos, method, epsilon, strength in every]


def run(wanted: DriftRun, settings: Settings, folder: Path, store: Store, advance: Callable[[int], None]) -> None:
    """Run one, unless it is done, and write its rows: none where nothing is shared that consolidation is to hold.

    Args:
        wanted: of `runs`.
        settings: of the comparison.
        folder: of the public data sets.
        store: of the comparison.
        advance: called with the number of rounds done.

    Raises:
        InputError: the data cannot be read, or do not allow to measure a drift; or no noise keeps within epsilon.
    """
    if store.row(wanted.name) is None:
        cell, found = wanted.cell, []
        federation = cells.federation_of(settings, folder, cell.silos, cell.seed)
        if not wanted.strength or drift.holds(settings, federation, cell.row):
            noise = cells.noise_of(settings, federation, cell, store)
            found = drift.run(settings, federation, cell.row, noise, wanted.strength, cell.seed)
        store.keep_row(wanted.name, {"silos": found})
    advance(settings.train.rounds)


def rows(settings: Settings, store: Store) -> list[dict[str, Any]]:
    """All finished rows, in the order of `runs`."""
    found = (store.row(wanted.name) for wanted in runs(settings))
    return [row for kept in found if kept is not None for row in kept["silos"]]


def write(found: Sequence[dict[str, Any]], notes: Sequence[str], folder: Path) -> None:
    """drift.json and drift.csv."""
    atomic_write(folder / "drift.json", json.dumps({"notes": list(notes), "drift": list(found)}, indent=1).encode())
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(found[0]) if found else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "epsilon": "inf" if row["epsilon"] is None else row["epsilon"]} for row in found)
    atomic_write(folder / "drift.csv", buffer.getvalue().encode())
