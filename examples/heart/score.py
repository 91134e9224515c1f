"""How well the clinic's patients were served: `python score.py ANSWERS TRUTH`, both CSV."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> None:
    """Print the shares of patients who were routed home and whose answer was right."""
    parser = argparse.ArgumentParser(description="Compare answers with the truth")
    parser.add_argument("answers", type=Path)
    parser.add_argument("truth", type=Path)
    options = parser.parse_args(argv)
    answers, truth = _rows(options.answers), _rows(options.truth)
    if [int(answer["row"]) for answer in answers] != list(range(1, len(truth) + 1)):
        parser.exit(3, "Not every patient was answered.\n")
    pairs = list(zip(answers, truth, strict=True))
    home = sum(answer["silos"] == true["hospital"] for answer, true in pairs)
    right = sum(answer["label"] == true["label"] for answer, true in pairs)
    print(f"routed to the hospital that they came from: {home / len(pairs):.3f}")
    print(f"answered rightly by the hospital that they were routed to: {right / len(pairs):.3f}")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
