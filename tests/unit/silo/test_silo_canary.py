"""`feddrm-silo canary` and `feddrm-audit canary`, one after the other, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the silo extra is not installed")

from aggregator.homes import load_operator_home
from bench.house import House, build, plan_of
from feddrm.audit.cli import app as audit_app
from feddrm.cli import invoke
from feddrm.contract.authority import Address
from feddrm.contract.signed_plan import sign_plan
from silo.cli import app as silo_app

SEED = "ab" * 32
Command = Callable[..., tuple[int, dict]]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    address = Address.parse("localhost:1")
    return build(tmp_path_factory.mktemp("house"), ("a", "b", "c"), address, address)


@pytest.fixture
def plan(house: House, tmp_path: Path) -> Path:
    """A plan as a signed file has it; what it trains is too noisy for canaries to be heard."""
    path = tmp_path / "plan.signed"
    made = plan_of(house, 1000, 4)
    path.write_text(sign_plan(made, load_operator_home(house.operator).key).signed.to_json())
    return path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(app: object, *arguments: object) -> tuple[int, dict]:
        code = invoke(app, [str(argument) for argument in (*arguments, "--format", "json")])
        return code, json.loads(capsys.readouterr().out)

    return call


def test_a_hospital_audits_its_trainer_and_an_auditor_judges(
    house: House, plan: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "canary.json"
    before = {path: path.stat().st_mtime_ns for path in house.home("a").rglob("*")}
    code, said = command(silo_app, "canary", house.home("a"), "--plan", plan, "-o", out, "--seed", SEED)
    assert (code, said["seed"]) == (0, SEED)
    # Nothing of the hospital was touched: no ledger was opened, and no record, of which there is none, was missed.
    assert {path: path.stat().st_mtime_ns for path in house.home("a").rglob("*")} == before
    assert len(out.read_bytes()) < 40_000

    code, said = command(audit_app, "canary", out, "--seed", SEED)
    (judged,) = said["runs"]
    assert code == 0
    assert (judged["passed"], judged["guessed"], judged["seed_is_the_auditors"]) == (True, 500, True)
    assert judged["epsilon_above"] <= judged["claimed"] == judged["recomputed"]

    code, said = command(audit_app, "canary", out, "--seed", "cd" * 32)
    assert (code, said["runs"][0]["passed"]) == (6, False)

    root = house.operator / "federation.root"
    code, said = command(audit_app, "canary", out, "--seed", SEED, "--plan", plan, "--root", root)
    assert (code, said["runs"][0]["terms_are_the_plans"], said["runs"][0]["departures"]) == (0, True, [])

    raw = json.loads(out.read_text())
    lowered = tmp_path / "lowered.json"
    lowered.write_text(out.read_text().replace(f'"claimed":{raw["claimed"]}', '"claimed":0.001'))
    code, said = command(audit_app, "canary", out, lowered)
    assert (code, [run["passed"] for run in said["runs"]]) == (6, [True, False])


def test_what_cannot_be_audited_is_refused(house: House, plan: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "canary.json"
    base = ("canary", house.home("a"), "--plan", plan, "-o", out)
    assert command(silo_app, *base, "--seed", "ab")[0] == 2
    assert command(silo_app, *base, "--rounds", 0)[0] == 3
    assert command(silo_app, *base, "--rounds", 5)[0] == 3
    out.write_text("{}")
    assert command(silo_app, *base)[0] == 3
    assert command(audit_app, "canary", out)[0] == 6
    assert command(audit_app, "canary", out, "--seed", "zz")[0] == 2
