"""A comparison's directory: what is done is never done again, whatever ended the run before.

    DIR/settings.json       what is compared; another comparison needs another directory
    DIR/made-by.json        code, libraries and records that rows follow from; others need another directory, too
    DIR/rows/CELL.json      one finished cell each; drift-CELL-wSTRENGTH.json one drift
    DIR/states/RUN.npz      where an unfinished training stands; gone when its cells are done
    DIR/noise/TERMS.json    what the accountant found
    DIR/rows.json, rows.csv, report.html, drift.json, drift.csv

Every file is either its old or its new self, so that a kill at any instant costs a few rounds at most.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from feddrm.compare.budget import Noise, Terms
from feddrm.compare.provenance import provenance
from feddrm.compare.settings import Settings, document
from feddrm.compare.training import State
from feddrm.contract.errors import UsageError
from feddrm.contract.files import atomic_write, make_directory, read_bounded, read_text
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian, event_from_json

MAXIMUM_STATE: Final = 2 << 30
_HASH_LENGTH: Final = 64
_ELSEWHERE: Final = "Name another directory with --dir."


class Store:
    """One directory.

    Args:
        folder: is made if it does not exist.
        settings: of the comparison.

    Raises:
        UsageError: the directory holds another comparison, or rows of other code, libraries or records.
        InputError: it cannot be written, or a user's own file not read.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        for part in ("rows", "states", "noise"):
            make_directory(folder / part)
        known, made_by = folder / "settings.json", folder / "made-by.json"
        text = json.dumps(document(settings), indent=1, sort_keys=True)
        found = provenance(settings)
        if not known.exists():
            atomic_write(made_by, json.dumps(found, indent=1).encode())
            atomic_write(known, text.encode())
        elif read_text(known) != text:
            raise UsageError(f"{folder} holds a comparison with other settings.", remedy=_ELSEWHERE)
        elif others := _differing(json.loads(read_text(made_by)) if made_by.exists() else {}, found):
            raise UsageError(
                f"{folder} holds rows that do not compare with new ones: {'; '.join(others)}.", remedy=_ELSEWHERE
            )

    def row(self, cell: str) -> dict[str, Any] | None:
        """The finished row of a cell."""
        place = self.folder / "rows" / f"{cell}.json"
        if not place.exists():
            return None
        row: dict[str, Any] = json.loads(read_text(place))
        return row

    def keep_row(self, cell: str, row: dict[str, Any]) -> None:
        """Write a finished row."""
        atomic_write(self.folder / "rows" / f"{cell}.json", json.dumps(row).encode())

    def state(self, run: str) -> State | None:
        """Where a training stands; None where it has not begun, or its file is not whole."""
        place = self.folder / "states" / f"{run}.npz"
        if not place.exists():
            return None
        try:
            with np.load(io.BytesIO(read_bounded(place, limit=MAXIMUM_STATE)), allow_pickle=False) as arrays:
                number, volume, steps = (int(value) for value in arrays["counts"])
                return State(number, arrays["model"], tuple(arrays["personals"]), volume, steps)
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def keep_state(self, run: str, state: State) -> None:
        """Write where a training stands."""
        buffer = io.BytesIO()
        counts = np.array([state.number, state.bytes, state.steps], dtype=np.int64)
        np.savez(buffer, counts=counts, model=state.model, personals=np.stack(state.personals))
        atomic_write(self.folder / "states" / f"{run}.npz", buffer.getvalue())

    def drop_state(self, run: str) -> None:
        """Forget a training whose rows are written."""
        (self.folder / "states" / f"{run}.npz").unlink(missing_ok=True)

    def noise(self, terms: Terms) -> Noise | None:
        """What the accountant found for these terms before."""
        place = self._noise_file(terms)
        if not place.exists():
            return None
        found = json.loads(read_text(place))
        event = event_from_json(found["fit"]) if found["fit"] is not None else None
        if not isinstance(event, DistributedDiscreteGaussian | LocalDiscreteGaussian | None):
            return None
        return Noise(found["training"], event, found["epsilon"], found["tuning"])

    def keep_noise(self, terms: Terms, noise: Noise) -> None:
        """Write what the accountant found."""
        fit = noise.fit.to_json() if noise.fit is not None else None
        text = json.dumps({"training": noise.training, "fit": fit, "epsilon": noise.epsilon, "tuning": noise.tuning})
        atomic_write(self._noise_file(terms), text.encode())

    def _noise_file(self, terms: Terms) -> Path:
        return self.folder / "noise" / f"{name_of(asdict(terms))}.json"


def name_of(facts: object) -> str:
    """A file name for what JSON can say: 24 hexadecimal digits of SHA-256."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _differing(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What is not as it was, for people: hashes by what they are of alone."""
    every = sorted(before.keys() | now.keys())
    pairs = [(name, before.get(name, "unknown"), now.get(name, "unknown")) for name in every]
    return [
        f"other {name}" if len(new) == _HASH_LENGTH else f"{name} {old}, now {new}"
        for name, old, new in pairs
        if old != new
    ]
