"""From a table of records to arrays, driven by the plan's schema; silo and querier share it (design section 2).

Nothing is computed from the data: bounds, bin edges and categories come from the schema. Errors name file, line and
column but never the value, which may be a patient's and would end in a log.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import InputError
from feddrm.contract.schema import Binned, Categorical, Column, Numeric, Schema, Threshold

_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Table:
    """Text cells by column, as read; `lines[i]` is the line of the file on which record i ends.

    Args:
        source: the file's path, for messages.
        columns: cells without surrounding blanks, one list of equal length for each column name.
        lines: 1-based line numbers.
    """

    source: str
    columns: dict[str, list[str]] = field(repr=False)
    lines: list[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.lines)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Encoded records.

    Args:
        features: float32[n, d].
        targets: int64[n], class numbers in the order of the schema's target; None for queries.
        patients: n patient ids as UTF-8; several records may share one.
    """

    features: npt.NDArray[np.float32] = field(repr=False)
    targets: npt.NDArray[np.int64] | None = field(repr=False)
    patients: list[bytes] = field(repr=False)

    def __len__(self) -> int:
        return len(self.features)


def read_table(path: Path | str) -> Table:
    """Read a comma-separated table with a header line, UTF-8, plain or gzip-compressed.

    Raises:
        InputError: unreadable, not UTF-8, damaged, without records, with a ragged row or a repeated column name.
    """
    source = str(path)
    try:
        raw = Path(path).read_bytes()
        if raw.startswith(_GZIP):
            raw = gzip.decompress(raw)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{source} is a damaged gzip file.", remedy="Write it again.") from error
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}.") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{source}, line {line}: not UTF-8 text.", remedy="Save the table as CSV in UTF-8.") from error
    return _parse(source, text)


def _parse(source: str, text: str) -> Table:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    header: list[str] = []
    try:
        for row in reader:
            if not row:
                continue
            if not header:
                header = _header(source, row)
            elif len(row) != len(header):
                raise InputError(
                    f"{source}, line {reader.line_num}: {len(row)} cells where the header names {len(header)} columns."
                )
            else:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"{source}, line {reader.line_num}: not valid CSV ({error}).") from error
    if not rows:
        raise InputError(
            f"{source} is empty: it has no records.", remedy="A header line and at least one record are needed."
        )
    columns = dict(zip(header, ([cell.strip() for cell in cells] for cells in zip(*rows, strict=True)), strict=True))
    return Table(source, columns, lines)


def _header(source: str, row: Sequence[str]) -> list[str]:
    names = [name.strip() for name in row]
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise InputError(f"{source} is not separated by commas.", remedy="Save the table as CSV with commas.")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{source}: column {name!r} appears twice in the header.")
    return names


def encode(table: Table, schema: Schema, *, targets: bool = True) -> Dataset:
    """Encode all records. Columns that the schema does not name are ignored.

    A missing value gives zeros and, where the schema says so, a missingness indicator of 1.

    Args:
        table: of `read_table`.
        schema: of the plan.
        targets: False for queries: the target column is not looked at, and the patient column may be absent (records
            then count as one patient each, named by their line).

    Raises:
        InputError: a column or patient id is missing, or a cell is not what the schema says.
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
    features = np.empty((len(table), schema.width), dtype=np.float32)
    offset = 0
    for column in schema.columns:
        features[:, offset : offset + column.width] = _encode_column(table, column)
        offset += column.width
    return Dataset(features, _targets(table, schema) if targets else None, _patients(table, schema))


def _encode_column(table: Table, column: Column) -> npt.NDArray[np.float32]:
    cells = table.columns[column.name]
    markers = set(column.missing)
    missing = np.fromiter((cell in markers for cell in cells), dtype=bool, count=len(cells))
    block: npt.NDArray[np.float32]
    match column:
        case Numeric():
            values = _numbers(table, column.name, missing)
            span = column.upper - column.lower
            scaled = 2.0 * (np.clip(values, column.lower, column.upper) - column.lower) / span - 1.0
            block = scaled.astype(np.float32)[:, None]
        case Binned():
            values = _numbers(table, column.name, missing)
            bins = np.searchsorted(np.array(column.edges), values, side="right")
            block = _one_hot(bins, len(column.edges) + 1)
        case Categorical():
            numbers = {category: number for number, category in enumerate(column.categories)}
            codes = _codes(table, column.name, numbers, missing, "is not one of the plan's categories")
            block = _one_hot(codes, len(column.categories))
    block[missing] = 0.0
    if column.missing_indicator:
        return np.concatenate([block, missing[:, None].astype(np.float32)], axis=1)
    return block


def _one_hot(codes: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.float32]:
    hot: npt.NDArray[np.float32] = (codes[:, None] == np.arange(width)).astype(np.float32)
    return hot


def _targets(table: Table, schema: Schema) -> npt.NDArray[np.int64]:
    target = schema.target
    nothing = np.zeros(len(table), dtype=bool)
    if isinstance(target, Threshold):
        values = _numbers(table, target.column, nothing)
        match target.operator:
            case ">":
                holds = values > target.value
            case ">=":
                holds = values >= target.value
            case "<":
                holds = values < target.value
            case "<=":
                holds = values <= target.value
        return holds.astype(np.int64)
    numbers = {value: number for number, value in enumerate(target.values)}
    return _codes(table, target.column, numbers, nothing, "is not one of the plan's target values")


def _patients(table: Table, schema: Schema) -> list[bytes]:
    cells = table.columns.get(schema.patient)
    if cells is None:
        return [b"line %d" % line for line in table.lines]
    for cell, line in zip(cells, table.lines, strict=True):
        if not cell:
            raise InputError(
                f"{table.source}, line {line}, column {schema.patient!r}: the patient id is missing.",
                remedy="Every record needs one: the patient is the unit of privacy.",
            )
    return [cell.encode() for cell in cells]


def _codes(
    table: Table, name: str, numbers: dict[str, int], missing: npt.NDArray[np.bool_], complaint: str
) -> npt.NDArray[np.int64]:
    cells = table.columns[name]
    codes = np.fromiter((numbers.get(cell, -1) for cell in cells), dtype=np.int64, count=len(cells))
    wrong = np.flatnonzero((codes < 0) & ~missing)
    if wrong.size:
        raise InputError(f"{table.source}, line {table.lines[wrong[0]]}, column {name!r}: the value {complaint}.")
    return codes


def _numbers(table: Table, name: str, missing: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    cells = table.columns[name]
    values = np.zeros(len(cells), dtype=np.float64)
    for index, (cell, absent) in enumerate(zip(cells, missing.tolist(), strict=True)):
        if not absent:
            values[index] = _number(cell)
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        raise InputError(
            f"{table.source}, line {table.lines[wrong[0]]}, column {name!r}: not a finite number.",
            remedy="Correct the cell, or name its marker under `missing` in the plan's schema.",
        )
    return values


def _number(cell: str) -> float:
    """The number, or NaN where it is none. Python's own extras (1_000, digits of other scripts) are refused."""
    if "_" in cell or not cell.isascii():
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        return float("nan")
