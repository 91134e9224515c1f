"""What people get wrong gets one clear sentence and the right exit code, from the real commands; nothing is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_federation import SmallRun, plan_text

SILO, AGGREGATOR, QUERY, AUDIT, DEMO = (
    "silo.cli",
    "aggregator.cli",
    "feddrm.query.cli",
    "feddrm.audit.cli",
    "feddrm.demo.cli",
)


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    errors: str


def run(module: str, *arguments: str | Path, **environment: str) -> Outcome:
    result = subprocess.run(
        [sys.executable, "-P", "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return Outcome(result.returncode, result.stdout, result.stderr)


def assert_refused(outcome: Outcome, code: int, *words: str) -> None:
    text = outcome.errors.strip()
    assert outcome.code == code, text + outcome.output
    assert "Traceback" not in text + outcome.output
    flat = re.sub(r"\s+", " ", text)
    for word in words:
        assert word in flat, flat
    assert 0 < len(text) < 1200


@pytest.fixture
def plan_file(small: SmallRun, tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(plan_text(1))
    return path


def change(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def check_data(small: SmallRun, table: Path) -> Outcome:
    plan = small.federation.directory / "plan.signed"
    return run(SILO, "data", "check", small.federation.home("north"), table, "--plan", plan)


def test_a_missing_column(small: SmallRun, tmp_path: Path) -> None:
    table = tmp_path / "records.csv"
    table.write_text("person,word,outcome\na,red,1\n")
    assert_refused(check_data(small, table), 3, "records.csv", "marker")


def test_an_empty_table(small: SmallRun, tmp_path: Path) -> None:
    table = tmp_path / "records.csv"
    table.write_text("person,marker,word,outcome\n")
    assert_refused(check_data(small, table), 3, "records.csv")
    table.write_text("")
    assert_refused(check_data(small, table), 3, "records.csv")


def test_a_missing_patient_id(small: SmallRun, tmp_path: Path) -> None:
    table = tmp_path / "records.csv"
    table.write_text("person,marker,word,outcome\na,1,red,1\n,2,red,0\n")
    assert_refused(check_data(small, table), 3, "records.csv", "line 3", "person")


def test_an_unknown_plan_key(plan_file: Path) -> None:
    change(plan_file, "rounds = 2", "rounds = 2\nnoise_multiplyer = 0.1")
    assert_refused(run(AGGREGATOR, "plan", "check", plan_file), 3, "plan.toml", "training.noise_multiplyer")


def test_a_plan_whose_sums_would_wrap(plan_file: Path) -> None:
    change(plan_file, "fraction_bits = 20", "fraction_bits = 28")
    assert_refused(run(AGGREGATOR, "plan", "check", plan_file), 3, "plan.toml", "wrap")


def test_a_plan_that_is_no_toml(plan_file: Path) -> None:
    change(plan_file, "[model]", "[model")
    assert_refused(run(AGGREGATOR, "plan", "check", plan_file), 3, "plan.toml", "line")


def test_a_plan_file_that_is_not_there(tmp_path: Path) -> None:
    assert_refused(run(AGGREGATOR, "plan", "check", tmp_path / "nowhere.toml"), 3, "nowhere.toml")


def test_a_second_agent_on_a_silo_directory(small: SmallRun) -> None:
    assert_refused(run(SILO, "serve", small.federation.home("north")), 8, "north")


def test_a_second_coordinator_on_a_directory(small: SmallRun) -> None:
    assert_refused(run(AGGREGATOR, "serve", small.federation.coordinator), 8, str(small.federation.coordinator))


def test_a_second_coordinator_on_the_port(small: SmallRun, tmp_path: Path) -> None:
    address = small.federation.address
    run(AGGREGATOR, "init", tmp_path / "other", "--name", "other", "--address", address)
    shutil.move(tmp_path / "other" / "operator", tmp_path / "operator")
    assert_refused(run(AGGREGATOR, "serve", tmp_path / "other" / "server"), 8, address.rsplit(":", 1)[1])


def test_a_coordinator_beside_its_operators_key(tmp_path: Path) -> None:
    run(AGGREGATOR, "init", tmp_path / "new", "--name", "new", "--address", "127.0.0.1:18002")
    assert_refused(run(AGGREGATOR, "serve", tmp_path / "new" / "server"), 4, "operator")


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_ledger_with_a_changed_byte(small: SmallRun, tmp_path: Path, position: float) -> None:
    bundle = tmp_path / "north.ledger"
    data = bytearray(small.bundles["north"].read_bytes())
    place = int(len(data) * position)
    while not chr(data[place]).isalnum():
        place += 1
    data[place] = ord("x") if data[place] != ord("x") else ord("y")
    bundle.write_bytes(data)
    root = small.federation.operator / "federation.root"
    outcome = run(AUDIT, "verify", bundle, "--root", root)
    assert outcome.code in (3, 6), outcome
    assert "Traceback" not in outcome.errors + outcome.output
    assert "north" in outcome.errors + outcome.output


def test_an_honest_ledger_passes_where_the_changed_one_fails(small: SmallRun) -> None:
    root = small.federation.operator / "federation.root"
    outcome = run(AUDIT, "verify", *small.bundles.values(), "--root", root)
    assert outcome.code == 0, outcome.errors + outcome.output


def test_a_ledger_of_another_federation(small: SmallRun, tmp_path: Path) -> None:
    made = run(AGGREGATOR, "init", tmp_path / "other", "--name", "small", "--address", "127.0.0.1:18003")
    assert made.code == 0
    root = tmp_path / "other" / "operator" / "federation.root"
    outcome = run(AUDIT, "verify", small.bundles["north"], "--root", root)
    assert outcome.code == 6, outcome


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds neither torch nor opacus: what a base install sees."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "def hidden(name, path=None, target=None):\n"
        "    return None if name.split('.')[0] in ('torch', 'opacus') else find(name, path, target)\n"
        "PathFinder.find_spec = hidden\n"
    )
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))}


def test_a_missing_extra_names_the_pip_line(small: SmallRun, tmp_path: Path, without_torch: dict[str, str]) -> None:
    home = small.federation.home("north")
    assert_refused(run(SILO, "serve", home, **without_torch), 3, "pip install 'feddrm[silo]'")
    demo = run(DEMO, "demo", "--dir", tmp_path / "demo", **without_torch)
    assert_refused(demo, 3, "pip install 'feddrm[silo]'")
    asked = run(QUERY, "route", small.questions, "--dir", small.federation.home("clinic"), **without_torch)
    assert_refused(asked, 3, "pip install 'feddrm[query]'")


def test_without_the_extra_coordinator_and_auditor_work(small: SmallRun, without_torch: dict[str, str]) -> None:
    root = small.federation.operator / "federation.root"
    assert run(AUDIT, "verify", small.bundles["north"], "--root", root, **without_torch).code == 0
    assert run(AGGREGATOR, "status", "--operator", small.federation.operator, **without_torch).code == 0


def test_errors_are_objects_with_format_json(plan_file: Path) -> None:
    change(plan_file, "rounds = 2", "rounds = -2")
    outcome = run(AGGREGATOR, "plan", "check", plan_file, "--format", "json")
    assert outcome.code == 3
    assert json.loads(outcome.output)["error"]["code"] == 3


def test_a_coordinator_that_is_not_there(small: SmallRun, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run(AGGREGATOR, "init", tmp_path / "gone", "--name", "gone", "--address", f"127.0.0.1:{port}")
    outcome = run(AGGREGATOR, "status", "--operator", tmp_path / "gone" / "operator")
    assert_refused(outcome, 7, str(port))


def test_preflight_names_a_remedy_for_each_failure(small: SmallRun, tmp_path: Path) -> None:
    home = tmp_path / "copy"
    shutil.copytree(small.federation.home("south"), home, ignore=shutil.ignore_patterns("*.pid", "*.lock"))
    (home / "local" / "data.toml").write_text('records = "nowhere.csv"\npatient = "person"\npublic_size = 70\n')
    outcome = run(SILO, "preflight", home)
    assert outcome.code == 3, outcome
    assert "nowhere.csv" in outcome.output + outcome.errors
    assert "Traceback" not in outcome.output + outcome.errors


def test_preflight_says_that_a_policy_refuses_everything(small: SmallRun, tmp_path: Path) -> None:
    home = tmp_path / "copy"
    shutil.copytree(small.federation.home("south"), home, ignore=shutil.ignore_patterns("*.pid", "*.lock"))
    operators = re.search(r"operators = .*", (home / "local" / "policy.toml").read_text())
    assert operators
    (home / "local" / "policy.toml").write_text(f"[jobs]\n{operators[0]}\n")
    outcome = run(SILO, "preflight", home)
    assert outcome.code == 3, outcome
    assert "refuses every job" in outcome.output + outcome.errors


def test_preflight_holds_a_plan_against_the_pinned_roster(small: SmallRun, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(7))
    outcome = run(SILO, "preflight", small.federation.home("south"), "--plan", plan)
    assert outcome.code == 3, outcome
    assert "roster version 7" in outcome.output + outcome.errors


@pytest.mark.parametrize("release", ["1234", "zzzz", "../x", "0123456789abcdef"])
def test_a_release_that_is_none(small: SmallRun, release: str) -> None:
    operator = small.federation.operator
    assert_refused(run(AGGREGATOR, "release", "publish", release, "--operator", operator), 3, "elease")


def test_preflight_passes_for_a_running_hospital(small: SmallRun) -> None:
    outcome = run(SILO, "preflight", small.federation.home("south"))
    assert outcome.code == 0, outcome.output + outcome.errors


@pytest.mark.parametrize("module", [SILO, AGGREGATOR, QUERY, AUDIT, DEMO])
def test_help_teaches(module: str) -> None:
    outcome = run(module, "--help")
    assert outcome.code == 0
    assert "--help" in outcome.output


@pytest.mark.parametrize("module", [SILO, AGGREGATOR, QUERY, AUDIT, DEMO])
def test_an_unknown_command_is_a_usage_error(module: str) -> None:
    outcome = run(module, "nonsense")
    assert outcome.code == 2
    assert "Traceback" not in outcome.errors
