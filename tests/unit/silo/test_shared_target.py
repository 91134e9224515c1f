"""A target head of all silos from the plan to a querier's answer: what is signed, what a silo adds, what it answers."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from silo_harness import NAMES, Trial, plan_document
from test_own_targets import EVALUATION, FIT, HEAD, STAGE

from feddrm.contract.announce import parameters
from feddrm.contract.charge import charge, round_event
from feddrm.contract.errors import MalformedError
from feddrm.contract.plan import Plan
from feddrm.contract.schedule import STAGE_EVALUATE, STAGE_ROUTING
from feddrm.features import Dataset
from feddrm.method.layout import MODEL_FRACTION_BITS, initial_model, initial_personal, layout_of
from feddrm.method.model import Predictor
from feddrm.method.progress import Parts, answering_model, fit_terms, initial_state, segments, shared_model, state_size
from feddrm.method.shared_head import SharedHead
from feddrm.method.update import from_float
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian
from silo.effects import Contribute, Int64s
from silo.shares import Shares

HASH = bytes(32)
ONE = 1 << MODEL_FRACTION_BITS
SHARED: dict[str, Any] = {**FIT, "shared_target": True}


def plan_of(**changes: Any) -> Plan:
    return Plan.model_validate(plan_document(**{"routing_fit": SHARED, **changes}))


def with_queries(plan: Plan, **changes: Any) -> Plan:
    return Plan.model_validate({**plan.model_dump(mode="json", by_alias=True), "queries": changes})


def records(count: int = 60, classes: int = 2, seed: int = 1) -> Dataset:
    """Two records a patient, whose labels often contradict each other; the first patient's records are extreme."""
    draw = np.random.default_rng(seed)
    features = draw.uniform(-1, 1, (2 * count, 2)).astype(np.float32)
    features[:2] = [[1.0, -1.0], [-1.0, 1.0]]
    return Dataset(features, draw.integers(0, classes, 2 * count), [b"%d" % (i // 2) for i in range(2 * count)])


def some(data: Dataset, chosen: np.ndarray[Any, Any]) -> Dataset:
    assert data.targets is not None
    patients = [patient for patient, there in zip(data.patients, chosen.tolist(), strict=True) if there]
    return Dataset(data.features[chosen], data.targets[chosen], patients)


def noiseless(plan: Plan, silo: int, data: Dataset, state: Int64s, held: Dataset | None = None) -> Int64s:
    """A contribution before its noise."""
    nobody = some(data, np.zeros(len(data), np.bool_))
    shares = Shares(plan, silo, data, held or nobody, os.urandom)
    personal = initial_personal(layout_of(plan.at(plan.silos[silo])), HASH)
    stage = STAGE_ROUTING if held is None else STAGE_EVALUATE
    effect = Contribute(HASH, plan, stage, 1, state, personal)
    return shares._fit(effect) if held is None else shares._evaluate(effect)


def fitted(plan: Plan, seed: int = 0, size: float = 2.0) -> Int64s:
    """A state in which some sums were applied."""
    layout, terms = layout_of(plan), fit_terms(plan)
    state = initial_state(plan, layout, HASH)
    weights = np.rint(np.random.default_rng(seed).normal(size=terms.words) * size * ONE).astype(np.int64)
    fit = Parts.of(plan, layout, state).fit
    fit[0], fit[1 : 1 + terms.words], fit[-terms.words :] = terms.average_from, weights, weights
    return state


# What is signed and charged.


def test_a_plan_without_the_key_keeps_its_text_and_its_parameters() -> None:
    plain = Plan.model_validate(plan_document(routing_fit=FIT))
    said = Plan.model_validate(plan_document(routing_fit={**FIT, "shared_target": False}))
    assert plain.body() == said.body()
    assert parameters(plain) == parameters(said) != parameters(plan_of())
    assert b"shared" not in plain.body()
    assert b'"shared_target":true' in plan_of().body()
    assert Plan.model_validate_json(plan_of().body()).body() == plan_of().body()
    assert (plain.shared_classes, plan_of().shared_classes) == (0, 2)
    # The silos' rows of a state are where they always were.
    assert state_size(plan_of(), layout_of(plan_of())) - state_size(plain, layout_of(plain)) == 3 * 2 * 4


def test_the_joint_sum_is_charged_as_one_event_of_more_entries() -> None:
    plain, plan = Plan.model_validate(plan_document(routing_fit=FIT)), plan_of()
    before, event = round_event(plain, STAGE_ROUTING), round_event(plan, STAGE_ROUTING)
    assert isinstance(before, DistributedDiscreteGaussian)
    assert isinstance(event, DistributedDiscreteGaussian)
    assert event.dimension == plan.fit_entries == fit_terms(plan).words == (4 + 2) * 4
    assert segments(plan, layout_of(plan), STAGE_ROUTING) == (0, 24)
    assert event.sensitivity == fit_terms(plan).sensitivity
    assert before.sensitivity <= event.sensitivity <= before.sensitivity + 2
    assert charge(plan).epsilon == pytest.approx(charge(plain).epsilon, rel=1e-3)
    local = round_event(plan_of(routing_fit={**SHARED, "noise": "local"}), STAGE_ROUTING)
    assert isinstance(local, LocalDiscreteGaussian)
    assert local.dimension == 24


def test_a_linear_model_may_have_a_shared_head_of_its_features() -> None:
    plan = plan_of(model={"kind": "linear"}, rounds=0)
    assert plan.fit_entries == (4 + 2) * (plan.width + 1)
    total = noiseless(plan, 0, records(), initial_state(plan, layout_of(plan), HASH))
    assert total.reshape(6, -1)[4:].any()


def test_unsound_plans_are_refused() -> None:
    for key in ("shared_weight", "home_weight"):
        with pytest.raises(ValidationError, match=rf"queries\.{key}: there is no shared target head"):
            with_queries(Plan.model_validate(plan_document(routing_fit=FIT)), **{key: 0.1})
        for weight in (-0.1, 1.1):
            with pytest.raises(ValidationError, match=key):
                with_queries(plan_of(), **{key: weight})
    assert (plan_of().queries.shared_weight, plan_of().queries.home_weight) == (0.7, 0.3)
    # K + C rows within the ring, at the last number of patients and one above it.
    event = round_event(plan_of(), STAGE_ROUTING)
    assert isinstance(event, DistributedDiscreteGaussian)
    most = ((1 << 40) - 16 * (event.scale + 1)) // event.sensitivity
    plan_of(routing_fit={**SHARED, "largest_silo": most})
    with pytest.raises(ValidationError, match=r"2\*\*40 is the most that is summed"):
        plan_of(routing_fit={**SHARED, "largest_silo": most + 1})


def test_more_rows_than_a_sum_can_have_are_refused() -> None:
    document = plan_document(routing_fit=SHARED, model={"kind": "linear"})
    document["schema"]["target"] = {"kind": "classes", "column": "y", "values": [str(i) for i in range(1021)]}
    column = {"kind": "categorical", "categories": [str(i) for i in range(1023)], "missing_indicator": True}
    document["schema"]["columns"] = [{**column, "name": f"a{i}"} for i in range(15)]
    Plan.model_validate(document)
    document["schema"]["columns"].append({**column, "name": "last", "missing_indicator": False})
    with pytest.raises(ValidationError, match="is the most that is summed"):
        Plan.model_validate(document)


# What a silo adds.


@pytest.mark.parametrize("seed", range(3))
def test_any_one_patient_moves_the_joint_sum_by_at_most_what_is_charged(seed: int) -> None:
    plan = plan_of()
    event = round_event(plan, STAGE_ROUTING)
    assert isinstance(event, DistributedDiscreteGaussian)
    data, state = records(8, seed=seed), fitted(plan, seed, size=30.0)
    whole = noiseless(plan, 1, data, state)
    for patient in set(data.patients):
        others = np.array([other != patient for other in data.patients])
        moved = whole - noiseless(plan, 1, some(data, others), state)
        assert (moved == noiseless(plan, 1, some(data, ~others), state)).all()
        assert sum(int(entry) ** 2 for entry in moved) <= event.sensitivity**2


def test_a_silo_with_classes_of_its_own_adds_noise_alone_to_the_shared_head() -> None:
    """Whatever its classes: three of its own, or two that mean something else."""
    pair = {**STAGE, "values": ["I", "II"]}
    for target, classes in ((STAGE, 3), (pair, 2)):
        plan, data = plan_of(own_targets={"alpha": target}), records(classes=classes)
        state = fitted(plan)
        mine, theirs = (noiseless(plan, silo, data, state).reshape(6, -1) for silo in (0, 1))
        assert mine[:4].any()
        assert not mine[4:].any()
        sent = Shares(plan, 0, data, data, os.urandom).contribute(
            Contribute(HASH, plan, STAGE_ROUTING, 1, state, initial_personal(layout_of(plan.at("alpha")), HASH))
        )
        assert sent.shape == (24,)
        assert sent.reshape(6, -1)[4:].any()
        assert theirs[4:].any() or classes == 3


def test_a_patient_that_diverged_or_is_alone_is_counted_like_any_other() -> None:
    plan = plan_of()
    state, data = fitted(plan), records(1)
    assert noiseless(plan, 2, data, state).shape == (24,)
    unlabelled = replace(data, targets=np.full(2, -1))
    assert not noiseless(plan, 2, unlabelled, state).reshape(6, -1)[4:].any()
    deep = plan_of(model={"kind": "mlp", "hidden": [8] * 8})
    state = fitted(deep)
    Parts.of(deep, layout_of(deep), state).shared[:] = 1 << 53
    assert not noiseless(deep, 0, data, state).any()


# What a silo answers.


def answering(plan: Plan, state: Int64s, silo: str) -> tuple[Int64s, SharedHead | None]:
    layout = layout_of(plan)
    return SharedHead.split(plan, layout, answering_model(plan, layout, state), silo)


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("asked", "home"), [(0.0, 1.0), (0.3, 0.5), (0.7, 0.0)])
def test_an_answer_is_the_mean_of_both_distributions(asked: float, home: float) -> None:
    plan = with_queries(plan_of(), shared_weight=asked, home_weight=home)
    state = fitted(plan)
    model, shared = answering(plan, state, "beta")
    assert shared is not None
    assert (model == shared_model(plan, layout_of(plan), state)).all()
    personal = initial_personal(layout_of(plan), HASH) * 40
    predictor, features = Predictor(plan, model, personal, shared), records().features
    own = Predictor(plan, model, personal).predict(features).probabilities
    tensors = layout_of(plan).split(model / ONE)
    hidden = np.maximum(features @ tensors["trunk.0.weight"].T + tensors["trunk.0.bias"], 0)
    normalised = np.column_stack([hidden, np.ones(len(hidden))])
    normalised /= np.linalg.norm(normalised, axis=1, keepdims=True)
    terms = fit_terms(plan)
    rows = Parts.of(plan, layout_of(plan), state).fit[1 : 1 + terms.words].reshape(6, -1)[4:] / ONE
    for part, found in ((asked, predictor.answer(features)), (home, predictor.predict(features))):
        expected = (1 - part) * own + part * softmax(normalised @ rows.T)
        assert found.probabilities.dtype == np.float32
        assert np.abs(found.probabilities - expected).max() < 1e-4
        assert (found.classes == found.probabilities.argmax(axis=1)).all()
    # The same for each alone, to the last bit.
    logits = np.random.default_rng(0).normal(size=(len(hidden), 2)) * 5
    mixed = shared.mixed(logits, hidden, asked)
    alone = [shared.mixed(logits[i : i + 1], hidden[i : i + 1], asked)[0] for i in range(len(hidden))]
    assert (np.stack(alone) == mixed).all()


def test_without_a_shared_head_or_with_classes_of_its_own_a_silo_answers_alone() -> None:
    features = records().features
    for plan, silo in (
        (Plan.model_validate(plan_document(routing_fit=FIT)), "beta"),
        (plan_of(own_targets={"alpha": {**STAGE, "values": ["I", "II"]}}), "alpha"),
    ):
        model, shared = answering(plan, fitted(plan), silo)
        assert shared is None
        predictor = Predictor(plan.at(silo), model, initial_personal(layout_of(plan.at(silo)), HASH), shared)
        assert (predictor.answer(features).probabilities == predictor.predict(features).probabilities).all()


def test_a_silo_with_a_trunk_of_its_own_mixes_in_what_the_shared_trunk_says() -> None:
    plan = plan_of(personal_head={**HEAD, "tensors": ["*"]})
    state = fitted(plan)
    model, shared = answering(plan, state, "beta")
    assert shared is not None
    layout, draw = layout_of(plan), np.random.default_rng(3)
    own = from_float(draw.normal(size=sum(tensor.size for tensor in layout.own)))
    features = records().features
    whole = SharedHead(shared.weight, shared.bias, 1.0, 0.0)
    told = Predictor(plan, model, own, whole)
    plain = Predictor(plan, model, initial_personal(layout, HASH), whole)
    assert (told.answer(features).probabilities == plain.answer(features).probabilities).all()
    assert (told.predict(features).probabilities != plain.predict(features).probabilities).any()


def test_the_evaluation_counts_what_own_patients_and_queriers_are_told() -> None:
    plan = with_queries(plan_of(evaluation=EVALUATION), shared_weight=0.9, home_weight=0.4)
    state, held = fitted(plan, seed=4), records(200)
    model, shared = answering(plan, state, "beta")
    assert held.targets is not None
    predictor = Predictor(plan, model, initial_personal(layout_of(plan), HASH), shared)
    own = predictor.predict(held.features).classes == held.targets
    mine = (
        Predictor(plan, model, initial_personal(layout_of(plan), HASH)).predict(held.features).classes == held.targets
    )
    assert (own != mine).any()
    told = predictor.answer(held.features).classes == held.targets
    assert (own != told).any()
    count, right, routed, both = (int(entry) / (1 << 16) for entry in noiseless(plan, 1, held, state, held))
    assert count == 200
    assert right == pytest.approx(own.mean() * 200)
    everywhere = sum(int(noiseless(plan, silo, held, state, held)[3]) / (1 << 16) for silo in range(len(NAMES)))
    assert everywhere == pytest.approx(told.mean() * 200)
    assert both <= routed


def test_what_is_answered_with_is_checked_before_it_is_taken_apart() -> None:
    plan = plan_of()
    layout = layout_of(plan)
    vector = answering_model(plan, layout, fitted(plan))
    assert vector.shape == (layout.shared_size + 2 * 4,)
    first = initial_state(plan, layout, HASH)
    assert (answering_model(plan, layout, first) == initial_model(layout, HASH)).all()
    assert answering(plan, first, "beta")[1] is None
    for wrong in (vector[:-1], vector[: layout.shared_size - 1], np.append(vector[:-1], 1 << 60)):
        with pytest.raises(MalformedError, match=r"silos answer with|out of range"):
            SharedHead.split(plan, layout, wrong, "beta")
    head = SharedHead(np.zeros((2, 3)), np.zeros(2), 0.5, 0.5)
    with pytest.raises(MalformedError, match="another question"):
        head.mixed(np.zeros((1, 3)), np.zeros((1, 3)), 0.5)
    with pytest.raises(MalformedError, match="not finite"):
        head.mixed(np.array([[np.nan, 0.0]]), np.zeros((1, 3)), 0.5)
    assert head.mixed(np.zeros((0, 2)), np.zeros((0, 3)), 0.5).shape == (0, 2)
    assert Trial.make(routing_fit=SHARED).plan.shared_classes == 2
