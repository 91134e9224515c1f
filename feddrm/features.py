"""From a table of records, or a file of images, to arrays, driven by the plan's schema; silo and querier share it
(design section 2).

Nothing is computed from the data: bounds, bin edges and categories come from the schema. Errors name file, line and
column but never the value, which may be a patient's and would end in a log.

Two modes. *Strict* reports the first thing that is wrong, to a person who can mend it. *Tolerant* is for training,
where a plan's author would learn a fact about a single record from whether it fails: it fails for nothing that
depends on records, and what becomes of one record depends on that record alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feddrm.arrays import check_images, scale_images
from feddrm.contract.errors import InputError
from feddrm.contract.images import Image
from feddrm.contract.schema import Binned, Categorical, Column, Numeric, Schema, Threshold
from feddrm.tables import Table, read_table

__all__ = ["Dataset", "Table", "Unusable", "encode", "read_table", "training_data"]


@dataclass(frozen=True, slots=True)
class Unusable:
    """What a tolerant encoding could not use: cells that count as missing now, and records left out.

    Exact counts of records, for the hospital's own log only.
    """

    cells: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class Dataset:
    """Encoded records.

    Args:
        features: float32[n, d].
        targets: int64[n], class numbers in the order of the schema's target; None for queries.
        patients: n patient ids as UTF-8; several records may share one.
        unusable: what a tolerant encoding could not use.
    """

    features: npt.NDArray[np.float32] = field(repr=False)
    targets: npt.NDArray[np.int64] | None = field(repr=False)
    patients: list[bytes] = field(repr=False)
    unusable: Unusable = field(default=Unusable(), repr=False)

    def __len__(self) -> int:
        return len(self.features)

    def part(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> Dataset:
        """Some records: by their places, in that order, or by a flag for each."""
        targets = None if self.targets is None else self.targets[rows]
        patients = [self.patients[row] for row in np.arange(len(self))[rows].tolist()]
        return Dataset(self.features[rows], targets, patients)

    def known_targets(self) -> npt.NDArray[np.int64]:
        """The targets of records that have them.

        Raises:
            ValueError: they have none.
        """
        if self.targets is None:
            raise ValueError("records without targets")
        return self.targets


def training_data(path: Path | str, schema: Schema) -> Dataset:
    """Read and encode a hospital's records for training, tolerantly: total over all contents of the records.

    Raises:
        InputError: facts about the file, not about records: it cannot be read, has no header, lacks a column.
    """
    return encode(read_table(path, tolerant=True), schema, tolerant=True)


def encode(table: Table, schema: Schema, *, targets: bool = True, tolerant: bool = False) -> Dataset:
    """Encode all records. Columns that the schema does not name are ignored.

    A missing value gives zeros and, where the schema says so, a missingness indicator of 1.

    Args:
        table: of `read_table`.
        schema: of the plan.
        targets: False for queries: the target column is not looked at, and the patient column may be absent (records
            then count as one patient each, named by their line).
        tolerant: take an unlisted category and what is no finite number as missing, and leave out records without a
            patient id or a target, instead of refusing them.

    Raises:
        InputError: a column is missing; unless `tolerant` also: a cell is not what the schema says, or a patient id
            is missing.
    """
    wanted = [column.name for column in schema.columns]
    if targets:
        wanted += [schema.patient, schema.target.column]
    absent = [name for name in wanted if name not in table.columns]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise InputError(
            f"{table.source}: column {absent[0]!r}{more} of the plan's schema is missing.",
            remedy="Add it, or compare the header's spelling with the plan.",
        )
    features, cells = _features(table, schema, tolerant)
    classes, unlabelled = _targets(table, schema) if targets else (None, _no_problem(table))
    patients, nameless = _patients(table, schema)
    for problem in (unlabelled, nameless):
        _refuse(table, problem, tolerant)
    kept = ~(unlabelled.at | nameless.at)
    return Dataset(
        features[kept],
        None if classes is None else classes[kept],
        [patient for patient, keep in zip(patients, kept.tolist(), strict=True) if keep],
        Unusable(cells, table.dropped + int((~kept).sum())),
    )


def _features(table: Table, schema: Schema, tolerant: bool) -> tuple[npt.NDArray[np.float32], int]:
    """(features of all records, cells that count as missing)."""
    if schema.image is not None:
        return _images(table, schema.image, tolerant)
    features = np.empty((len(table), schema.width), dtype=np.float32)
    offset = cells = 0
    for column in schema.columns:
        block, problem = _encode_column(table, column)
        _refuse(table, problem, tolerant)
        cells += int(problem.at.sum())
        features[:, offset : offset + column.width] = block
        offset += column.width
    return features, cells


def _images(table: Table, image: Image, tolerant: bool) -> tuple[npt.NDArray[np.float32], int]:
    if image.name not in table.arrays:
        raise InputError(
            f"{table.source}: array {image.name!r} of the plan's schema.image is missing.",
            remedy="Write images, patients and targets with numpy.savez_compressed, under the plan's names.",
        )
    features, wrong = scale_images(check_images(table.source, table.arrays[image.name], image), image)
    complaint = "a value of the image is not a finite number"
    _refuse(table, _Problem(image.name, wrong > 0, complaint, "Correct the image or leave it out."), tolerant)
    return features, int(wrong.sum())


@dataclass(frozen=True, slots=True)
class _Problem:
    """Where cells of a column are unusable (bool[n]), and what to say of the first."""

    column: str
    at: npt.NDArray[np.bool_]
    complaint: str = ""
    remedy: str = ""


def _no_problem(table: Table) -> _Problem:
    return _Problem("", np.zeros(len(table), dtype=bool))


def _refuse(table: Table, problem: _Problem, tolerant: bool) -> None:
    if not tolerant and problem.at.any():
        line = table.lines[int(np.argmax(problem.at))]
        raise InputError(
            f"{table.source}, {table.unit} {line}, column {problem.column!r}: {problem.complaint}.",
            remedy=problem.remedy,
        )


def _encode_column(table: Table, column: Column) -> tuple[npt.NDArray[np.float32], _Problem]:
    cells = table.columns[column.name]
    markers = set(column.missing)
    missing = np.fromiter((cell in markers for cell in cells), dtype=bool, count=len(cells))
    block: npt.NDArray[np.float32]
    match column:
        case Numeric():
            values, problem = _numbers(table, column.name, missing)
            span = column.upper - column.lower
            scaled = 2.0 * (np.clip(values, column.lower, column.upper) - column.lower) / span - 1.0
            block = scaled.astype(np.float32)[:, None]
        case Binned():
            values, problem = _numbers(table, column.name, missing)
            bins = np.searchsorted(np.array(column.edges), values, side="right")
            block = _one_hot(bins, len(column.edges) + 1)
        case Categorical():
            numbers = {category: number for number, category in enumerate(column.categories)}
            codes, problem = _codes(
                table, column.name, numbers, missing, "the value is not one of the plan's categories"
            )
            block = _one_hot(codes, len(column.categories))
    missing |= problem.at
    block[missing] = 0.0
    if column.missing_indicator:
        block = np.concatenate([block, missing[:, None].astype(np.float32)], axis=1)
    return block, problem


def _one_hot(codes: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.float32]:
    hot: npt.NDArray[np.float32] = (codes[:, None] == np.arange(width)).astype(np.float32)
    return hot


def _targets(table: Table, schema: Schema) -> tuple[npt.NDArray[np.int64], _Problem]:
    target = schema.target
    nothing = np.zeros(len(table), dtype=bool)
    if isinstance(target, Threshold):
        values, problem = _numbers(table, target.column, nothing)
        match target.operator:
            case ">":
                holds = values > target.value
            case ">=":
                holds = values >= target.value
            case "<":
                holds = values < target.value
            case "<=":
                holds = values <= target.value
        return holds.astype(np.int64), problem
    numbers = {value: number for number, value in enumerate(target.values)}
    return _codes(table, target.column, numbers, nothing, "the value is not one of the plan's target values")


def _patients(table: Table, schema: Schema) -> tuple[list[bytes], _Problem]:
    cells = table.columns.get(schema.patient)
    if cells is None:
        return [b"line %d" % line for line in table.lines], _no_problem(table)
    # Ids are compared exactly as they are written. What is no UTF-8 is no id: b"" stands for both.
    patients = [_identifier(cell) for cell in cells]
    nameless = np.fromiter((not patient for patient in patients), dtype=bool, count=len(patients))
    remedy = "Every record needs one: the patient is the unit of privacy."
    return patients, _Problem(schema.patient, nameless, "the patient id is missing", remedy)


def _identifier(cell: str) -> bytes:
    try:
        return cell.encode()
    except UnicodeEncodeError:
        return b""


def _codes(
    table: Table, name: str, numbers: dict[str, int], missing: npt.NDArray[np.bool_], complaint: str
) -> tuple[npt.NDArray[np.int64], _Problem]:
    cells = table.columns[name]
    codes = np.fromiter((numbers.get(cell, -1) for cell in cells), dtype=np.int64, count=len(cells))
    return codes, _Problem(name, (codes < 0) & ~missing, complaint)


def _numbers(table: Table, name: str, missing: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.float64], _Problem]:
    cells = table.columns[name]
    values = np.zeros(len(cells), dtype=np.float64)
    for index, (cell, absent) in enumerate(zip(cells, missing.tolist(), strict=True)):
        if not absent:
            values[index] = _number(cell)
    wrong = ~np.isfinite(values)
    values[wrong] = 0.0
    remedy = "Correct the cell, or name its marker under `missing` in the plan's schema."
    return values, _Problem(name, wrong, "not a finite number", remedy)


def _number(cell: str) -> float:
    """The number, or NaN where it is none. Python's own extras (1_000, digits of other scripts) are refused."""
    if "_" in cell or not cell.isascii():
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        return float("nan")
