"""Files of images: what a hospital can write, what it is told, and that no record decides whether one is read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feddrm.contract.errors import InputError
from feddrm.contract.schema import Schema
from feddrm.features import encode, read_table, training_data

IMAGE: dict[str, Any] = {"name": "scan", "channels": 2, "height": 3, "width": 4, "lower": 0, "upper": 255}
TARGET = {"kind": "classes", "column": "finding", "values": ["0", "1"]}


def schema(**changes: Any) -> Schema:
    return Schema.model_validate({"patient": "person", "target": TARGET, "image": IMAGE | changes})


def arrays(count: int = 5, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "scan": rng.integers(0, 256, (count, 2, 3, 4), dtype=np.uint8),
        "person": np.array([f"p{index % 3}" for index in range(count)]),
        "finding": np.arange(count) % 2,
    } | changes


def saved(path: Path, content: dict[str, Any]) -> Path:
    file = path / "scans.npz"
    np.savez_compressed(file, **content)
    return file


def test_images_become_rows_in_minus_one_to_one(tmp_path: Path) -> None:
    content = arrays()
    content["scan"][0, 0, 0, :2] = [0, 255]
    data = encode(read_table(saved(tmp_path, content)), schema())
    assert data.features.dtype == np.float32
    assert data.features.shape == (5, 24)
    assert data.features[0, :2].tolist() == [-1.0, 1.0]
    assert np.allclose(data.features, content["scan"].reshape(5, 24) / 127.5 - 1)
    assert data.targets is not None
    assert data.targets.tolist() == [0, 1, 0, 1, 0]
    assert data.patients == [b"p0", b"p1", b"p2", b"p0", b"p1"]


def test_values_beyond_the_public_range_are_clipped_to_it(tmp_path: Path) -> None:
    content = arrays(scan=np.linspace(-1e30, 1e30, 120).reshape(5, 2, 3, 4))
    features = encode(read_table(saved(tmp_path, content)), schema()).features
    assert features.min() == -1.0
    assert features.max() == 1.0


def test_one_channel_needs_no_dimension_of_its_own(tmp_path: Path) -> None:
    content = arrays(scan=np.zeros((5, 3, 4)))
    assert encode(read_table(saved(tmp_path, content)), schema(channels=1)).features.shape == (5, 12)


def test_bytes_numbers_and_text_are_ids_alike(tmp_path: Path) -> None:
    for people in (np.array([b"7", b"8"]), np.array(["7", " 8 "]), np.array([7, 8], dtype=np.int16)):
        data = encode(read_table(saved(tmp_path, arrays(2, person=people))), schema())
        assert data.patients == [b"7", b"8"]


def test_queries_need_neither_patients_nor_targets(tmp_path: Path) -> None:
    content = arrays(2)
    file = saved(tmp_path, {"scan": content["scan"]})
    data = encode(read_table(file), schema(), targets=False)
    assert data.targets is None
    assert len(data) == len(set(data.patients)) == 2


@pytest.mark.parametrize(
    ("content", "said", "remedy"),
    [
        (arrays(scan=np.zeros((5, 3, 4, 2))), "images of shape (3, 4, 2), where the plan's schema.image has (2, 3, 4)",
         "numpy.moveaxis"),
        (arrays(scan=np.zeros((5, 2, 3, 5))), "images of shape (2, 3, 5)", "Resize or crop"),
        (arrays(scan=np.zeros((4, 2, 3, 4))), "one entry for each record", "same first dimension"),
        (arrays(scan=np.full((5, 2, 3, 4), "x")), "its type <U1 is none of numbers", "integers or floats"),
        (arrays(scan=np.full((5, 2, 3, 4), np.nan)), "record 1, column 'scan': a value of the image", "leave it out"),
        ({"person": np.array(["a"]), "finding": np.array([0])}, "array 'scan' of the plan's schema.image is missing",
         "savez_compressed"),
        ({"scan": np.zeros((1, 2, 3, 4)), "finding": np.array([0])}, "column 'person' of the plan's schema is missing",
         "compare"),
        (arrays(person=np.array(["a", {}, 1, 2, 3], dtype=object)), "an array of Python objects", "not object"),
        (arrays(person=np.zeros(5, dtype=complex)), "array 'person': its type complex128 is neither", "as text"),
        (arrays(person=np.array([b"\xff", b"a", b"a", b"a", b"a"])), "array 'person': not UTF-8", "as text"),
        (arrays(person=np.array(["", "a", "a", "a", "a"])), "record 1, column 'person': the patient id is missing", ""),
        (arrays(person=np.array([np.nan, 1, 1, 1, 1])), "record 1, column 'person': the patient id is missing", ""),
        (arrays(finding=np.array([0, 1, 2, 0, 0])), "record 3, column 'finding': the value is not one of", ""),
        (arrays(size=np.float64(3)), "one entry for each record", "leave out"),
        ({}, "one entry for each record: there is none", ""),
        (arrays(0), "has no records", ""),
    ],
)  # fmt: skip
def test_people_are_told_file_array_and_remedy(tmp_path: Path, content: dict[str, Any], said: str, remedy: str) -> None:
    file = saved(tmp_path, content)
    with pytest.raises(InputError) as caught:
        encode(read_table(file), schema())
    assert str(file) in caught.value.message
    assert said in caught.value.message
    assert remedy in caught.value.remedy


def test_a_table_is_no_file_of_images_and_the_other_way_round(tmp_path: Path) -> None:
    table = tmp_path / "records.csv"
    table.write_text("person,finding\np1,0\n")
    with pytest.raises(InputError, match=r"array 'scan' of the plan's schema\.image is missing"):
        encode(read_table(table), schema())
    # Columns of numbers may lie in a file of arrays, too.
    columns = [{"kind": "numeric", "name": "age", "lower": 0, "upper": 100, "missing_indicator": False}]
    plain = Schema.model_validate({"patient": "person", "target": TARGET, "columns": columns})
    data = encode(read_table(saved(tmp_path, arrays(age=np.array([0, 25, 50.0, 100, 120])))), plain)
    assert data.features[:, 0].tolist() == [-1.0, -0.5, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("damage", ["cut", "bent", "named twice"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    file = saved(tmp_path, arrays())
    raw = bytearray(file.read_bytes())
    if damage == "cut":
        raw = raw[: len(raw) // 2]
    elif damage == "bent":
        raw[len(raw) // 3] ^= 0xFF
    else:
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as archive:
            archive.writestr("scan.npy", b"\x93NUMPY\x01\x00")
        raw = bytearray(sink.getvalue())
    file.write_bytes(raw)
    with pytest.raises(InputError, match="no file of arrays"):
        read_table(file)


@settings(max_examples=60)
@given(
    pixels=hnp.arrays(np.float32, (4, 1, 2, 2), elements=st.floats(width=32)),
    people=st.lists(st.binary(max_size=4), min_size=4, max_size=4),
    findings=st.lists(st.sampled_from(["0", "1", "2", "", "nan"]), min_size=4, max_size=4),
)
def test_nothing_about_a_record_decides_whether_training_reads_it(
    tmp_path_factory: pytest.TempPathFactory, pixels: Any, people: list[bytes], findings: list[str]
) -> None:
    file = tmp_path_factory.mktemp("images") / "scans.npz"
    np.savez(file, scan=pixels, person=np.array(people, dtype="S4"), finding=np.array(findings, dtype="U4"))
    wanted = schema(channels=1, height=2, width=2, lower=-1, upper=1)
    data = training_data(file, wanted)
    assert np.isfinite(data.features).all()
    assert np.abs(data.features).max(initial=0) <= 1
    usable = [_is_id(person) and finding in ("0", "1") for person, finding in zip(people, findings, strict=True)]
    assert len(data) == sum(usable)
    # What becomes of a record depends on that record alone.
    np.savez(file, scan=pixels[1:], person=np.array(people[1:], dtype="S4"), finding=np.array(findings[1:], dtype="U4"))
    rest = training_data(file, wanted)
    assert np.array_equal(rest.features, data.features[usable[0] :])
    assert rest.patients == data.patients[usable[0] :]


def _is_id(cell: bytes) -> bool:
    try:
        return bool(cell.rstrip(b"\0").decode().strip())
    except UnicodeDecodeError:
        return False
