"""What `bench.routing_fit` runs on: silos' training records, and held-out records whose silo is known."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.schema import Schema
from feddrm.demo import rand
from feddrm.features import Dataset, Table, encode, read_table

HOSPITALS: Final = ("cleveland", "hungarian", "switzerland", "va")
# Patients in the published tables, less what is held out here, rounded: public facts.
HEART_SIZES: Final = (210, 210, 90, 140)
HEART_COLUMNS: Final = (
    "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Federation:
    """One data set.

    Args:
        name: of the data set.
        silos: K of them, with targets; features float32[n, ...].
        features: float32[m, ...] of held-out records of all silos.
        targets: int64[m].
        home: int64[m], the silo that each came from.
        sizes: K public approximate numbers of patients.
        schema: of the records, if they are tables.
    """

    name: str
    silos: tuple[Dataset, ...] = field(repr=False)
    features: npt.NDArray[np.float32] = field(repr=False)
    targets: npt.NDArray[np.int64] = field(repr=False)
    home: npt.NDArray[np.int64] = field(repr=False)
    sizes: tuple[int, ...]
    schema: Schema | None = field(default=None, repr=False)


def rand_hie() -> Federation:
    """The six sites of the demo: one-hot public bins, persons as patients, 30 % of them held out."""
    with tempfile.TemporaryDirectory() as folder:
        files = rand.write_files(Path(folder))
        schema = Schema.model_validate(rand.schema_document())
        silos = tuple(encode(read_table(files.train[site]), schema) for site in rand.SITES)
        held = encode(read_table(files.held_out), schema, targets=False)
    return Federation(
        "rand",
        silos,
        held.features,
        np.array([rand.LABELS.index(truth.label) for truth in files.truth]),
        np.array([rand.SITES.index(truth.site) for truth in files.truth]),
        tuple(files.public_size[site] for site in rand.SITES),
        schema,
    )


def heart_schema(indicators: bool) -> Schema:
    """Thirteen columns with bounds from medicine, not from the tables. A cholesterol or pressure of 0 was not taken."""

    def column(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "missing": ["?", *more.pop("also", ())], "missing_indicator": indicators, **more}

    def number(name: str, lower: float, upper: float, *also: str) -> dict[str, Any]:
        return column(name, kind="numeric", lower=lower, upper=upper, also=also)

    def category(name: str, *categories: str) -> dict[str, Any]:
        return column(name, kind="categorical", categories=list(categories))

    return Schema.model_validate(
        {
            "patient": "patient",
            "target": {"kind": "threshold", "column": "num", "operator": ">", "value": 0, "labels": ["healthy", "ill"]},
            "columns": [
                number("age", 20, 90),
                category("sex", "0", "1"),
                category("cp", "1", "2", "3", "4"),
                number("trestbps", 80, 200, "0"),
                number("chol", 100, 500, "0"),
                category("fbs", "0", "1"),
                category("restecg", "0", "1", "2"),
                number("thalach", 60, 210),
                category("exang", "0", "1"),
                number("oldpeak", 0, 6),
                category("slope", "1", "2", "3"),
                category("ca", "0", "1", "2", "3"),
                category("thal", "3", "6", "7"),
            ],
        }
    )


def heart(folder: Path, seed: int, indicators: bool) -> Federation:
    """The four hospitals of the UCI Heart Disease data, 30 % of each held out at random.

    Args:
        folder: holds the four processed.*.data files.
        seed: of the split.
        indicators: whether the features say that a value is missing.

    Raises:
        FileNotFoundError: a file is missing.
    """
    generator = np.random.default_rng(seed)
    schema = heart_schema(indicators)
    silos, held = [], []
    for hospital in HOSPITALS:
        text = (folder / f"processed.{hospital}.data").read_text()
        rows = [[_plain(cell) for cell in line.split(",")] for line in text.split()]
        columns = {name: list(cells) for name, cells in zip(HEART_COLUMNS, zip(*rows, strict=True), strict=True)}
        columns["patient"] = [f"{hospital} {number}" for number in range(len(rows))]
        data = encode(Table(hospital, columns, list(range(1, len(rows) + 1))), schema)
        order = generator.permutation(len(data))
        cut = round(0.3 * len(data))
        held.append(part(data, np.sort(order[:cut])))
        silos.append(part(data, np.sort(order[cut:])))
    return Federation(
        "heart" if indicators else "heart without indicators",
        tuple(silos),
        np.concatenate([data.features for data in held]),
        np.concatenate([targets_of(data) for data in held]),
        np.concatenate([np.full(len(data), k) for k, data in enumerate(held)]),
        HEART_SIZES,
        schema,
    )


def part(data: Dataset, rows: npt.NDArray[np.int64]) -> Dataset:
    """Some records of a data set."""
    return Dataset(data.features[rows], targets_of(data)[rows], [data.patients[row] for row in rows])


def targets_of(data: Dataset) -> npt.NDArray[np.int64]:
    """The targets, which these data sets have."""
    if data.targets is None:
        raise ValueError("records without targets")
    return data.targets


def _plain(cell: str) -> str:
    """1.0 and 1 are one category; the files mix both."""
    return cell.removesuffix(".0")
