"""Which drifts a comparison has, and how one is run and kept, beside the comparison's cells."""

from __future__ import annotations

import csv
import io
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from feddrm.cli import table
from feddrm.compare import cells, drift
from feddrm.compare.cells import Cell
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store
from feddrm.contract.files import atomic_write

_EVERY: Final = "mean of all"


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
            terms = {
                "method": cell.method,
                "epsilon": None if noise is None else cell.epsilon,
                "silos": len(federation.silos),
                "change": settings.drift.change,
                "ewc": wanted.strength,
                "seed": cell.seed,
                "epsilon_spent": None if noise is None else round(noise.epsilon, 4),
            }
            figures = drift.run(settings, federation, cell.row, noise, wanted.strength, cell.seed)
            found = [{**terms, **figure} for figure in figures]
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


def text(found: Sequence[dict[str, Any]]) -> str:
    """A table for each method and federation: medians over seeds of every silo without and with consolidation; last,
    the mean over silos and seeds."""
    blocks = []
    for (method, silos, epsilon), members in _groups(found, "method", "silos", "epsilon"):
        privacy = "no privacy" if epsilon is None else f"epsilon {epsilon:g}"
        strengths = sorted({row["ewc"] for row in members})
        headers = ["silo", "knew"]
        for key in ("forgotten", "learnt"):
            headers += [f"{key}, ewc {strength:g}" if strength else key for strength in strengths]
        lines = [[silo, *_figures(own, strengths, statistics.median)] for (silo,), own in _groups(members, "silo")]
        lines.append([_EVERY, *_figures(members, strengths, statistics.mean)])
        blocks.append(f"{method}, {silos} silos, {privacy}\n\n{table(headers, lines)}")
    return "\n\n".join(blocks)


def _figures(
    members: Sequence[dict[str, Any]], strengths: Sequence[float], middle: Callable[[list[float]], float]
) -> list[str]:
    def of(key: str, strength: float) -> str:
        return f"{middle([row[key] for row in members if row['ewc'] == strength]):.3f}"

    # Before the change nothing is held: what was known is the same at every strength.
    return [of("knew", strengths[0]), *(of(key, each) for key in ("forgotten", "learnt") for each in strengths)]


def _groups(found: Sequence[dict[str, Any]], *keys: str) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.items())
