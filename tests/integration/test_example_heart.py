"""The walk-through of examples/heart: the very commands of its README, in one shell, on the real data."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from feddrm.audit.cli import app as audit
from feddrm.cli import invoke
from feddrm.contract.errors import ExitCode
from feddrm.contract.plan import Plan
from feddrm.contract.release import read_bundle, required_signatures
from feddrm.demo.federation import free_port

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "heart"
DATA = ROOT.parent / "shared" / "data" / "heart_uci"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
pytestmark = [
    pytest.mark.demo,
    pytest.mark.skipif(
        not all((DATA / f"processed.{name}.data").exists() for name in HOSPITALS),
        reason=f"the four files of the UCI Heart Disease data are not in {DATA}; examples/heart/README.md says where "
        "they come from",
    ),
]


def commands() -> str:
    """All commands of the README's blocks, in order, for a shell that stops at the first error."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    return "\n".join(["set -euo pipefail", *blocks])


@dataclass(frozen=True)
class Walk:
    """What the walk-through printed, and the directory that it left."""

    printed: str
    directory: Path


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    checkout = tmp_path_factory.mktemp("checkout")
    (checkout / "examples").symlink_to(ROOT / "examples")
    environment = {
        **os.environ,
        # The command lines of this very installation come first, `python` included.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HEART": str(DATA),
        "PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    shell = subprocess.Popen(
        ["bash", "-c", commands()],  # noqa: S607 - whichever bash a reader has
        cwd=checkout,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=280)
        logs = "".join(f"\n{log.name}: {log.read_text()[-800:]}" for log in checkout.glob("heart/*.log"))
        assert shell.returncode == 0, printed[-4000:] + logs
        yield Walk(printed, checkout / "heart")
    finally:
        # Whatever the shell left running is in its session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_commands_of_the_readme_run_as_they_stand(walk: Walk) -> None:
    for said in ("is in service, signed by 4 silos", "Wrote 276 rows", "Verified: 4 ledgers."):
        assert said in walk.printed
    assert (walk.directory / "answers.csv").stat().st_mode & 0o777 == 0o600


def test_the_clinic_s_patients_are_served(walk: Walk) -> None:
    """Over 20 splits the router is right for 0.85 to 0.90 of them; a run draws its own noise and less is a fault."""
    answers, truth = rows(walk.directory / "answers.csv"), rows(walk.directory / "data" / "truth.csv")
    home = sum(a["silos"] == t["hospital"] for a, t in zip(answers, truth, strict=True)) / len(truth)
    right = sum(a["label"] == t["label"] for a, t in zip(answers, truth, strict=True)) / len(truth)
    assert f"came from: {home:.3f}" in walk.printed
    assert f"routed to: {right:.3f}" in walk.printed
    assert home >= 0.75
    assert right >= 0.75 > Counter(t["label"] for t in truth).most_common(1)[0][1] / len(truth)


def test_no_patient_of_the_clinic_is_in_a_hospital(walk: Walk) -> None:
    columns = list(rows(walk.directory / "data" / "patients.csv")[0])
    assert not {"num", "patient"} & set(columns)
    published = sum(len(list(csv.reader((DATA / f"processed.{name}.data").open()))) for name in HOSPITALS)
    trained = sum(len(rows(walk.directory / name / "local" / "records.csv")) for name in HOSPITALS)
    assert trained + 276 == published == 920


def test_four_ledgers_stay_below_epsilon_8_by_the_auditor(walk: Walk, capsys: pytest.CaptureFixture[str]) -> None:
    ledgers = [str(walk.directory / f"{name}.ledger") for name in HOSPITALS]
    root = walk.directory / "operator" / "federation.root"
    capsys.readouterr()
    assert invoke(audit, ["verify", *ledgers, "--root", str(root), "--format", "json"]) == ExitCode.DONE
    report = json.loads(capsys.readouterr().out)
    for ledger in report["ledgers"]:
        (job,) = ledger["jobs"]
        assert 7 < job["epsilon_spent"] <= job["epsilon_claimed"] < 8
        assert job["delta"] == 1e-4


def test_a_linear_model_is_released_with_every_hospital_s_signature(walk: Walk) -> None:
    (folder,) = (walk.directory / "coordinator" / "server" / "releases").iterdir()
    bundle = read_bundle(folder)
    plan = Plan.model_validate_json(bundle.plan.body)
    assert (plan.model.kind, plan.training.rounds) == ("linear", 0)
    assert len(bundle.statement.signatures) == required_signatures(plan) == 4 > plan.secure_aggregation.threshold
    card = (folder / "card.md").read_text()
    assert "There is no trunk" in card
    assert "signed by 4 of 4" in card.lower()
