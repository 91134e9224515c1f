"""A hospital's own classes at the querier: its answers are read by its target, never by another's."""

from __future__ import annotations

import json

import pytest
from query_world import NAMES, World, a_plan

from feddrm.cli import invoke
from feddrm.query.cli import app

STAGES = ("I", "II", "III")


@pytest.fixture
def own(world: World) -> World:
    """The second of three hospitals answers three classes."""
    target = {"kind": "classes", "column": "stage", "values": list(STAGES)}
    world.make_release(a_plan(own_targets={NAMES[1]: target}))
    return world


def test_an_answer_is_read_by_the_classes_of_who_gave_it(own: World, capsys: pytest.CaptureFixture[str]) -> None:
    table = own.directory / "patients.csv"
    table.write_text("age,sex\n31,f\n64,m\n50,f\n12,m\n")
    assert invoke(app, ["ask", str(table), "--dir", str(own.querier), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    by = {silo: row["label"] for row in rows for silo in row["silos"]}
    assert set(by) == set(NAMES)
    assert by[NAMES[1]] in STAGES
    assert not {by[NAMES[0]], by[NAMES[2]]} & set(STAGES)


def test_two_classes_of_a_hospital_that_has_three_are_refused(own: World, capsys: pytest.CaptureFixture[str]) -> None:
    honest = own.predictor
    own.predictor = lambda silo: honest(NAMES[0] if silo == NAMES[1] else silo)  # type: ignore[method-assign]
    table = own.directory / "patients.csv"
    table.write_text("age,sex\n31,f\n64,m\n")
    assert invoke(app, ["ask", str(table), "--dir", str(own.querier), "--in-flight", "1"]) == 6
    assert f"{NAMES[1]} answered with 2 classes; by the plan it has 3" in capsys.readouterr().err
