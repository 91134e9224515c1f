from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.contract.errors import InputError
from feddrm.contract.schema import Schema
from feddrm.features import Dataset, Table, encode, read_table

Write = Callable[[str | bytes], Path]

AGE = {"kind": "numeric", "name": "age", "lower": 0, "upper": 100, "missing": ["", "?"]}
PRESSURE = {"kind": "binned", "name": "pressure", "edges": [100, 120], "missing": ["", "0"]}
SEX = {"kind": "categorical", "name": "sex", "categories": ["f", "m"], "missing_indicator": False}
TARGET = {"kind": "threshold", "column": "num", "operator": ">", "value": 0, "labels": ["well", "ill"]}
GOOD = "id,age,pressure,sex,num\np1,50,110,f,0\np2,75,130,m,2\np1,?,0,f,1\n"


def schema(target: dict[str, Any] = TARGET, *columns: dict[str, Any]) -> Schema:
    return Schema.model_validate({"patient": "id", "target": target, "columns": columns or (AGE, PRESSURE, SEX)})


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "records.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def encoded(path: Path, **options: Any) -> Dataset:
    return encode(read_table(path), schema(), **options)


def test_a_table_becomes_arrays(write: Write) -> None:
    data = encoded(write(GOOD))
    assert data.features.dtype == np.float32
    assert data.features.tolist() == [
        [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0],
        [0.5, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0],
        [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0],
    ]
    assert data.targets is not None
    assert data.targets.dtype == np.int64
    assert data.targets.tolist() == [0, 1, 1]
    assert data.patients == [b"p1", b"p2", b"p1"]


def test_features_do_not_depend_on_the_other_records(write: Write) -> None:
    """Anything computed from the table, such as a mean, would leak one patient into another's features."""
    whole = encoded(write(GOOD)).features
    header, *lines = GOOD.splitlines()
    for index, line in enumerate(lines):
        assert encoded(write(f"{header}\n{line}\n")).features.tolist() == whole[index : index + 1].tolist()


@pytest.mark.parametrize(
    ("age", "feature"), [("0", -1), ("100", 1), ("-7", -1), ("1e9", 1), ("25", -0.5), (" 25 ", -0.5), ("2.5e1", -0.5)]
)
def test_numbers_are_scaled_and_clipped_to_public_bounds(write: Write, age: str, feature: float) -> None:
    assert encoded(write(f"id,age,pressure,sex,num\np,{age},110,f,0\n")).features[0, 0] == feature


@pytest.mark.parametrize(
    ("pressure", "bin_"), [("99.999", 0), ("100", 1), ("119.9", 1), ("120", 2), ("-5", 0), ("1e300", 2)]
)
def test_bins_include_their_lower_edge(write: Write, pressure: str, bin_: int) -> None:
    features = encoded(write(f"id,age,pressure,sex,num\np,1,{pressure},f,0\n")).features[0, 2:6]
    assert features.tolist() == [float(i == bin_) for i in range(3)] + [0.0]


@pytest.mark.parametrize(
    ("operator", "expected"), [(">", [0, 0, 1]), (">=", [0, 1, 1]), ("<", [1, 0, 0]), ("<=", [1, 1, 0])]
)
def test_threshold_targets(write: Write, operator: str, expected: list[int]) -> None:
    table = read_table(write("id,age,num\na,1,0\nb,1,1\nc,1,2\n"))
    targets = encode(table, schema(TARGET | {"operator": operator, "value": 1}, AGE)).targets
    assert targets is not None
    assert targets.tolist() == expected


def test_class_targets_follow_the_plan_s_order(write: Write) -> None:
    target = {"kind": "classes", "column": "stage", "values": ["late", "early"]}
    table = read_table(write("id,age,stage\na,1,early\nb,1,late\n"))
    targets = encode(table, schema(target, AGE)).targets
    assert targets is not None
    assert targets.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"records.csv, line 3, column 'stage': the value is not one"):
        encode(read_table(write("id,age,stage\na,1,early\nb,1,soon\n")), schema(target, AGE))


