from __future__ import annotations

import json
import sqlite3

import pytest
from small_federation import NAMES, PERSONS, ROUNDS, SmallRun


def test_the_job_completes_without_the_hospital_that_declined(small: SmallRun) -> None:
    assert small.status["state"] == "release ready"
    assert [entry["outcome"] for entry in small.status["history"]] == ["published"] * ROUNDS
    for entry in small.status["history"]:
        assert small.declining not in entry["survivors"]


def test_a_cap_below_the_plan_is_visible_to_the_operator_by_a_generic_reason(small: SmallRun) -> None:
    (entry,) = [silo for silo in small.status["silos"] if silo["name"] == small.declining]
    assert "declined" in entry["state"]
    assert "0.5" not in json.dumps(entry), "the hospital's own cap is nobody else's business"
    assert entry["rounds_joined"] == 0


def test_the_hospital_itself_sees_why_it_declined(small: SmallRun) -> None:
    federation = small.federation
    status = federation.processes.run_json("silo.cli", "status", federation.home(small.declining))
    assert "job_epsilon" in json.dumps(status["declined"])


def test_who_declined_spent_nothing_and_trained_nothing(small: SmallRun) -> None:
    shown = json.loads(small.bundles[small.declining].read_text())
    text = json.dumps(shown)
    assert "RESERVE" not in text
    kept = small.federation.directory / "kept" / small.declining
    assert not list(kept.iterdir())
    assert all(list((small.federation.directory / "kept" / name).iterdir()) for name in NAMES if name != "west")


def test_every_question_is_answered_by_a_hospital_that_trained(small: SmallRun) -> None:
    assert len(small.answers) == sum(1 + person % 2 for person in range(PERSONS["north"]))
    assert {row["silo"] for row in small.answers} <= set(NAMES) - {"west"}
    assert {row["label"] for row in small.answers} <= {"well", "ill"}


def test_the_auditor_verifies_all_four(small: SmallRun) -> None:
    report = small.federation.audit(small.bundles)
    assert [ledger["verified"] for ledger in report["ledgers"]] == [True] * 4


@pytest.mark.parametrize("statement", ["UPDATE leaves SET body = x'00'", "DELETE FROM leaves"])
def test_the_ledger_refuses_changes(small: SmallRun, statement: str) -> None:
    path = small.federation.home("north") / "state" / "ledger.db"
    with sqlite3.connect(path) as database:
        (table,) = [
            name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'") if "lea" in name
        ]
        with pytest.raises(sqlite3.DatabaseError):
            database.execute(statement.replace("leaves", table))
