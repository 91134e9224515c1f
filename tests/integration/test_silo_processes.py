"""Real agents, killed and stopped in the middle of training (design 9)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from working_agents import PATIENCE, kill, leaves, reserved, unresolved, wait, working_agents

from feddrm.demo.federation import Federation
from feddrm.demo.processes import SILO
from privacy.leaves import Abort, AbortReason, Commit, Release, Reserve


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Rounds take several seconds each."""

    def long(plan: str) -> str:
        return plan.replace("local_steps = 2", "local_steps = 1500")

    with working_agents(tmp_path_factory.mktemp("training"), long, rounds=3) as (federation, _):
        yield federation


def test_agents_killed_or_stopped_in_training_lose_nothing_and_the_job_goes_on(training: Federation) -> None:
    wait(lambda: unresolved(training, "north"))
    number = reserved(training, "north")[-1]
    time.sleep(0.3)

    # A second agent on the same directory is kept out while the first one trains.
    training.processes.run(SILO, "serve", training.home("north"), accept=(8,))

    kill(training.silos["north"])
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
