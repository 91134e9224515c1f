"""Strictly read tables: what becomes of their cells, and what is refused."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from feature_tables import AGE, GOOD, PRESSURE, SEX, TARGET, encoded, schema
from hypothesis import given
from hypothesis import strategies as st

from feddrm.contract.errors import InputError
from feddrm.features import Table, encode, read_table, training_data

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "records.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


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
        (gzip.compress(GOOD.encode(), mtime=0)[:-9], "damaged gzip"),
        (gzip.compress(GOOD.encode(), mtime=0)[:12] + b"\xff\xff\xff\xff", "damaged gzip"),
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


def test_a_cell_that_spans_lines_is_refused_where_it_begins(write: Write) -> None:
    """A reader that followed the quote would read the next patients' lines as part of this cell."""
    content = 'id,note,age,pressure,sex,num\n\np,"two\nlines",1,2,f,0\np,x,1,2,f,0\n'
    with pytest.raises(InputError, match=r"line 3: not valid CSV.*close every quote on the line"):
        encoded(write(content))


def test_unreadable_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent.csv cannot be read"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path)


@given(
    st.lists(
        st.tuples(*(st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=8) for _ in range(3))),
        min_size=1,
        max_size=6,
    )
)
def test_any_written_table_is_read_back(rows: list[tuple[str, str, str]]) -> None:
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


def test_patient_ids_are_compared_exactly_as_text(write: Write) -> None:
    data = training_data(write("id,age,pressure,sex,num\n007,1,2,f,0\n7,1,2,f,0\n 7 ,1,2,f,0\n7.0,1,2,f,0\n"), schema())
    assert data.patients == [b"007", b"7", b"7", b"7.0"]


def test_where_strict_reading_passes_tolerant_reading_says_the_same(write: Write) -> None:
    strict, tolerant = encoded(write(GOOD)), training_data(write(GOOD), schema())
    assert strict.features.tobytes() == tolerant.features.tobytes()
    assert strict.patients == tolerant.patients
    assert (tolerant.unusable.cells, tolerant.unusable.records) == (0, 0)


def test_a_part_of_the_records_keeps_each_ones_patient_and_target(write: Write) -> None:
    data = encoded(write(GOOD))
    count = len(data)
    assert count > 2
    first = data.part(np.array([count - 1, 0]))
    flags = np.zeros(count, dtype=bool)
    flags[1:] = True
    rest = data.part(flags)
    assert first.features.tolist() == [data.features[-1].tolist(), data.features[0].tolist()]
    assert first.patients == [data.patients[-1], data.patients[0]]
    assert first.known_targets().tolist() == [data.known_targets()[-1], data.known_targets()[0]]
    assert rest.features.tolist() == data.features[1:].tolist()
    assert (rest.patients, rest.known_targets().tolist()) == (data.patients[1:], data.known_targets()[1:].tolist())
    with pytest.raises(IndexError):
        data.part(flags[1:])


def test_records_without_targets_have_parts_but_no_targets(write: Write) -> None:
    data = replace(encoded(write(GOOD)), targets=None).part(np.array([1]))
    assert (len(data), data.targets) == (1, None)
    with pytest.raises(ValueError, match="without targets"):
        data.known_targets()
