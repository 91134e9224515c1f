"""Data sets whose silos are real: RAND's sites, the four hospitals of UCI Heart Disease, a user's own files.

What is held out is drawn by patient, anew for every seed: all records of a patient together. The columns of the public
tables, and what is left out of them for leaking site or target, are in schemas/.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np

from feddrm.compare import public, splits
from feddrm.compare.data import Federation, public_size
from feddrm.compare.settings import Data
from feddrm.contract.errors import InputError
from feddrm.contract.files import read_text
from feddrm.contract.schema import Schema
from feddrm.features import Dataset, Table, encode, read_table, training_data

HEART_COLUMNS: Final = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"),
    "num",
)


def natural(settings: Data, folder: Path, seed: int) -> Federation:
    """The data set of `settings` with the silos that it has.

    Args:
        settings: of the data.
        folder: of the public data sets (feddrm.compare.public).
        seed: of what is held out.

    Raises:
        InputError: a file cannot be read, or a silo has too few patients.
    """
    if settings.files is not None:
        silos = {name: training_data(path, settings.files.schema_) for name, path in settings.files.silos.items()}
        return _divide(silos, settings.files.schema_, settings.files.held_out, seed, private=True)
    public.require(settings, folder)
    schema = schema_of(settings.source)
    silos = rand(schema) if settings.source == "rand" else heart(folder, schema)
    return _divide(silos, schema, 1.0 - settings.training_share, seed)


def schema_of(name: str) -> Schema:
    """The schema of "rand" or "heart"."""
    text = (resources.files("feddrm.compare") / "schemas" / f"{name}.toml").read_text(encoding="utf-8")
    return Schema.model_validate(tomllib.loads(text))


def rand(schema: Schema) -> dict[str, Dataset]:
    """The six sites of the RAND Health Insurance Experiment, which comes with the package; patients are persons."""
    with resources.as_file(resources.files("feddrm.demo") / "data" / "randhie.csv.gz") as path:
        table = read_table(path)
    sites = sorted(set(table.columns["site"]))
    return {f"site-{site}": encode(_where(table, "site", site), schema) for site in sites}


def heart(folder: Path, schema: Schema) -> dict[str, Dataset]:
    """Four hospitals, each record a patient of its own.

    Raises:
        InputError: a file is missing or has other columns.
    """
    silos = {}
    for hospital, file in public.HEART.items():
        path = folder / file.name
        # 1.0 and 1 are one category; the files mix both.
        rows = [[cell.removesuffix(".0") for cell in line.split(",")] for line in read_text(path).split()]
        if any(len(row) != len(HEART_COLUMNS) for row in rows):
            raise InputError(f"{path} does not have the {len(HEART_COLUMNS)} columns of UCI Heart Disease.")
        columns = {name: [row[place] for row in rows] for place, name in enumerate(HEART_COLUMNS)}
        columns["patient"] = [f"{hospital} {number}" for number in range(len(rows))]
        silos[hospital] = encode(Table(str(path), columns, list(range(1, len(rows) + 1))), schema)
    return silos


def _where(table: Table, column: str, value: str) -> Table:
    rows = [row for row in range(len(table)) if table.columns[column][row] == value]
    columns = {name: [cells[row] for row in rows] for name, cells in table.columns.items()}
    return Table(table.source, columns, [table.lines[row] for row in rows])


def _divide(
    silos: Mapping[str, Dataset], schema: Schema, held_out: float, seed: int, *, private: bool = False
) -> Federation:
    training, tests = [], []
    for place, (name, data) in enumerate(silos.items()):
        patients = len(set(data.patients))
        if patients < 4:
            raise InputError(f"Silo {name} has {patients} patients, which are too few to hold some of them out.")
        flags = splits.held_out(data.patients, held_out, np.random.default_rng([seed, place]))
        training.append(data.part(~flags))
        tests.append(data.part(flags))
    return Federation(
        tuple(training),
        np.concatenate([test.features for test in tests]),
        np.concatenate([test.known_targets() for test in tests]),
        np.concatenate([np.full(len(test), place) for place, test in enumerate(tests)]),
        tuple(silos),
        tuple(public_size(len(set(data.patients))) for data in training),
        schema,
        private,
    )


def for_choosing(federation: Federation, share: float, seed: int) -> Federation:
    """The federation without its held-out records: judged by `share` of every silo's training patients instead, who
    are not trained on. What is chosen by it has not seen what a table reports.
    """
    rest, chosen = [], []
    for place, data in enumerate(federation.silos):
        flags = splits.held_out(data.patients, share, np.random.default_rng([seed, place, 1]))
        if flags.all():
            raise InputError(f"Silo {federation.names[place]} has too few patients to choose settings by some of them.")
        rest.append(data.part(~flags))
        chosen.append(data.part(flags))
    return replace(
        federation,
        silos=tuple(rest),
        features=np.concatenate([data.features for data in chosen]),
        targets=np.concatenate([data.known_targets() for data in chosen]),
        home=np.concatenate([np.full(len(data), place) for place, data in enumerate(chosen)]),
        sizes=tuple(public_size(len(set(data.patients))) for data in rest),
    )
