"""Drifts in a comparison's directory: kept one by one, run by as many processes as the machine has."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compare_settings import settings

from feddrm.compare import drift, drift_runs, run, tables
from feddrm.compare.store import Store
from feddrm.contract.errors import UsageError

NOWHERE = Path("no-such-folder")
WANTED = settings(methods=["fedavg", "fedper", "fedavgft", "local"], train={"rounds": 2}, seeds=[0, 1])


def finish(store: Store, advance: Callable[[int], None] = lambda _: None) -> None:
    run.each(drift_runs.runs(WANTED), drift_runs.run, WANTED, NOWHERE, store, 1, advance)


def test_rows_of_every_silo_with_and_without_consolidation_where_something_is_shared_to_hold(tmp_path: Path) -> None:
    store = Store(tmp_path, WANTED)
    done: list[int] = []
    finish(store, done.append)
    assert sum(done) == len(drift_runs.runs(WANTED)) * WANTED.train.rounds
    found = drift_runs.rows(WANTED, store)
    federation = tables.natural(WANTED.data, NOWHERE, 0)
    kinds = {(row["method"], row["ewc"], row["seed"]) for row in found}
    assert kinds == {(method, ewc, seed) for seed in (0, 1) for method, ewc in
                     (("fedavg", 0.0), ("fedavg", WANTED.drift.strength), ("fedper", 0.0))}  # fmt: skip
    assert len(found) == len(kinds) * len(federation.names)


def test_what_is_done_is_not_done_again_and_the_rest_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Store(tmp_path / "whole", WANTED)
    finish(whole)
    real, ended = drift.run, []

    def stopping(*arguments: object) -> object:
        if len(ended) == 2:
            raise KeyboardInterrupt
        ended.append(arguments)
        return real(*arguments)  # type: ignore[arg-type]

    store = Store(tmp_path / "stopped", WANTED)
    with monkeypatch.context() as patch:
        patch.setattr(drift, "run", stopping)
        with pytest.raises(KeyboardInterrupt):
            finish(store)
    kept = {place.name: place.read_bytes() for place in (tmp_path / "stopped" / "rows").iterdir()}
    assert len(kept) == 2
    first = {place: place.stat().st_mtime_ns for place in (tmp_path / "stopped" / "rows").iterdir()}
    finish(store)
    assert {place: place.stat().st_mtime_ns for place in first} == first
    assert drift_runs.rows(WANTED, store) == drift_runs.rows(WANTED, whole)


def test_the_noise_of_a_drift_is_what_a_comparison_found(tmp_path: Path) -> None:
    wanted = settings(methods=["fedavg"], train={"rounds": 2}, epsilons=[math.inf, 3.0])
    store = Store(tmp_path, wanted)
    for one in drift_runs.runs(wanted):
        drift_runs.run(one, wanted, NOWHERE, store, lambda _: None)
    found = {(row["epsilon"], row["epsilon_spent"]) for row in drift_runs.rows(wanted, store)} - {(None, None)}
    assert sorted(found) == [(3.0, pytest.approx(3.0, abs=0.05))]
    assert len(list((tmp_path / "noise").iterdir())) == 1


def test_the_command_prints_what_it_writes_by_two_processes_as_by_one(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        'name = "small"\nmethods = ["fedavg"]\nepsilons = [inf]\nseeds = [0, 1]\n[data]\nsource = "rand"\n'
        '[model]\nkind = "mlp"\nhidden = [4]\n[train]\nrounds = 2\nlocal_steps = 2\nsampling_rate = 0.2\n'
        "learning_rate = 0.5\nmomentum = 0.5\nprivate_learning_rate = 2.0\n"
    )
    printed = []
    for processes in ("1", "2"):
        folder = tmp_path / processes
        command = [sys.executable, "-m", "feddrm.commands", "compare", str(file), "--drift", "--dir", str(folder),
                   "--processes", processes, "--format", "json"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        printed.append(json.loads(done.stdout)["drift"])
        assert json.loads((folder / "drift.json").read_text())["drift"] == printed[-1]
        table = list(csv.DictReader((folder / "drift.csv").read_text().splitlines()))
        assert [float(row["forgotten"]) for row in table] == [row["forgotten"] for row in printed[-1]]
        assert {row["epsilon"] for row in table} == {"inf"}
    assert printed[0] == printed[1]
    assert {row["ewc"] for row in printed[0]} == {0.0, 0.5}


def test_the_table_has_both_strengths_side_by_side_and_the_mean_of_all_silos_last() -> None:
    common = {"method": "fedavg", "silos": 2, "epsilon": 3.0}
    rows = [
        {**common, "ewc": ewc, "seed": seed, "silo": silo, "knew": 0.9, "forgotten": lost, "learnt": 0.5}
        for ewc, losses in ((0.0, (0.6, 0.7, 0.2)), (0.5, (0.3, 0.1, 0.2)))
        for seed, lost in enumerate(losses)
        for silo in ("a", "b")
    ]
    rows.append({**rows[0], "method": "feddrm", "epsilon": None})
    title, table, other, alone = drift_runs.text(rows).split("\n\n")
    assert title == "fedavg, 2 silos, epsilon 3"
    lines = [re.split(r" {2,}", line) for line in table.splitlines()]
    assert lines[0] == ["silo", "knew", "forgotten", "forgotten, ewc 0.5", "learnt", "learnt, ewc 0.5"]
    assert lines[2] == ["a", "0.900", "0.600", "0.200", "0.500", "0.500"]
    assert lines[4] == ["mean of all", "0.900", "0.500", "0.200", "0.500", "0.500"]
    assert other == "feddrm, 2 silos, no privacy"
    assert alone.splitlines()[0].split() == ["silo", "knew", "forgotten", "learnt"]


def test_a_drift_has_no_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from feddrm.compare.cli import compare

    with pytest.raises(UsageError, match="no plots"):
        compare("rand", drift=True, figures=tmp_path / "figures", directory=tmp_path / "there")
    assert not list(tmp_path.iterdir())