def test_a_missing_value_without_indicator_is_zeros(write: Write) -> None:
    columns = [column | {"missing_indicator": False} for column in (AGE, PRESSURE, SEX)]
    table = read_table(write("id,age,pressure,sex,num\na,?,,,0\n"))
    assert encode(table, schema(TARGET, *columns)).features.tolist() == [[0.0] * 6]


def test_queries_need_neither_target_nor_patient(write: Write) -> None:
    data = encoded(write("age,pressure,sex\n50,110,f\n\n60,110,m\n"), targets=False)
    assert data.targets is None
    assert data.patients == [b"line 2", b"line 4"]
    with_nonsense = encoded(write("id,age,pressure,sex,num\np1,50,110,f,unknown\n"), targets=False)
    assert (with_nonsense.targets, with_nonsense.patients) == (None, [b"p1"])


def test_gzip_bom_crlf_quotes_and_order_do_not_matter(write: Write) -> None:
    plain = encoded(write(GOOD)).features.tolist()
    assert encoded(write(gzip.compress(GOOD.encode()))).features.tolist() == plain
    assert encoded(write(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())).features.tolist() == plain
    assert encoded(write(GOOD.replace("p2,75", '"p2","75"'))).features.tolist() == plain
    shuffled = "\n".join(",".join(reversed(line.split(","))) for line in GOOD.splitlines())
    assert encoded(write(shuffled)).features.tolist() == plain


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("id,age,pressure,sex,num\n", "is empty"),
        ("id,age,pressure,sex\np,1,2,f\n", "column 'num' of the plan's schema is missing"),
        ("id,age,pressure,num\np,1,2,0\n", "column 'sex' of the plan's schema is missing"),
        ("id,sex,num\np,f,0\n", "column 'age' and 1 more of the plan's schema is missing"),
        ("age,pressure,sex,num\n1,2,f,0\n", "column 'id' of the plan's schema is missing"),
        ("ID,age,pressure,sex,num\np,1,2,f,0\n", "column 'id' of the plan's schema is missing"),
        ("id,age,pressure,sex,num\np,1,2,f,0\n,1,2,f,0\n", "line 3, column 'id': the patient id is missing"),
        ("id,age,pressure,sex,num\n  ,1,2,f,0\n", "line 2, column 'id': the patient id is missing"),
        ("id,age,pressure,sex,num\np,1,2,f,0\np,old,2,f,0\n", "line 3, column 'age': not a finite number"),
        ("id,age,pressure,sex,num\np,nan,2,f,0\n", "line 2, column 'age': not a finite number"),
        ("id,age,pressure,sex,num\np,inf,2,f,0\n", "line 2, column 'age': not a finite number"),
        ("id,age,pressure,sex,num\np,1e999,2,f,0\n", "line 2, column 'age': not a finite number"),
        ("id,age,pressure,sex,num\np,1_000,2,f,0\n", "line 2, column 'age': not a finite number"),
        ("id,age,pressure,sex,num\np,٣,2,f,0\n", "line 2, column 'age': not a finite number"),
        ('id,age,pressure,sex,num\np,"1,5",2,f,0\n', "line 2, column 'age': not a finite number"),
        ("id,age,pressure,sex,num\np,0x1,2,f,0\n", "line 2, column 'age': not a finite number"),
        ("id,age,pressure,sex,num\np,1,2,x,0\n", "line 2, column 'sex': the value is not one"),
        ("id,age,pressure,sex,num\np,1,2,F,0\n", "line 2, column 'sex': the value is not one"),
        ("id,age,pressure,sex,num\np,1,2,f,\n", "line 2, column 'num': not a finite number"),
        ("id,age,pressure,sex,num\np,1,2,f\n", "line 2: 4 cells where the header names 5 columns"),
        ("id,age,pressure,sex,num\np,1,2,f,0\np,1,2,f,0,9\n", "line 3: 6 cells where the header names 5 columns"),
        ("id,age,age,pressure,sex,num\np,1,1,2,f,0\n", "column 'age' appears twice"),
        ("id, id,age,pressure,sex,num\np,q,1,2,f,0\n", "column 'id' appears twice"),
        ("id;age;pressure;sex;num\np;1;2;f;0\n", "not separated by commas"),
        ("id\tage\tpressure\tsex\tnum\np\t1\t2\tf\t0\n", "not separated by commas"),
        ('id,age,pressure,sex,num\n"p,1,2,f,0\n', "not valid CSV"),
        ('id,age,pressure,sex,num\n"p"x,1,2,f,0\n', "not valid CSV"),
        ("id,age,pressure,sex,num\n" + "p" * 200_000 + ",1,2,f,0\n", "not valid CSV"),
        ("id,age,pressure,sex,num\np,1,2,f,0\np\u00e9,1,2,f,0\n".encode("latin-1"), "line 3: not UTF-8"),
        (GOOD.encode("utf-16"), "not UTF-8"),
        (b"\x1f\x8bgarbage", "damaged gzip"),
        (gzip.compress(GOOD.encode())[:-9], "damaged gzip"),
        (gzip.compress(GOOD.encode())[:12] + b"\xff\xff\xff\xff", "damaged gzip"),
        (b"\x00\x01\x02", "column 'age'|not valid CSV|is empty"),
    ],
)
def test_wrong_tables_are_refused_in_one_clear_sentence(write: Write, content: str | bytes, message: str) -> None:
    path = write(content)
    with pytest.raises(InputError, match=message) as caught:
        encoded(path)
    assert str(path) in caught.value.message


