"""A comparison from settings to rows: the same bits for the same seed, whatever ended the run before."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from compare_settings import settings

from feddrm.compare import cells, data, report, run, tables
from feddrm.compare.judging import judge
from feddrm.compare.methods import METHODS
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store
from feddrm.compare.training import State, Tensors, Training
from feddrm.contract.errors import UsageError
from feddrm.contract.models import LenetGn
from feddrm.contract.plan import Plan

NOWHERE = Path("no-such-folder")
FEDERATION = tables.natural(settings().data, NOWHERE, 0)


def last(
    wanted: Settings, method: str, seed: int = 0, start: State | None = None, among: data.Federation = FEDERATION
) -> State:
    training = Training(wanted, among, METHODS[method], None, seed)
    state = start or training.begin()
    for after in training.run(state):
        state = after
    return state


def images() -> data.Federation:
    """Three silos' noise: fedbn needs a network with normalisation layers."""
    generator = np.random.default_rng(0)
    pixels = generator.uniform(-1, 1, (60, 256)).astype(np.float32)
    labels, owners, training = generator.integers(0, 3, 60), np.arange(60) % 3, np.arange(60) < 48
    return data.divide(pixels, labels, owners, training, data.image_schema((1, 16, 16), 3))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_repeats_itself_to_the_last_bit(method: str) -> None:
    wanted, among = settings(train={"head_steps": 1, "proximal_mu": 0.1}), FEDERATION
    if method == "fedbn":
        model = {"kind": "lenet_gn", "channels": [4, 4], "hidden": 8, "units": 4}
        wanted, among = wanted.model_copy(update={"model": LenetGn.model_validate(model)}), images()
    one, two, other = (last(wanted, method, seed, among=among) for seed in (0, 0, 1))
    rows = [judge(wanted, among, METHODS[method], *networks_of(wanted, among, method, state)) for state in (one, two)]
    assert rows[0] == rows[1]
    assert np.array_equal(one.model, two.model)
    assert all(np.array_equal(a, b) for a, b in zip(one.personals, two.personals, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one.personals, other.personals, strict=True)) or not (
        np.array_equal(one.model, other.model)
    )


def networks_of(
    wanted: Settings, among: data.Federation, method: str, state: State
) -> tuple[Plan, tuple[Tensors, ...], None, int]:
    training = Training(wanted, among, METHODS[method], None, 0)
    return training.plan, training.networks(state), None, 0


@pytest.mark.parametrize("method", ["feddrm", "fedavgft", "local"])
@pytest.mark.parametrize("stop", [1, 2])
def test_a_training_goes_on_from_any_round_to_the_same_bits(method: str, stop: int, tmp_path: Path) -> None:
    wanted = settings()
    store = Store(tmp_path, wanted)
    training = Training(wanted, FEDERATION, METHODS[method], None, 0)
    for state in training.run(training.begin()):
        if state.number == stop:
            store.keep_state("x", state)
            break
    whole, resumed = last(wanted, method), last(wanted, method, start=store.state("x"))
    assert np.array_equal(whole.model, resumed.model)
    assert all(np.array_equal(a, b) for a, b in zip(whole.personals, resumed.personals, strict=True))
    assert (whole.bytes, whole.steps) == (resumed.bytes, resumed.steps)


def test_rows_of_a_run_in_two_halves_are_those_of_one(tmp_path: Path) -> None:
    wanted = settings(epsilons=[math.inf, 1.0], methods=["feddrm"])
    found = []
    for name in ("whole", "again"):
        store = Store(tmp_path / name, wanted)
        if name == "again":
            first = next(iter(cells.jobs(wanted)))
            cells.run(first, wanted, NOWHERE, store, lambda _: None)
        run.run(wanted, NOWHERE, store, 1, lambda _: None)
        found.append(report.rows(wanted, store))
        assert not list((tmp_path / name / "states").iterdir())
    assert found[0] == found[1]
    assert len(found[0]) == 2
    private = [row for row in found[0] if row["epsilon"] is not None]
    assert all(0.97 < row["epsilon_spent"] <= 1.0 for row in private)
    assert all(row["silos"] == 6 for row in found[0])


