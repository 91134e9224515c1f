from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the silo extra is not installed")
pytest.importorskip("opacus", reason="the silo extra is not installed")

from bench import routing_fit as bench
from bench.fit_case import Case, Fit, row
from bench.fit_data import Federation, heart, heart_schema
from bench.fit_summary import summary
from feddrm.features import Dataset
from privacy.events import PoissonSubsampledGaussian

HEART = Path(__file__).parents[4] / "shared/data/heart_uci"
KEYS = [
    *("data", "seed", "noise", "epsilon_stage1", "epsilon_stage2", "epsilon_total", "delta", "routing_stage1"),
    *("routing_stage2", "system_stage1", "system_stage2", "own_silo", "random_silo"),
    *("shared_head", "system_mixed", "system_second", "own_mixed"),
]


def case(seed: int = 0, private: bool = True) -> Case:
    """Three silos whose records lie around three corners; a silo's model is right about its own patients only."""
    generator = np.random.default_rng(seed)
    corners = np.eye(3, 5)

    def around(count: int, k: int) -> np.ndarray[Any, Any]:
        return (corners[k] + generator.normal(size=(count, 5)) * 0.4).astype(np.float32)

    sizes = (400, 200, 300)
    silos = tuple(
        Dataset(around(size, k), np.zeros(size, np.int64), [b"%d" % n for n in range(size)])
        for k, size in enumerate(sizes)
    )
    home = np.repeat(np.arange(3), 100)
    queries = np.concatenate([around(100, k) for k in range(3)])
    data = Federation("corners", silos, queries, np.zeros(300, np.int64), home, sizes)
    chance = (np.zeros((3, 5), np.float32), np.zeros(3, np.float32))
    event = PoissonSubsampledGaussian(3.0, 1.0, 10) if private else None
    embeddings = tuple(silo.features for silo in silos)
    wrong = (home[:, None] != np.arange(3)).astype(np.float64)
    answers = np.stack([np.zeros_like(wrong), wrong - 0.5], axis=2)
    return Case(data, "corners", seed, 1e-5, embeddings, queries, answers, chance, event, None)


FIT = Fit(10, 20.0, 8.0, 0.8, 6, 2)


def test_a_row_says_what_the_fit_was_worth_and_what_it_cost() -> None:
    rows = {noise: row(case(), FIT, noise) for noise in ("none", "shares", "local")}
    assert all(list(each) == KEYS for each in rows.values())
    assert rows["none"]["routing_stage2"] > 0.8
    assert (
        rows["none"]["routing_stage2"] > rows["shares"]["routing_stage2"] - 0.02 > rows["local"]["routing_stage2"] - 0.1
    )
    for each in rows.values():
        # All queries went to the first silo before, and a silo is right about its own.
        assert each["routing_stage1"] == each["system_stage1"] == pytest.approx(1 / 3, abs=1e-4)
        assert each["system_stage2"] == each["routing_stage2"]
        assert (each["own_silo"], each["random_silo"]) == (1.0, 0.3333)
    assert rows["none"]["epsilon_stage2"] is rows["none"]["epsilon_total"] is None
    assert rows["shares"]["epsilon_stage2"] == pytest.approx(rows["local"]["epsilon_stage2"], abs=1e-3)
    assert max(rows["shares"][f"epsilon_stage{n}"] for n in (1, 2)) < rows["shares"]["epsilon_total"]


def test_without_privacy_in_stage_1_there_is_no_whole() -> None:
    spent = row(case(private=False), FIT, "shares")
    assert spent["epsilon_stage1"] is spent["epsilon_total"] is None
    assert spent["epsilon_stage2"] > 0


def test_a_summary_has_medians_and_ranges() -> None:
    rows = [row(case(seed), FIT, "none") for seed in range(3)]
    (line,) = summary(rows)
    middle = sorted(each["routing_stage2"] for each in rows)
    assert line["routing"] == f"0.333 -> {middle[1]:.3f} ({middle[0]:.3f}-{middle[2]:.3f})"
    assert line["seeds"] == 3


@pytest.mark.skipif(not HEART.exists(), reason="the UCI Heart Disease files are not beside the project")
def test_the_hospitals_are_read_as_published() -> None:
    data, bare = heart(HEART, 1, True), heart(HEART, 1, False)
    assert [len(silo) for silo in data.silos] == [212, 206, 86, 140]
    assert np.bincount(data.home).tolist() == [91, 88, 37, 60]
    assert data.features.shape[1] == heart_schema(True).width == bare.features.shape[1] + 13
    assert np.abs(data.features).max() <= 1.0
    # No cholesterol was taken in Switzerland: 0 there means that it is missing.
    widths = np.cumsum([column.width for column in heart_schema(True).columns])
    assert (data.silos[2].features[:, widths[4] - 1] == 1.0).all()
    targets = np.concatenate([*(silo.targets for silo in data.silos if silo.targets is not None), data.targets])
    assert targets.sum() == 139 + 106 + 115 + 149


def test_missing_data_are_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"processed\.cleveland\.data is missing"):
        bench.main(["heart", "--data", str(tmp_path)])
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not HEART.exists(), reason="the UCI Heart Disease files are not beside the project")
@pytest.mark.soak
def test_four_hospitals_reach_what_the_documentation_says(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["heart", "--data", str(HEART.parent), "--seeds", "3", "--format", "json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    chosen = [each for each in rows if each["data"] == "heart, epsilon 8" and each["noise"] == "shares"]
    assert len(chosen) == 3
    assert all(each["epsilon_total"] <= 8 for each in chosen)
    assert np.median([each["routing_stage2"] for each in chosen]) >= 0.8
