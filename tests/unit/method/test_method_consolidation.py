"""Consolidation: exact, from published sums alone, and a pull on what was needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from trainer_tools import Going, MakeEntropy, MakePlan, Recorder, dataset, weights

from feddrm.contract.errors import MalformedError
from feddrm.contract.schedule import STAGE_TRAIN
from feddrm.contract.training import MOST_IMPORTANT, Consolidation
from feddrm.method import consolidation
from feddrm.method.layout import layout_of
from feddrm.method.progress import Parts, advance, initial_state, shared_model, state_size
from feddrm.method.trainer import Trainer
from feddrm.method.update import MODEL_LIMIT, to_float

EWC = {"strength": 0.1, "memory": 4}
ENTRY = st.integers(-MODEL_LIMIT, MODEL_LIMIT) | st.integers(-(1 << 20), 1 << 20)


@settings(max_examples=100)
@given(memory=st.sampled_from([2, 16, 256]), rounds=st.lists(st.tuples(ENTRY, ENTRY), min_size=1, max_size=12))
def test_what_is_kept_is_exact_arithmetic_of_published_models(memory: int, rounds: list[tuple[int, int]]) -> None:
    terms = Consolidation(strength=1.0, memory=memory)
    model = np.array([3, -5], np.int64)
    kept = consolidation.initial(terms, model)
    anchors, importance = [3, -5], [0, 0]
    for entries in rounds:
        after = np.array(entries, np.int64)
        kept = consolidation.advance(terms, kept, model, after)
        for place in range(2):
            change = max(-(1 << 30), min(1 << 30, int(after[place]) - int(model[place])))
            anchors[place] += (int(after[place]) - anchors[place]) >> terms.shift
            importance[place] += (change**2 - importance[place]) >> terms.shift
        model = after
    assert kept.tolist() == [*anchors, *importance]
    assert consolidation.anchor(kept).tolist() == anchors
    assert min(importance) >= 0


def test_strength_is_that_of_mean_importance_and_the_routing_head_is_free(make_plan: MakePlan) -> None:
    plan = make_plan()
    layout = layout_of(plan)
    terms = Consolidation(strength=0.5)
    held = frozenset(tensor.name for tensor in plan.holdable)
    model, _ = weights(plan)
    kept = consolidation.initial(terms, model)
    assert not consolidation.strengths(terms, held, layout, kept).any()
    after = model + np.random.default_rng(0).integers(-1000, 1000, len(model))
    kept = consolidation.advance(terms, kept, model, after)
    parts = layout.split(consolidation.strengths(terms, held, layout, kept))
    assert not parts["routing_head.weight"].any()
    assert not parts["routing_head.bias"].any()
    pulled = np.concatenate([parts[tensor.name].reshape(-1) for tensor in layout.part("trunk")])
    assert pulled.mean() == pytest.approx(0.5)
    changes = np.concatenate([layout.split(after - model)[t.name].reshape(-1) for t in layout.part("trunk")])
    assert np.corrcoef(pulled, changes.astype(np.float64) ** 2)[0, 1] > 0.999
    # One weight that moved alone is not nailed down.
    alone = model.copy()
    alone[0] += 1 << 20
    kept = consolidation.advance(terms, consolidation.initial(terms, model), model, alone)
    found = consolidation.strengths(terms, held, layout, kept)
    assert found[0] == 0.5 * MOST_IMPORTANT
    assert not found[1:].any()


def test_the_pull_goes_to_the_anchor_after_the_noise(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    plan = make_plan(sampling_rate=1.0, learning_rate=0.25, local_steps=2, ewc={"strength": 0.3, "memory": 2})
    layout = layout_of(plan)
    model, personal = weights(plan)
    earlier = model + np.random.default_rng(1).integers(-(1 << 22), 1 << 22, len(model))
    ewc = plan.training.ewc
    assert ewc is not None
    kept = consolidation.advance(ewc, consolidation.initial(ewc, earlier), earlier, model)
    trainer = Trainer(plan, layout, dataset(1), 1, 20, make_entropy(b"k"))
    update, _ = trainer.train_round(model, personal, Going(), 1, kept)
    strengths = consolidation.strengths(ewc, plan.held, layout, kept)
    far = to_float(model) - to_float(consolidation.anchor(kept))
    moved = np.zeros(layout.shared_size)
    for total in recorder.sums:
        moved -= 0.25 * (total[: layout.shared_size] / 20 + strengths * (moved + far))
    assert np.abs(far).max() > 0.01
    assert np.allclose(update, moved, atol=1e-5)
    with pytest.raises(ValueError, match="what was kept"):
        trainer.train_round(model, personal, Going(), 1)


def test_everybody_derives_what_is_kept_from_the_sums(make_plan: MakePlan) -> None:
    plan, plain = make_plan(ewc=EWC), make_plan()
    layout = layout_of(plan)
    assert state_size(plan, layout) == 3 * layout.shared_size == 3 * state_size(plain, layout)
    state, other = initial_state(plan, layout, bytes(32)), initial_state(plain, layout, bytes(32))
    assert plan.training.ewc is not None
    for number in range(3):
        before = Parts.of(plan, layout, state)
        total = np.random.default_rng(number).integers(-(1 << 22), 1 << 22, layout.shared_size)
        state = advance(plan, layout, STAGE_TRAIN, state, total, np.zeros(0, np.int64), 3)
        other = advance(plain, layout, STAGE_TRAIN, other, total, np.zeros(0, np.int64), 3)
        after = Parts.of(plan, layout, state)
        assert np.array_equal(after.shared, other), "the model itself is moved by the sum alone"
        assert np.array_equal(
            after.kept, consolidation.advance(plan.training.ewc, before.kept, before.shared, after.shared)
        )
        assert np.array_equal(after.joined(), state)
    assert np.array_equal(shared_model(plan, layout, state), other)
    with pytest.raises(MalformedError):
        Parts.of(plan, layout, other)


def test_a_plan_says_what_is_wrong_with_its_consolidation(make_plan: MakePlan) -> None:
    for wrong, said in (
        ({"strength": 0.5, "memory": 4}, "ewc.strength: 10 times it"),
        ({"strength": 0.1, "memory": 3}, "Input should be 2, 4, 8"),
        ({"strength": 0.0}, "greater than 0"),
        ({"strength": 0.1, "anchor_round": 4}, "ewc.anchor_round: of the 4 rounds none"),
        ({"strength": 0.1, "anchor_round": 0}, "greater than or equal to 1"),
        ({"strength": 0.1, "tensors": ["head.*"]}, 'training.ewc.tensors: "head.\\*" matches no tensor'),
        ({"strength": 0.1, "tensors": ["target_head.*"]}, 'training.ewc.tensors: "target_head.\\*" matches no'),
        ({"strength": 0.1, "tensors": ["routing_head.*"]}, 'training.ewc.tensors: "routing_head.\\*" matches no'),
    ):
        with pytest.raises(ValidationError, match=said):
            make_plan(ewc=wrong, learning_rate=0.25, rounds=4)
    assert b"ewc" not in make_plan().body()


def test_a_plan_that_names_no_round_and_no_tensors_has_the_bytes_that_it_had(make_plan: MakePlan) -> None:
    plain = make_plan(ewc=EWC)
    assert b'"ewc":{"memory":4,"strength":0.1}' in plain.body()
    assert make_plan(ewc={**EWC, "anchor_round": None, "tensors": ["*"]}).body() == plain.body()
    assert b"anchor_round" in make_plan(ewc={**EWC, "anchor_round": 1}, rounds=4).body()


def test_weights_are_held_where_they_stood_at_the_named_round(make_plan: MakePlan) -> None:
    plan = make_plan(ewc={**EWC, "anchor_round": 2, "tensors": ["trunk.*.weight"]}, rounds=4)
    layout, ewc = layout_of(plan), plan.training.ewc
    assert ewc is not None
    state = initial_state(plan, layout, bytes(32))
    assert state_size(plan, layout) == len(state) == 3 * layout.shared_size + 1
    states = [state]
    for number in range(4):
        total = np.random.default_rng(number).integers(-(1 << 22), 1 << 22, layout.shared_size)
        states.append(advance(plan, layout, STAGE_TRAIN, states[-1], total, np.zeros(0, np.int64), 3))
    parts = [Parts.of(plan, layout, each) for each in states]
    held = [consolidation.strengths(ewc, plan.held, layout, each.kept) for each in parts]
    assert not held[0].any()
    assert not held[1].any()
    assert held[2].any()
    assert np.array_equal(held[2], held[4])
    for each in parts[2:]:
        assert np.array_equal(consolidation.anchor(each.kept), parts[2].shared)
    for name, values in layout.split(held[4]).items():
        assert values.any() == (name.startswith("trunk.") and name.endswith(".weight"))
    chosen = np.concatenate([v.reshape(-1) for n, v in layout.split(held[4]).items() if n in plan.held])
    assert chosen.mean() == pytest.approx(ewc.strength, rel=0.05)
