"""A job whose weights are held where they stood at `anchor_round`: two agents and the coordinator are killed around it.

What consolidation keeps is no message: every side works it out from the published sums, and again after a restart. The
tests work it out a third time, in Python's own integers, and look for it in what the run left.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from small_federation import NAMES
from working_agents import kill, leaves, reserved, unresolved, wait, working_agents

from aggregator import checkpoint
from aggregator.blobs import SUMS, Blobs
from aggregator.homes import load_server_home
from aggregator.job import Job
from feddrm.demo.federation import Federation
from feddrm.method.layout import initial_model
from feddrm.method.update import apply, model_hash
from privacy.leaves import Release, Reserve
from secagg.vector import decode_sum
from silo.state import State

Model = npt.NDArray[np.int64]

ROUNDS, ANCHOR = 6, 2
# Steps that add up to a small part of the clip, nearly all of it noise, and the strongest pull that a plan may have.
CHANGES = {
    "hidden = [8]": "hidden = [16]\npersonal = []",
    "local_steps = 2": "local_steps = 600",
    "learning_rate = 0.5": "learning_rate = 0.002\n\n"
    f'[training.ewc]\nstrength = 50.0\nmemory = 2\nanchor_round = {ANCHOR}\ntensors = ["trunk.*"]',
}


@dataclass(frozen=True)
class Run:
    """What a job left that was disturbed and came to its end. `back`: the first round that each killed agent was
    charged for in its new life."""

    federation: Federation
    job: Job
    back: dict[str, int]
    kept: Path


def plan_of(text: str) -> str:
    for old, new in CHANGES.items():
        assert old in text
        text = text.replace(old, new)
    return text


def killed_and_back(federation: Federation, name: str, number: int, *options: str | Path) -> int:
    """Kill an agent in its training of this round or a later one; returns the first that it trains in its new life."""
    wait(lambda: unresolved(federation, name) and reserved(federation, name)[-1] >= number)
    last = reserved(federation, name)[-1]
    kill(federation.silos[name])
    federation.start_silo(name, *options)
    wait(lambda: reserved(federation, name)[-1] > last)
    return reserved(federation, name)[-1]


def job_of(federation: Federation) -> Job:
    """The coordinator's newest checkpoint."""
    home = load_server_home(federation.coordinator)
    path = federation.coordinator / "state.sqlite"
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        (state,) = database.execute("SELECT state FROM checkpoint").fetchone()
    coordinator = checkpoint.decode(
        state,
        federation=home.federation,
        operator=home.anchor.operator,
        signer=home.round_key,
        blobs=Blobs(federation.coordinator / "blobs"),
    )
    assert coordinator.job is not None
    return coordinator.job


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("consolidation")
    keep = ("--demo-keep-updates", directory / "kept")
    with working_agents(directory, plan_of, *keep, rounds=ROUNDS) as (federation, coordinator):
        # East takes no part in the sum that sets the anchor; north has the anchor in its state.
        east = killed_and_back(federation, "east", ANCHOR, *keep)
        north = killed_and_back(federation, "north", east, *keep)
        wait(lambda: unresolved(federation, "south"))
        kill(coordinator)
        federation.start_coordinator()
        states = [status["state"] for status in federation.watch()]
        assert states[0] != states[-1] == "release ready", "the job was over before the coordinator died"
        yield Run(federation, job_of(federation), {"east": east, "north": north}, directory / "kept")


def expected_states(run: Run) -> list[Model]:
    """The state after each round, from the plan's first model and the published sums."""
    plan, layout, blobs = run.job.plan, run.job.layout, Blobs(run.federation.coordinator / "blobs")
    model = initial_model(layout, run.job.hash)
    anchor, importance, count = model.tolist(), [0] * len(model), 0
    states = [np.array([*model, *anchor, *importance, count])]
    for summary in run.job.history:
        if summary.outcome == "published":
            total, _, _ = decode_sum(blobs.get(SUMS, summary.sum), layout.shared_size, 0)
            before, bits = model.tolist(), plan.secure_aggregation.fraction_bits
            model = apply(model, total, len(summary.survivors), bits, plan.training.server_learning_rate)
            if count < ANCHOR:
                anchor, count = model.tolist(), count + 1
                squares = [(new - old) ** 2 for new, old in zip(anchor, before, strict=True)]
                importance = [old + ((new - old) >> 1) for new, old in zip(squares, importance, strict=True)]
        states.append(np.array([*model, *anchor, *importance, count]))
    return states


def test_the_anchor_is_the_model_of_its_round_whoever_was_killed(run: Run) -> None:
    states = expected_states(run)
    assert run.job.models == [model_hash(state) for state in states]
    assert run.job.model.tobytes() == states[-1].tobytes()
    shared = run.job.layout.shared_size
    model, anchor, importance, count = np.split(run.job.model, [shared, 2 * shared, 3 * shared])
    assert count.tolist() == [ANCHOR]
    assert all(importance > 0)
    assert (anchor != model).mean() > 0.9, "nothing moved, so that nothing was held"
    assert "east" not in run.job.history[ANCHOR - 1].survivors


def test_every_silo_trained_from_that_state_and_holds_it(run: Run) -> None:
    """Their ledgers name the state that each round began with and led to; the model in hand is the coordinator's."""
    hashes = run.job.models
    for name in NAMES:
        found = leaves(run.federation, name)
        charged = [leaf for leaf in found if isinstance(leaf, Reserve)]
        assert [leaf.model for leaf in charged] == [hashes[leaf.round - 1] for leaf in charged], name
        led = [leaf for leaf in found if isinstance(leaf, Release)]
        assert [leaf.model for leaf in led] == [hashes[leaf.round] for leaf in led], name
        assert charged[-1].round == led[-1].round == ROUNDS, name
        state = State.read(run.federation.home(name) / "state" / "agent.db")
        model = state.model(run.job.hash, ROUNDS)
        state.close()
        assert model is not None
        assert model.tobytes() == run.job.model.tobytes(), name


def test_an_agent_pulls_after_its_restart_as_the_others_do(run: Run) -> None:
    """A round of noise moves held weights as far as all others until the anchor is set, and much less after it."""
    held = run.job.plan.held
    assert held == {"trunk.0.weight", "trunk.0.bias"}, held

    def moved(name: str, number: int) -> float:
        update = np.load(run.kept / f"round-{number:04d}-{name}.npy").astype(np.float64)
        parts = {tensor: values.reshape(-1) for tensor, values in run.job.layout.split(update).items()}
        rest = np.concatenate([values for tensor, values in parts.items() if tensor not in held])
        return float(np.std(np.concatenate([parts[tensor] for tensor in held])) / np.std(rest))

    found = {
        (summary.round, name): moved(name, summary.round)
        for summary in run.job.history
        for name in summary.survivors
        if summary.outcome == "published"
    }
    # 1 and 0.2, give or take 0.1.
    assert all(ratio > 0.6 if number <= ANCHOR else ratio < 0.5 for (number, _), ratio in found.items()), found
    assert {(number, name) for name, number in run.back.items()} <= set(found)
