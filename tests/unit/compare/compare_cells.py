"""Cells run in a process of their own, and all that they come to: rows, and the bytes of networks and answers.

    python compare_cells.py SETTINGS.json STORE THREADS

writes STORE/digests.json: what `run_all` finds there with so many threads of torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddrm.compare import cells, judging
from feddrm.compare.cells import Job
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store

NOWHERE = Path("no-such-folder")

Found = dict[str, dict[str, Any]]


def digest(value: Any) -> str:
    """SHA-256 of arrays in whatever holds them, with their names, types and shapes."""
    total = hashlib.sha256()

    def add(each: Any) -> None:
        if isinstance(each, np.ndarray):
            total.update(f"{each.dtype}{each.shape}".encode() + np.ascontiguousarray(each).tobytes())
        elif dataclasses.is_dataclass(each):
            for field in dataclasses.fields(each):
                total.update(field.name.encode())
                add(getattr(each, field.name))
        elif isinstance(each, dict):
            for name, part in each.items():
                total.update(name.encode())
                add(part)
        elif isinstance(each, list | tuple):
            total.update(b"%d" % len(each))
            for part in each:
                add(part)
        else:
            total.update(repr(each).encode())

    add(value)
    return total.hexdigest()


def run_cells(job: Job, wanted: Settings, store: Store, advance: Callable[[int], None]) -> Found:
    """Each cell's row as its file holds it, and digests of the networks that are asked and of what they say."""
    asked: list[str] = []
    answers_of, measure = judging.answers_of, judging.measure
    judging.answers_of = lambda *values: asked.append(digest(values[2])) or answers_of(*values)
    judging.measure = lambda *values, **named: asked.append(digest(values)) or measure(*values, **named)
    try:
        cells.run(job, wanted, NOWHERE, store, advance)
    finally:
        judging.answers_of, judging.measure = answers_of, measure
    assert len(asked) == 2 * len(job.cells)
    return {
        cell.name: {
            "row": (store.folder / "rows" / f"{cell.name}.json").read_text(),
            "networks": asked[2 * place],
            "answers": asked[2 * place + 1],
        }
        for place, cell in enumerate(job.cells)
    }


def run_all(wanted: Settings, store: Store, advance: Callable[[int], None] = lambda _: None) -> Found:
    """What every cell of a comparison comes to."""
    found: Found = {}
    for job in cells.jobs(wanted):
        found |= run_cells(job, wanted, store, advance)
    return found


if __name__ == "__main__":
    settings_file, folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    everything: Found = {}
    for number, raw in enumerate(json.loads(Path(settings_file).read_text())):
        these = Settings.model_validate_json(raw)
        everything |= run_all(these, Store(Path(folder) / str(number), these))
    (Path(folder) / "digests.json").write_text(json.dumps(everything))
