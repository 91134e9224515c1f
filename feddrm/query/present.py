"""What `route` and `ask` print: for programs lists of names, for people words. Two silos of a row are in the plan's
order, and nothing says which of them is nearer."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddrm.cli import Format, emit, table
from feddrm.contract.errors import FeddrmError
from feddrm.contract.files import atomic_write
from feddrm.query.ask import Outcome, Silence
from feddrm.query.route import Routed

_NEARLY_TIED = "Two hospitals of a row are nearly tied, and in no order."
_AVERAGED = " Their answers are averaged."


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of equal keys, in a program's words, and what else it is told.

    Attributes:
        rows: values are numbers, text, or lists of silos' names.
        legend: what a person must know of rows that name two silos.
    """

    headers: tuple[str, ...]
    rows: Sequence[dict[str, Any]]
    legend: str
    notes: dict[str, object]

    def document(self) -> dict[str, object]:
        """For --format json."""
        return {"rows": list(self.rows), **self.notes}

    def csv(self) -> str:
        """For files: a space, which no name contains, stands between two names."""
        stream = io.StringIO(newline="")
        writer = csv.writer(stream)
        writer.writerow(self.headers)
        writer.writerows([_cell(row[key], " ") for key in self.headers] for row in self.rows)
        return stream.getvalue()

    def text(self) -> str:
        """For people: columns in which something stands."""
        shown = [key for key in self.headers if not self.rows or any(row[key] != [] for row in self.rows)]
        lines = table(shown, [[_cell(row[key], " and ") for key in shown] for row in self.rows])
        two = any(len(row["silos"]) > 1 for row in self.rows)
        return f"{lines}\n{self.legend}" if two else lines

    def publish(self, form: Format, out: Path | None) -> None:
        """Print the rows, or write them to a file that nobody else on this machine may read: labels are of patients."""
        if out is None:
            emit(form, self.document(), self.text())
            return
        text = json.dumps(self.document()) if form is Format.JSON else self.csv()
        atomic_write(out, text.encode(), mode=0o600)
        emit(form, {"out": str(out), "rows_written": len(self.rows)}, f"Wrote {len(self.rows)} rows to {out}.")


def _cell(value: Any, between: str) -> Any:
    return between.join(value) if isinstance(value, list) else value


def routes(found: Sequence[tuple[Routed, ...]]) -> Rows:
    """One row a record: where it goes."""
    rows = [{"row": row[0].row + 1, "silos": [one.silo.name for one in row]} for row in found]
    return Rows(("row", "silos"), rows, _NEARLY_TIED, {})


def answers(outcome: Outcome) -> Rows:
    """One row a record that was answered, and who kept silent."""
    rows = [
        {
            "row": one.row + 1,
            "silos": list(one.silos),
            "missing": list(one.missing),
            "label": one.label,
            "probability": one.probability,
        }
        for one in outcome.answers
    ]
    notes: dict[str, object] = {}
    if (error := unanswered(outcome)) is not None:
        notes["incomplete"] = str(error)
    for word, refused in (("refused", True), ("away", False)):
        silent = [one for one in outcome.silences if one.refused is refused]
        if silent:
            notes[word] = [
                {"silo": one.silo, "reason": str(one.error), "rows": [row + 1 for row in one.rows]} for one in silent
            ]
    return Rows(("row", "silos", "missing", "label", "probability"), rows, _NEARLY_TIED + _AVERAGED, notes)


def unanswered(outcome: Outcome) -> FeddrmError | None:
    """Why some row has no answer at all; None if every row has one."""
    if outcome.failure is not None:
        return outcome.failure
    answered = {answer.row for answer in outcome.answers}
    return next((one.error for one in outcome.silences if not answered.issuperset(one.rows)), None)


def silence(one: Silence, outcome: Outcome) -> str:
    """A hospital that gave no answer, in words."""
    answered = {answer.row for answer in outcome.answers}
    none = [row for row in one.rows if row not in answered]
    others = [row for row in one.rows if row in answered]
    parts = [f"Not answered: {_rows(none)}."] if none else []
    parts += [f"Answered by the other hospital alone: {_rows(others)}."] if others else []
    return f"{one.error} ({' '.join(parts)})"


def _rows(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number + 1) for number in numbers[:10])
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return f"row{'s' if len(numbers) > 1 else ''} {shown}{more}"