def test_without_privacy_the_papers_rows_share_a_training() -> None:
    wanted = settings(epsilons=[math.inf, 3.0], methods=["feddrm-personal", "feddrm-stage1", "fedavgft"])
    shared = [[cell.method for cell in job.cells] for job in cells.jobs(wanted)]
    assert shared == [
        ["feddrm-personal", "feddrm-stage1"],
        ["fedavgft"],
        ["feddrm-personal"],
        ["feddrm-stage1"],
        ["fedavgft"],
    ]


def test_a_finished_comparison_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = settings(methods=["fedavg"])
    store = Store(tmp_path, wanted)
    run.run(wanted, NOWHERE, store, 1, lambda _: None)
    monkeypatch.setattr(cells, "Training", None)
    done = []
    run.run(wanted, NOWHERE, store, 1, done.append)
    assert sum(done) == run.rounds(wanted)


def test_another_comparison_needs_another_directory(tmp_path: Path) -> None:
    Store(tmp_path, settings())
    with pytest.raises(UsageError, match="other settings"):
        Store(tmp_path, settings(seeds=[1]))


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: b"PK" + raw[3:]])
def test_a_state_that_is_not_whole_is_begun_anew(damage, tmp_path: Path) -> None:
    store = Store(tmp_path, settings())
    store.keep_state("x", State(2, np.arange(9), (np.arange(4),) * 3, 10, 20))
    assert store.state("x") is not None
    place = tmp_path / "states" / "x.npz"
    place.write_bytes(damage(place.read_bytes()))
    assert store.state("x") is None


def test_killed_it_goes_on(tmp_path: Path) -> None:
    wanted = settings(train={"rounds": 30}, methods=["fedavg", "fedper"])
    file = tmp_path / "slow.toml"
    file.write_text(
        'name = "small"\nmethods = ["fedavg", "fedper"]\nepsilons = [inf]\nseeds = [0]\n[data]\nsource = "rand"\n'
        '[model]\nkind = "mlp"\nhidden = [4]\n[train]\nrounds = 30\nlocal_steps = 2\nsampling_rate = 0.2\n'
        "learning_rate = 0.5\nmomentum = 0.5\nprivate_learning_rate = 2.0\ntarget_weight = 0.5\nlocal_rounds = 1\n"
        "[fit]\nsums = 3\naverage_from = 2\nepsilon_share = 0.4\n"
    )
    folder = tmp_path / "there"
    command = [sys.executable, "-m", "feddrm.commands", "compare", str(file), "--dir", str(folder), "--processes", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = folder / "rows"
    while process.poll() is None and not (rows.is_dir() and any(rows.glob("*.json"))):
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept = {path.name: path.read_bytes() for path in rows.glob("*.json")}
    assert kept
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)["rows"]
    assert {path.name: path.read_bytes() for path in rows.glob("*.json")}.items() >= kept.items()
    store = Store(tmp_path / "whole", wanted)
    run.run(wanted, NOWHERE, store, 1, lambda _: None)
    assert printed == report.rows(wanted, store)


@pytest.mark.soak
def test_two_processes_find_what_one_does(tmp_path: Path) -> None:
    wanted = settings(methods=["fedavg", "local"])
    found = []
    for processes in (1, 2):
        store = Store(tmp_path / str(processes), wanted)
        done: list[int] = []
        run.run(wanted, NOWHERE, store, processes, done.append)
        assert sum(done) == run.rounds(wanted)
        found.append(report.rows(wanted, store))
    assert found[0] == found[1]


def test_half_of_the_silos_in_a_round_send_half_the_bytes() -> None:
    whole, half = last(settings(), "feddrm"), last(settings(train={"participation": 0.5}), "feddrm")
    assert (2 * half.bytes, 2 * half.steps) == (whole.bytes, whole.steps)
