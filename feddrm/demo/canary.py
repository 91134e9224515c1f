"""Records that exist nowhere else: whoever finds a trace of them outside their hospital has found a leak."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path


def plant(records: Mapping[str, Path], patient: str) -> None:
    """Append one record to every hospital's table: the given patient id, and each cell of its table's first record.

    Args:
        records: a table for each hospital, with a column `zper` of patient ids.
        patient: the id to plant; the hospital's name is appended.
    """
    for name, path in records.items():
        with path.open(newline="", encoding="utf-8") as source:
            reader = csv.DictReader(source)
            header, first = list(reader.fieldnames or []), next(reader)
        with path.open("a", newline="", encoding="utf-8") as sink:
            csv.DictWriter(sink, header).writerow({**first, "zper": f"{patient}-{name}"})
