"""feddrm-query against an honest coordinator, and people who type something wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from query_world import LABELS, NAMES, ROWS, Run, World, features_of

from feddrm.cli import invoke
from feddrm.contract.errors import (
    ExitCode,
)
from feddrm.method.coarse import Grid, query_bits
from feddrm.method.model import Embedder
from feddrm.query.cli import app
from feddrm.transport.recorder import read_recording


def test_route_names_a_silo_and_nothing_else(run: Run) -> None:
    code, document, _ = run("route")
    assert code == 0
    assert document == {"rows": [{"row": i + 1, "silos": [NAMES[i % 3]]} for i in range(4)]}


def test_ask_gives_each_hospitals_own_answer(world: World, run: Run) -> None:
    code, document, _ = run("ask")
    assert code == 0
    for index, (row, (age, sex)) in enumerate(zip(document["rows"], ROWS, strict=True)):
        prediction = world.predictor(NAMES[index % 3]).predict(features_of(age, sex)[None])
        expected = float(prediction.probabilities[0].max())
        assert row == {
            "row": index + 1,
            "silos": [NAMES[index % 3]],
            "missing": [],
            "label": LABELS[int(prediction.classes[0])],
            "probability": pytest.approx(expected, abs=1e-5),
        }
    assert len(set(world.seen)) == 4


def test_the_coordinator_sees_embeddings_and_ciphertext_only(world: World, run: Run) -> None:
    code, document, _ = run("ask")
    assert code == 0
    traffic = b"".join(record.data for record in read_recording(world.directory / "recording"))
    assert traffic.count(b"condition-") == traffic.count(world.offer.plan.body) * 2 == 2
    assert document["rows"][0]["label"] in LABELS
    for age, sex in ROWS:
        features = features_of(age, sex)
        assert features.tobytes() not in traffic
        assert features[:1].tobytes() not in traffic
        assert str(age).encode() not in traffic


def test_a_route_request_carries_the_release_and_packed_codes(world: World, run: Run) -> None:
    """Byte for byte: nothing else of a patient is in it, and the codes are of the plan's size."""
    code, _, _ = run("route")
    assert code == 0
    features = np.stack([features_of(age, sex) for age, sex in ROWS])
    plan, trunk = world.plan.plan, safetensors.numpy.load(world.trunk)
    codes = Grid.of(plan, trunk).encode(Embedder.from_tensors(plan, trunk).embed(features))
    assert query_bits(plan) == 14
    assert {len(entry) for entry in codes} == {2}
    (request,) = [
        record.data
        for record in read_recording(world.directory / "recording")
        if record.method.endswith("/Route") and record.direction == "received"
    ]
    release = hashlib.sha256(world.offer.statement.body).digest()
    assert request == b"\x0a\x20" + release + b"".join(b"\x12\x02" + entry for entry in codes)


def test_many_rows_keep_their_order(world: World, run: Run) -> None:
    table = world.directory / "many.csv"
    table.write_text("age,sex\n" + "".join(f"{n % 100},f\n" for n in range(300)))
    code, document, _ = run("ask", "--in-flight", "7", file=table)
    assert code == 0
    assert [row["row"] for row in document["rows"]] == list(range(1, 301))
    by_age = {n: row["probability"] for n, row in enumerate(document["rows"]) if row["silos"] == ["hospital-a"]}
    assert len({round(p, 5) for p in by_age.values()}) > 20


def test_rows_go_to_a_private_file(world: World, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    out = world.directory / "out.csv"
    code = invoke(app, ["ask", str(world.directory / "patients.csv"), "--dir", str(world.querier), "--out", str(out)])
    assert capsys.readouterr().out == f"Wrote 4 rows to {out}.\n"
    assert code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    lines = out.read_text().splitlines()
    assert lines[0] == "row,silos,missing,label,probability"
    assert len(lines) == 5
    code, document, _ = run("route", "--out", str(world.directory / "out.json"))
    assert document == {"out": str(world.directory / "out.json"), "rows_written": 4}
    assert len(json.loads((world.directory / "out.json").read_text())["rows"]) == 4


def test_the_trunk_is_fetched_once_and_again_when_damaged(world: World, run: Run) -> None:
    assert run("route")[0] == run("route")[0] == 0
    assert world.fetches == 1
    (trunk,) = (world.querier / "state" / "releases").glob("*/trunk.safetensors")
    trunk.write_bytes(trunk.read_bytes()[:-1] + b"!")
    assert run("route")[0] == 0
    assert world.fetches == 2
    assert trunk.read_bytes() == world.trunk


def test_a_part_of_a_trunk_longer_than_the_whole_heals(world: World, run: Run) -> None:
    assert run("route")[0] == 0
    (trunk,) = (world.querier / "state" / "releases").glob("*/trunk.safetensors")
    trunk.rename(trunk.with_name("trunk.safetensors.part"))
    with trunk.with_name("trunk.safetensors.part").open("ab") as part:
        part.write(b"more")
    assert run("route")[0] == 0
    assert trunk.read_bytes() == world.trunk


# Wrong input.


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sex\nf\n", "'age'"),
        ("age,sex\n", "no records"),
        ("age,sex\n1,x\n", "line 2, column 'sex'"),
        ("age,sex\nabc,f\n", "line 2, column 'age'"),
    ],
)
def test_a_wrong_table_is_one_sentence(world: World, run: Run, text: str, sentence: str) -> None:
    table = world.directory / "wrong.csv"
    table.write_text(text)
    code, document, error = run("route", file=table)
    assert code == ExitCode.INPUT
    assert sentence in error
    assert "Traceback" not in error
    assert document["error"]["kind"] == "input"


def test_a_missing_table_is_found_before_anybody_is_called(run: Run, tmp_path: Path) -> None:
    code, _, error = run("route", file=tmp_path / "nothing.csv")
    assert code == ExitCode.INPUT
    assert "nothing.csv" in error


def test_a_directory_that_has_not_joined(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    table = world.directory / "t.csv"
    table.write_text("age,sex\n1,f\n")
    assert invoke(app, ["ask", str(table), "--dir", str(tmp_path / "empty")]) == ExitCode.INPUT
    assert "holds no keys" in capsys.readouterr().err
