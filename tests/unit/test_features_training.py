"""Tables read tolerantly, for training, where refusing would answer a question about one record."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_tables import AGE, PRESSURE, SEX, TARGET, schema
from hypothesis import given, settings
from hypothesis import strategies as st

from feddrm.contract.errors import InputError
from feddrm.contract.schema import Schema
from feddrm.features import Dataset, read_table, training_data


def trained(content: str | bytes, wanted: Schema, folder: Path) -> Dataset:
    path = folder / "t.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return training_data(path, wanted)


@pytest.mark.parametrize(
    ("line", "features"),
    [
        ("p,old,110,f,1", [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]),
        ("p,nan,110,f,1", [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]),
        ("p,1e999,110,f,1", [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]),
        ("p,50,high,f,1", [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]),
        ("p,50,110,x,1", [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_cell_that_does_not_fit_is_encoded_as_missing(tmp_path: Path, line: str, features: list[float]) -> None:
    data = trained(f"id,age,pressure,sex,num\n{line}\n", schema(), tmp_path)
    assert data.features.tolist() == [features]
    assert (data.unusable.cells, data.unusable.records) == (1, 0)


def test_without_an_indicator_it_is_zeros(tmp_path: Path) -> None:
    columns = [column | {"missing_indicator": False} for column in (AGE, PRESSURE, SEX)]
    data = trained("id,age,pressure,sex,num\np,old,high,x,1\n", schema(TARGET, *columns), tmp_path)
    assert data.features.tolist() == [[0.0] * 6]
    assert data.unusable.cells == 3


@pytest.mark.parametrize(
    "line",
    [
        b",50,110,f,1",
        b"  ,50,110,f,1",
        b"p\xff,50,110,f,1",
        b"p,50,110,f,",
        b"p,50,110,f,ill",
        b"p,50,110,f,nan",
        b"p,50,110,f",
        b"p,50,110,f,1,2",
        b'"p,50,110,f,1',
        b'"p"x,50,110,f,1',
        b"p" * 200_000 + b",50,110,f,1",
    ],
)
def test_a_record_without_patient_or_target_or_form_is_left_out(tmp_path: Path, line: bytes) -> None:
    data = trained(b"id,age,pressure,sex,num\na,1,110,f,0\n" + line + b"\nb,2,110,m,1\n", schema(), tmp_path)
    assert data.patients == [b"a", b"b"]
    assert data.targets is not None
    assert data.targets.tolist() == [0, 1]
    assert data.unusable.records == 1


@pytest.mark.parametrize("rows", ["", "\n\n", ",,,,\n", "p\n"])
def test_a_table_without_a_usable_record_is_an_empty_data_set(tmp_path: Path, rows: str) -> None:
    data = trained("id,age,pressure,sex,num\n" + rows, schema(), tmp_path)
    assert (len(data), data.patients, data.features.shape) == (0, [], (0, 8))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"id,age,pressure,sex\n",
        b"id,id,age,pressure,sex,num\n",
        b"\x1f\x8bgarbage",
        b'"id\n',
        b"\xff\xfei\0d\0",
    ],
)
def test_what_does_not_depend_on_records_is_still_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError):
        trained(content, schema(), tmp_path)
    with pytest.raises(InputError):
        training_data(tmp_path / "absent.csv", schema())


def test_counts_of_records_do_not_show_in_a_repr(tmp_path: Path) -> None:
    data = trained("id,age,pressure,sex,num\np,old,110,f,1\n", schema(), tmp_path)
    assert "Unusable" not in repr(data)
    assert "dropped" not in repr(read_table(tmp_path / "t.csv", tolerant=True))


KINDS: list[dict[str, Any]] = [
    {"kind": "numeric", "lower": -1e30, "upper": 1e30, "missing": ["", "?"]},
    {"kind": "numeric", "lower": 0, "upper": 1e-30, "missing": []},
    {"kind": "binned", "edges": [-1, 0, 2.5], "missing": ["0"]},
    {"kind": "categorical", "categories": ["a", "b", '"', "p,q"], "missing": ["", "?"]},
]
TARGETS: list[dict[str, Any]] = [
    {"kind": "threshold", "column": "y", "operator": "<=", "value": 0, "labels": ["no", "yes"]},
    {"kind": "classes", "column": "y", "values": ["a", "0", "?"]},
]
schemas = st.builds(
    lambda kinds, target: Schema.model_validate(
        {
            "patient": "id",
            "target": target,
            "columns": [
                {**kind, "name": f"c{number}", "missing_indicator": shown} for number, (kind, shown) in enumerate(kinds)
            ],
        }
    ),
    st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(TARGETS),
)
cells = st.one_of(
    st.sampled_from([b"", b"?", b"0", b"a", b"b", b"1e308", b"-inf", b"nan", b"2.5", b'"', b'"p,q"', b"1_0", b"\xc3"]),
    st.binary(max_size=4),
)


def lines_of(wanted: Schema) -> st.SearchStrategy[bytes]:
    width = len(wanted.columns) + 2
    whole = st.lists(cells, min_size=width, max_size=width).map(b",".join)
    return st.one_of(whole, whole, st.lists(cells, max_size=width + 2).map(b",".join), st.binary(max_size=20)).map(
        lambda line: line.translate(None, b"\r\n")
    )


@settings(max_examples=300)
@given(data=st.data(), wanted=schemas)
def test_nothing_in_a_record_stops_training_or_moves_another_record(data: st.DataObject, wanted: Schema) -> None:
    """The whole table is, bit for bit, what its lines are one by one. So it is total, and removing a patient's lines
    changes nothing about anybody else's."""
    lines = data.draw(st.lists(lines_of(wanted), max_size=6))
    header = b",".join([b"id", b"y", *(column.name.encode() for column in wanted.columns)])
    with tempfile.TemporaryDirectory() as folder:
        whole = trained(b"\n".join([header, *lines]), wanted, Path(folder))
        single = [trained(header + b"\n" + line, wanted, Path(folder)) for line in lines]
    assert whole.features.shape[1] == wanted.width
    assert np.isfinite(whole.features).all()
    assert np.abs(whole.features).max(initial=0) <= 1
    assert whole.features.tobytes() == b"".join(one.features.tobytes() for one in single)
    assert whole.targets is not None
    assert whole.targets.tolist() == [target for one in single for target in one.targets.tolist()]  # type: ignore[union-attr]
    assert whole.patients == [patient for one in single for patient in one.patients]
    assert whole.unusable.cells == sum(one.unusable.cells for one in single)
    assert whole.unusable.records == sum(one.unusable.records for one in single)
    assert all(len(one) <= 1 for one in single)


@given(content=st.binary(max_size=200))
def test_no_bytes_make_tolerant_reading_raise_but_for_the_header(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = trained(b"id,age,pressure,sex,num\n" + content, schema(), Path(folder))
    assert len(data) == len(data.patients)