def test_errors_do_not_repeat_a_patient_s_value(write: Write) -> None:
    for content in (
        "id,age,pressure,sex,num\nsecret-id,secret-age,2,f,0\n",
        "id,age,pressure,sex,num\nsecret-id,1,2,secret-sex,0\n",
        "id,age,pressure,sex,num\nsecret-id,1,2,f,secret-num\n",
        "id,age,pressure,sex,num\nsecret-id,1,2,f,0,extra\n",
    ):
        with pytest.raises(InputError) as caught:
            encoded(write(content))
        assert "secret" not in str(caught.value)
    table = read_table(write(GOOD))
    assert "p1" not in repr(table) + repr(encode(table, schema()))


def test_lines_are_those_of_the_file_where_cells_span_lines(write: Write) -> None:
    content = 'id,note,age,pressure,sex,num\np,"two\nlines",1,2,f,0\np,x,bad,2,f,0\n'
    with pytest.raises(InputError, match="line 4, column 'age'"):
        encoded(write(content))


def test_unreadable_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent.csv cannot be read"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path)


@given(
    st.lists(
        st.tuples(*(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) for _ in range(3))),
        min_size=1,
        max_size=6,
    )
)
def test_any_written_table_is_read_back(rows: list[tuple[str, str, str]]) -> None:
    import tempfile

    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["a", "b", "c"])
    writer.writerows(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(text.getvalue().encode())
        table = read_table(path)
    assert [table.columns[name] for name in "abc"] == [[row[i].strip() for row in rows] for i in range(3)]


@given(st.binary(max_size=200))
def test_no_bytes_make_anything_but_an_input_error(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(content)
        try:
            table = read_table(path)
            encode(table, schema())
        except InputError:
            return
    assert isinstance(table, Table)


def test_twenty_thousand_records(write: Write) -> None:
    path = write("id,age,pressure,sex,num\n" + "".join(f"p{i},{i % 90},{i % 200},f,{i % 2}\n" for i in range(20_000)))
    assert len(encoded(path)) == 20_000
