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


def test_a_gradual_change_moves_the_same_records_by_equal_steps() -> None:
    silos = [drift.mixed(FEDERATION, moved, 0.1, 3).silos[0] for moved in (0.0, 0.5, 1.0)]
    total = np.bincount(FEDERATION.silos[0].targets, minlength=2)
    counts = np.array([np.bincount(silo.targets, minlength=2) for silo in silos])
    assert counts[:, 0] == pytest.approx(np.array([1.0, 0.55, 0.1]) * total[0], abs=1)
    assert counts[:, 1] == pytest.approx(np.array([0.1, 0.55, 1.0]) * total[1], abs=1)
    old = [{row.tobytes() for row in silo.features[silo.targets == 0]} for silo in silos]
    assert old[2] <= old[1] <= old[0]
    assert drift.mixed(FEDERATION, 0.5, 0.1, 3).sizes != FEDERATION.sizes


def test_the_head_stays_nearer_to_where_it_stood_when_the_change_began() -> None:
    moves = []
    for strength in (0.0, 1.0):
        ewc = drift.consolidation_of(WANTED, strength)
        training = Training(WANTED, drift.halves(FEDERATION)[0], METHODS["fedavg"], None, 0, ewc)
        states = list(training.run(training.begin()))
        later = Training(WANTED, drift.halves(FEDERATION)[1], METHODS["fedavg"], None, 0, ewc)
        end = list(later.run(states[3]))[-1]
        heads = [training.networks(state)[0]["target_head.weight"] for state in (states[3], end)]
        moves.append(float(np.linalg.norm(heads[1] - heads[0])))
    assert moves[1] < 0.9 * moves[0]


def test_heads_of_silos_own_are_held_by_nothing() -> None:
    assert drift.holds(WANTED, FEDERATION, METHODS["fedavg"])
    assert not drift.holds(WANTED, FEDERATION, METHODS["fedper"])


@pytest.mark.parametrize("noise", [None, Noise(0.5, None, 9.0)])
def test_consolidation_is_the_plans_and_keeps_weights_near_where_they_were(noise: Noise | None) -> None:
    moves = []
    for ewc in (None, {"strength": 1.0}):
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


def test_a_silo_without_half_of_the_classes_is_refused() -> None:
    first, _ = drift.halves(FEDERATION)
    with pytest.raises(InputError, match="half of the classes"):
        drift.halves(first)
