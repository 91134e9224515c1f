"""Drift: what is forgotten, and that consolidation holds on to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compare_settings import settings

from feddrm.compare import drift, tables
from feddrm.compare.methods import METHODS
from feddrm.compare.plain import Memory, PlainTrainer, importance
from feddrm.compare.training import Training
from feddrm.contract.errors import InputError
from feddrm.method.layout import layout_of

WANTED = settings(train={"rounds": 8, "learning_rate": 0.5}, methods=["fedavg"])
FEDERATION = tables.natural(WANTED.data, Path("nowhere"), 0)


def forgotten(strength: float) -> float:
    rows = drift.run(WANTED, FEDERATION, METHODS["fedavg"], strength, 0)
    return float(np.mean([row["forgotten"] for row in rows]))


def test_halves_have_each_class_once() -> None:
    first, second = drift.halves(FEDERATION)
    for number, half in enumerate((first, second)):
        assert {int(label) for silo in half.silos for label in silo.targets} == {number}
        assert set(half.targets.tolist()) == {number}
    assert len(first.targets) + len(second.targets) == len(FEDERATION.targets)


def test_other_labels_make_silos_forget_and_consolidation_holds() -> None:
    free, held = forgotten(0.0), forgotten(5.0)
    assert free > 0.5
    assert held < free - 0.3


def test_a_row_a_silo_and_the_same_ones_again() -> None:
    rows = drift.run(WANTED, FEDERATION, METHODS["feddrm"], 1.0, 0)
    assert [row["silo"] for row in rows] == list(FEDERATION.names)
    assert rows == drift.run(WANTED, FEDERATION, METHODS["feddrm"], 1.0, 0)
    assert drift.text(rows).count("\n") == 1 + len(rows) + 1


def test_importance_is_where_the_losses_depend_and_has_mean_one_at_most() -> None:
    training = Training(WANTED, FEDERATION, METHODS["fedavg"], None, 0)
    state = training.begin()
    weight = importance(training.plan, FEDERATION, state.model, state.personals)
    parts = layout_of(training.plan).split(weight)
    assert weight.dtype == np.float32
    assert 0 < weight.mean() <= 1
    # The target's loss does not look at the routing head.
    assert not parts["routing_head.weight"].any()
    assert parts["target_head.weight"].any()


def test_a_strong_memory_keeps_the_weights() -> None:
    training = Training(WANTED, FEDERATION, METHODS["fedavg"], None, 0)
    layout, state = layout_of(training.plan), training.begin()
    moves = []
    for strength in (0.0, 1.5):
        memory = Memory(state.model, np.ones(layout.shared_size, dtype=np.float32), strength)
        silo = PlainTrainer(training.plan, layout, FEDERATION.silos[0], 0, WANTED.train, (0,), memory)
        moves.append(np.linalg.norm(silo.train_round(state.model, state.personals[0], 1)[0]))
    assert moves[1] < moves[0]


def test_a_silo_without_half_of_the_classes_is_refused() -> None:
    first, _ = drift.halves(FEDERATION)
    with pytest.raises(InputError, match="half of the classes"):
        drift.halves(first)
