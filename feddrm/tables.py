"""Reading a table of records as text, strictly for people or tolerantly for training (feddrm.features says why)."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from feddrm.arrays import MAGIC, Array, read_arrays
from feddrm.contract.errors import InputError

_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Table:
    """Text cells by column, as read; `lines[i]` is the line of record i.

    Args:
        source: the file's path, for messages.
        columns: cells without surrounding blanks, one list of equal length for each column name.
        lines: 1-based line numbers.
        dropped: lines that a tolerant reading left out.
        arrays: what is no column, of a file of arrays: by name, one entry a record.
        unit: what `lines` counts, for messages.
    """

    source: str
    columns: dict[str, list[str]] = field(repr=False)
    lines: list[int] = field(repr=False)
    dropped: int = field(default=0, repr=False)
    arrays: dict[str, Array] = field(default_factory=dict, repr=False)
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.lines)


def read_table(path: Path | str, *, tolerant: bool = False) -> Table:
    """Read a comma-separated table with a header line, UTF-8, plain or gzip-compressed, one record a line; or a file of
    arrays (feddrm.arrays), one record an entry.

    A quoted cell may hold commas and quotes but no line break: a stray quote would otherwise swallow the lines after
    it, and with them other patients' records.

    Args:
        path: the file.
        tolerant: leave out lines that are no record, and do without any, instead of refusing the table.

    Raises:
        InputError: unreadable, damaged, without a header or with a repeated column name; unless `tolerant` also: not
            UTF-8, without records, with a ragged or broken line.
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
    if raw.startswith(MAGIC):
        cells, arrays, count = read_arrays(source, raw, tolerant=tolerant)
        if not (count or tolerant):
            raise InputError(f"{source} is empty: it has no records.", remedy="At least one record is needed.")
        return Table(source, cells, list(range(1, count + 1)), arrays=arrays, unit="record")
    try:
        # Bytes that are no UTF-8 become lone surrogates: such a cell is no number, no category and no patient id.
        text = raw.decode("utf-8-sig", "surrogateescape" if tolerant else "strict")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{source}, line {line}: not UTF-8 text.", remedy="Save the table as CSV in UTF-8.") from error
    return _parse(source, text, tolerant)


def _parse(source: str, text: str, tolerant: bool) -> Table:
    rows: list[list[str]] = []
    lines: list[int] = []
    header: list[str] = []
    dropped = 0
    for number, line in enumerate(io.StringIO(text, newline=""), start=1):
        try:
            # A reader for each line: whatever one line holds, the next is read from its own beginning.
            row = next(csv.reader([line], strict=True))
            if header and row and len(row) != len(header):
                raise InputError(
                    f"{source}, line {number}: {len(row)} cells where the header names {len(header)} columns."
                )
        except (csv.Error, InputError) as error:
            if tolerant and header:
                dropped += 1
                continue
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{source}, line {number}: not valid CSV ({error}).",
                remedy="Each record is one line; close every quote on the line on which it opens.",
            ) from error
        if not row:
            continue
        if not header:
            header = _header(source, row)
            continue
        rows.append(row)
        lines.append(number)
    if not header or not (rows or tolerant):
        raise InputError(
            f"{source} is empty: it has no records.", remedy="A header line and at least one record are needed."
        )
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(header)
    columns = dict(zip(header, ([cell.strip() for cell in column] for column in cells), strict=True))
    return Table(source, columns, lines, dropped)


def _header(source: str, row: Sequence[str]) -> list[str]:
    names = [name.strip() for name in row]
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise InputError(f"{source} is not separated by commas.", remedy="Save the table as CSV with commas.")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{source}: column {name!r} appears twice in the header.")
        seen.add(name)
    return names
