"""Real agents, killed and stopped in the middle of training (design 9)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_federation import NAMES, plan_text, write_records

from feddrm.contract.home import load_silo_home
from feddrm.demo.federation import Federation, Hospital
from feddrm.demo.processes import SILO, Processes
from privacy.leaves import Abort, AbortReason, Commit, Release, Reserve
from privacy.ledger import Ledger

PATIENCE = 120.0


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Four agents in a job whose rounds take several seconds each."""
    directory = tmp_path_factory.mktemp("training")
    for name in NAMES:
        write_records(directory / f"{name}.csv", name)
    with Processes(directory / "logs") as processes:
        hospitals = [Hospital(name, directory / f"{name}.csv", "person", 70, 50.0) for name in NAMES]
        federation = Federation(directory, processes, "small", hospitals)
        federation.found()
        version = federation.enrol()
        federation.start_coordinator()
        for name in NAMES:
            federation.start_silo(name)
        plan = plan_text(version, rounds=3, noise_multiplier=200.0).replace("local_steps = 2", "local_steps = 1500")
        federation.start_job(plan)
        yield federation


def leaves(federation: Federation, name: str) -> list[object]:
    """What a silo's ledger holds, read and verified beside its agent."""
    home = load_silo_home(federation.home(name))
    path = federation.home(name) / "state" / "ledger.db"
    if not path.exists():
        return []
    ledger = Ledger.read(path, f"feddrm/small/{name}", home.keys.identity_public)
    return [record.leaf for record in ledger.leaves()]


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def reserved(federation: Federation, name: str) -> list[int]:
    return [leaf.round for leaf in leaves(federation, name) if isinstance(leaf, Reserve)]


def unresolved(federation: Federation, name: str) -> bool:
    found = leaves(federation, name)
    return bool(found) and isinstance(found[-1], Reserve)


def test_agents_killed_or_stopped_in_training_lose_nothing_and_the_job_goes_on(training: Federation) -> None:
    wait(lambda: unresolved(training, "north"))
    number = reserved(training, "north")[-1]
    time.sleep(0.3)

    # A second agent on the same directory is kept out while the first one trains.
    training.processes.run(SILO, "serve", training.home("north"), accept=(8,))

    agent = training.silos["north"].process
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    found = leaves(training, "north")
    assert isinstance(found[-1], Reserve)
    assert found[-1].round == number

    training.start_silo("north")
    wait(lambda: any(isinstance(leaf, Abort) and leaf.round == number for leaf in leaves(training, "north")))
    found = leaves(training, "north")
    assert [leaf.reason for leaf in found if isinstance(leaf, Abort)] == [AbortReason.CRASHED]
    assert reserved(training, "north").count(number) == 1
    assert not any(isinstance(leaf, Commit | Release) and leaf.round == number for leaf in found)

    # It replays what it missed and trains again.
    wait(lambda: max(reserved(training, "north")) > number)
    wait(lambda: unresolved(training, "north"))
    status = training.processes.run_json(SILO, "status", training.home("north"))
    assert status["running"]
    assert status["budget"]["job_epsilon"] > 0

    # SIGTERM in the middle of a round: gone at once, and the round is not trained to its end.
    stopped = training.processes.run_json(SILO, "stop", training.home("north"))
    assert stopped["stopped"]
    assert training.silos["north"].process.wait(timeout=PATIENCE) == 0
    assert isinstance(leaves(training, "north")[-1], Reserve | Abort)


def test_what_a_ledger_export_holds_is_verified_and_has_no_key(training: Federation, tmp_path: Path) -> None:
    out = tmp_path / "north.bundle"
    training.processes.run(SILO, "ledger", "export", training.home("north"), "-o", out)
    text = out.read_text()
    assert len(json.loads(text)["leaves"]) == len(leaves(training, "north"))
    for key in ("identity.key", "tls.key", "sealing.key"):
        body = (training.home("north") / "keys" / key).read_text().splitlines()[1]
        assert body not in text
