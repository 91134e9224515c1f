"""Files that somebody damaged, or made to do harm: one sentence each, and no array is chosen between two."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from feddrm.cli import invoke, make_app
from feddrm.contract.errors import ExitCode, InputError
from feddrm.features import read_table

DESCRIPTION = "{{'descr': {}, 'fortran_order': False, 'shape': ({},)}}\n"


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(path: Path, *members: tuple[str, bytes]) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path / "records.npz", "w") as file:
        warnings.simplefilter("ignore", UserWarning)
        for name, data in members:
            file.writestr(name, data)
    return path / "records.npz"


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        header(DESCRIPTION.format("'<f8'", 10**13)),
        header(DESCRIPTION.format("'<f8'", 10**30)),
        header(DESCRIPTION.format("'<f8'", -5)),
        header("(" * 9000 + "\n"),
        header("{'descr': '<f8\n"),
        header("{'descr': \0}\n"),
        header(DESCRIPTION.format("'|S99999999999999'", 1)),
        header(DESCRIPTION.format("'|O'", 1)) + b"\x80\x04.",
        header(DESCRIPTION.format("5", 1)),
    ],
    ids=["terabytes", "huge", "negative", "nested", "cut", "nul", "wide", "pickle", "number"],
)
def test_a_header_that_lies_is_a_damaged_file(data: bytes, tolerant: bool, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no file of arrays"):
        read_table(archive(tmp_path, ("id.npy", data)), tolerant=tolerant)


@pytest.mark.parametrize(("place", "value", "bit"), [(8, 99, 10), (6, 1, 8)], ids=["method", "encrypted"])
def test_an_archive_that_cannot_be_unpacked_is_a_damaged_file(place: int, value: int, bit: int, tmp_path: Path) -> None:
    path = archive(tmp_path, ("id.npy", saved(np.arange(3))))
    raw = bytearray(path.read_bytes())
    # In the header before the member, and in the directory at the end, which is the one that is believed.
    raw[place] = raw[raw.rindex(b"PK\x01\x02") + bit] = value
    path.write_bytes(raw)
    with pytest.raises(InputError, match="is no file of arrays"):
        read_table(path)


@pytest.mark.parametrize("second", ["id.npy", "id"])
def test_two_arrays_of_one_name_are_refused(second: str, tmp_path: Path) -> None:
    path = archive(tmp_path, ("id.npy", saved(np.arange(3))), (second, saved(np.arange(3) + 7)))
    for tolerant in (False, True):
        with pytest.raises(InputError, match="two arrays have one name"):
            read_table(path, tolerant=tolerant)


@pytest.mark.parametrize("order", ["<", ">"])
def test_characters_that_do_not_exist_are_nobodys_id_and_refuse_no_training(order: str, tmp_path: Path) -> None:
    codes = np.array([ord("a"), 0x110000, 0xFFFFFFFF, ord("b")], dtype=f"{order}u4")
    path = archive(tmp_path, ("id.npy", saved(codes.view(f"{order}U1"))), ("none.npy", saved(np.zeros(4, "U1"))))
    cells = read_table(path, tolerant=True).columns["id"]
    assert (cells[0], cells[3]) == ("a", "b")
    for cell in cells[1:3]:
        with pytest.raises(UnicodeEncodeError):
            cell.encode()
    with pytest.raises(InputError, match="array 'id': not text"):
        read_table(path)


def test_too_little_memory_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app("x", "x")

    @app.command()
    def one() -> None:
        np.zeros(1 << 50)

    assert invoke(app, []) == ExitCode.INPUT
    assert "does not fit in this machine's memory" in capsys.readouterr().err
