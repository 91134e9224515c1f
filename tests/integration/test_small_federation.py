from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from small_federation import NAMES, PERSONS, ROUNDS, SmallRun

from feddrm.audit.cli import app as audit
from feddrm.cli import invoke
from feddrm.contract.errors import ExitCode
from feddrm.contract.identity import MemberKeys
from privacy.merkle import Tree
from privacy.note import sign_head


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
    assert {silo for row in small.answers for silo in row["silos"]} <= set(NAMES) - {"west"}
    assert {row["label"] for row in small.answers if row["silos"] != ["south"]} <= {"well", "ill"}


def test_only_hospitals_of_one_question_are_asked_together_and_in_the_plans_order(small: SmallRun) -> None:
    """Whether any two are nearly tied is up to this run's noise; what is named together is not."""
    for row in small.answers:
        assert row["silos"] == [name for name in NAMES if name in row["silos"]]
        assert row["missing"] == []
        assert len(row["silos"]) == 1 or (len(row["silos"]) == 2 and "south" not in row["silos"])


def test_a_hospital_with_classes_of_its_own_answers_them_and_no_record_of_it_has_others(small: SmallRun) -> None:
    """The hospital's own command, and the querier's where the router chose it."""
    federation, own = small.federation, {"I", "II", "III"}
    for name in ("north", "south"):
        rows = federation.processes.run_json("silo.cli", "predict", federation.home(name), small.questions)["rows"]
        assert {row["label"] for row in rows} <= (own if name == "south" else {"well", "ill"})
    assert all(row["label"] in own for row in small.answers if row["silos"] == ["south"])


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


def test_the_ledgers_fit_the_coordinator_s_transcript(small: SmallRun) -> None:
    """Signed by the server's round key while it runs; every RELEASE is a sum that t hospitals acknowledged."""
    federation = small.federation
    file = federation.directory / "transcript.json"
    said = federation.processes.run_json(
        "aggregator.cli", "transcript", federation.directory / "coordinator", "-o", file
    )
    assert (said["jobs"], said["rounds"]) == (1, ROUNDS)
    root = federation.operator / "federation.root"
    report = federation.processes.run_json(
        "feddrm.audit.cli", "verify", *small.bundles.values(), "--root", root, "--transcript", file
    )
    trained = [ledger for ledger in report["ledgers"] if ledger["silo"] != small.declining]
    for ledger in trained:
        (check,) = [check for check in ledger["checks"] if check["name"] == "transcript"]
        assert check["status"] == "PASS"
        assert check["message"].startswith(f"{ROUNDS} RELEASE leaves")


def _edited(leaf: str) -> str:
    return json.dumps(json.loads(leaf) | {"update": "0" * 64}, separators=(",", ":"), sort_keys=True)


@pytest.mark.parametrize(
    ("done", "said"),
    [
        ("edited", "edited"),
        ("deleted", "was deleted before leaf"),
        ("reordered", "leaves were reordered: leaves"),
        ("cut", "cut short"),
        ("put back", "an older copy was put back"),
        ("rewritten", "was rewritten or forked"),
    ],
)
def test_what_is_done_to_a_real_export_is_found_and_named(
    small: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], done: str, said: str
) -> None:
    """Through the command line, on bundles of agents that ran, with the peers' heads. The last two are done with the
    hospital's own key."""
    fields = json.loads(small.bundles["north"].read_text(encoding="utf-8"))
    leaves, key = list(fields["leaves"]), MemberKeys.load(small.federation.home("north") / "keys").identity
    middle = next(number for number, leaf in enumerate(leaves) if '"COMMIT"' in leaf)
    if done == "edited":
        leaves[middle] = _edited(leaves[middle])
    elif done == "deleted":
        del leaves[middle]
    elif done == "reordered":
        leaves[middle], leaves[middle + 1] = leaves[middle + 1], leaves[middle]
    elif done == "rewritten":
        leaves[middle] = _edited(leaves[middle])
    else:
        leaves = leaves[:middle]
    if done in ("put back", "rewritten"):
        bodies = [leaf.encode() for leaf in leaves]
        fields["head"] = sign_head(fields["origin"], len(bodies), Tree(bodies).root(), key).decode()
    fields["leaves"] = leaves
    changed = tmp_path / "north.ledger"
    changed.write_text(json.dumps(fields, indent=1, ensure_ascii=False), encoding="utf-8")
    others = [str(path) for name, path in small.bundles.items() if name != "north"]
    root = small.federation.operator / "federation.root"
    capsys.readouterr()
    assert invoke(audit, ["verify", str(changed), *others, "--root", str(root)]) == ExitCode.VERIFICATION
    assert said in capsys.readouterr().out
