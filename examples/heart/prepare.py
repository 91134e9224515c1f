"""From the four published files of the UCI Heart Disease data to the tables of this walk-through.

`python prepare.py FOLDER OUT` reads FOLDER/processed.*.data and writes OUT/HOSPITAL.csv for each hospital (70 % of its
patients), OUT/patients.csv (the features of all others, in a random order: the clinic's patients) and OUT/truth.csv
(where each of them came from, and whether they are ill).
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HOSPITALS: Final = ("cleveland", "hungarian", "switzerland", "va")
FEATURES: Final = tuple("age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal".split())  # noqa: SIM905
TARGET: Final = "num"
HELD_OUT: Final = 0.3


def records(folder: Path, hospital: str) -> list[dict[str, str]]:
    """A hospital's records as published, each of one patient, with a `patient` column.

    Raises:
        FileNotFoundError: there is no such file.
    """
    lines = (folder / f"processed.{hospital}.data").read_text(encoding="ascii").split()
    # 1.0 and 1 are one category; the files mix both.
    rows = [[cell.removesuffix(".0") for cell in line.split(",")] for line in lines]
    return [
        {"patient": f"{hospital}-{number}", **dict(zip((*FEATURES, TARGET), row, strict=True))}
        for number, row in enumerate(rows)
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Write all tables."""
    parser = argparse.ArgumentParser(description="Prepare the UCI Heart Disease data for four hospitals")
    parser.add_argument("folder", type=Path, help="holds the four files processed.*.data")
    parser.add_argument("out", type=Path, help="where the tables go")
    parser.add_argument("--seed", type=int, default=0, help="of who is held out")
    options = parser.parse_args(argv)
    draw = random.Random(options.seed)  # noqa: S311 - who is held out is no secret
    held: list[tuple[str, dict[str, str]]] = []
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        for hospital in HOSPITALS:
            rows = records(options.folder, hospital)
            draw.shuffle(rows)
            cut = round(HELD_OUT * len(rows))
            held += [(hospital, row) for row in rows[:cut]]
            _write(options.out / f"{hospital}.csv", ("patient", *FEATURES, TARGET), rows[cut:])
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is missing. README.md beside this script says where the four files come from.")
    draw.shuffle(held)
    _write(options.out / "patients.csv", FEATURES, [row for _, row in held])
    truth = [{"hospital": hospital, "label": "ill" if int(row[TARGET]) > 0 else "healthy"} for hospital, row in held]
    _write(options.out / "truth.csv", ("hospital", "label"), truth)
    print(f"Wrote four hospitals and {len(held)} patients of the clinic to {options.out}.")


def _write(path: Path, names: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
