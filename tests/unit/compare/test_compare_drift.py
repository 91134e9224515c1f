"""Drift: what is forgotten, and that consolidation holds on to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compare_settings import settings

from feddrm.compare import drift, tables
from feddrm.compare.budget import Noise
from feddrm.compare.methods import METHODS
from feddrm.compare.training import Training
from feddrm.contract.errors import InputError

STRENGTH = 0.15
WANTED = settings(train={"rounds": 8, "learning_rate": 0.5}, methods=["fedavg"])
FEDERATION = tables.natural(WANTED.data, Path("nowhere"), 0)


def test_halves_have_each_class_once() -> None:
    first, second = drift.halves(FEDERATION)
    for number, half in enumerate((first, second)):
        assert {int(label) for silo in half.silos for label in silo.targets} == {number}
        assert set(half.targets.tolist()) == {number}
    assert len(first.targets) + len(second.targets) == len(FEDERATION.targets)


def test_other_labels_make_silos_forget() -> None:
    rows = drift.run(WANTED, FEDERATION, METHODS["fedavg"], None, 0.0, 0)
    assert np.mean([row["forgotten"] for row in rows]) > 0.5
    assert {row["epsilon"] for row in rows} == {None}


@pytest.mark.parametrize("noise", [None, Noise(0.5, None, 9.0)])
def test_consolidation_is_the_plans_and_keeps_weights_near_where_they_were(noise: Noise | None) -> None:
    moves = []
    for ewc in (0.0, 1.0):
        training = Training(WANTED, FEDERATION, METHODS["fedavg"], noise, 0, ewc)
        assert (training.plan.training.ewc is not None) == bool(ewc)
        start = training.begin()
        end = list(training.run(start))[-1]
        moves.append(float(np.linalg.norm((end.model - start.model).astype(np.float64))))
    assert moves[1] < 0.9 * moves[0]


def test_a_row_a_silo_and_the_same_ones_again() -> None:
    rows = drift.run(WANTED, FEDERATION, METHODS["feddrm"], None, 0.1, 0)
    assert [row["silo"] for row in rows] == list(FEDERATION.names)
    assert rows == drift.run(WANTED, FEDERATION, METHODS["feddrm"], None, 0.1, 0)
    assert drift.text(rows).count("\n") == 1 + len(rows) + 1


def test_a_silo_without_half_of_the_classes_is_refused() -> None:
    first, _ = drift.halves(FEDERATION)
    with pytest.raises(InputError, match="half of the classes"):
        drift.halves(first)
