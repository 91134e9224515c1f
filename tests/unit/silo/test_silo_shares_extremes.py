"""Contributions to sums where a silo has no patient, or one whose embedding is not finite: whether a silo takes part
must not tell that."""

from __future__ import annotations

import os

import numpy as np
import pytest
from silo_harness import plan_document
from test_stages_with_coordinator import EVALUATION, FIT

from feddrm.contract.charge import round_event
from feddrm.contract.plan import Plan
from feddrm.contract.schedule import STAGE_EVALUATE, STAGE_ROUTING
from feddrm.features import Dataset
from feddrm.method.layout import initial_personal, layout_of
from feddrm.method.progress import Parts, initial_state
from feddrm.method.update import MODEL_LIMIT
from silo.effects import Contribute
from silo.shares import Shares

HASH = bytes(32)
NOBODY = Dataset(np.zeros((0, 2), np.float32), np.zeros(0, np.int64), [])
SOMEBODY = Dataset(np.array([[1.0, 0.0]], np.float32), np.zeros(1, np.int64), [b"one"])


@pytest.mark.parametrize(("training", "held"), [(NOBODY, SOMEBODY), (SOMEBODY, NOBODY), (NOBODY, NOBODY)])
def test_a_silo_without_patients_contributes_noise(training: Dataset, held: Dataset) -> None:
    plan = Plan.model_validate(plan_document(routing_fit=FIT, evaluation=EVALUATION))
    shares, layout = Shares(plan, 0, training, held, os.urandom), layout_of(plan)
    state, personal = initial_state(plan, layout, HASH), initial_personal(layout, HASH)
    for stage in (STAGE_ROUTING, STAGE_EVALUATE):
        event = round_event(plan, stage)
        assert event is not None
        words = shares.contribute(Contribute(HASH, plan, stage, 1, state, personal))
        assert 0 < np.abs(words).max() <= event.sensitivity + 16 * (event.scale + 1)


def test_a_patient_beyond_float32_is_counted_and_never_right() -> None:
    """A model that diverged: the patient's embedding overflows, and the sum is made all the same."""
    document = plan_document(evaluation={**EVALUATION, "noise_multiplier": 0.3})
    document["model"]["hidden"] = [8] * 8
    plan = Plan.model_validate(document)
    layout = layout_of(plan)
    state, personal = initial_state(plan, layout, HASH), initial_personal(layout, HASH)
    Parts.of(plan, layout, state).shared[:] = MODEL_LIMIT
    shares = Shares(plan, 0, NOBODY, SOMEBODY, os.urandom)
    words = shares.contribute(Contribute(HASH, plan, STAGE_EVALUATE, 1, state, personal))
    assert words.shape == (4,)
