"""What the evaluation counts is what is answered: the same function of a record, whoever else is in the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_own_targets import EVALUATION, FIT, HEAD
from test_shared_target import HASH, NAMES, ONE, answering, fitted, plan_of, records, with_queries

from feddrm.contract.errors import MalformedError
from feddrm.contract.plan import Plan
from feddrm.contract.schedule import STAGE_EVALUATE
from feddrm.method.coarse import Grid
from feddrm.method.evaluation import contribution
from feddrm.method.layout import initial_personal, layout_of
from feddrm.method.model import Embedder, Predictor
from feddrm.method.progress import Parts, shared_model
from feddrm.method.routing import Router
from feddrm.method.update import from_float, head_tensors, trunk_tensors
from silo.effects import Contribute, Int64s
from silo.shares import Shares

torch = pytest.importorskip("torch", reason="the silo extra is not installed")


def one_by_one(plan: Plan, silo: int, state: Int64s, personal: Int64s, held: Any) -> Int64s:
    """The evaluation's vector from questions about single records, as predict, route and ask put them."""
    name, layout = plan.silos[silo], layout_of(plan.at(plan.silos[silo]))
    model, shared = answering(plan, state, name)
    predictor = Predictor(plan.at(name), model, personal, shared)
    trunk = trunk_tensors(layout, shared_model(plan, layout, state))
    embedder, grid = Embedder.from_tensors(plan.at(name), trunk), Grid.of(plan.at(name), trunk)
    router = Router.from_tensors(layout, head_tensors(layout, shared_model(plan, layout, state)), plan.silos)
    outcomes = []
    for row, target in zip(held.features, held.targets.tolist(), strict=True):
        seen = grid.decode(grid.encode(embedder.embed(row[None])))
        outcomes.append(
            (
                int(predictor.predict(row[None]).classes[0]) == target,
                router.route(seen, plan.silos, fitted=True)[0] == (name,),
                int(predictor.answer(row[None]).probabilities[0].argmax()) == target,
            )
        )
    return contribution(held.patients, *np.array(outcomes).T)


@pytest.mark.parametrize("case", ["own head alone", "with the head of all silos", "a trunk of its own"])
@pytest.mark.parametrize("close", [False, True])
def test_the_evaluation_counts_exactly_what_single_questions_are_answered(case: str, close: bool) -> None:
    """`close`: two classes so near each other that float32 and float64, or another order of summing, part."""
    changes: dict[str, Any] = {"evaluation": EVALUATION}
    if case == "own head alone":
        changes["routing_fit"] = FIT
    if case == "a trunk of its own":
        changes["personal_head"] = {**HEAD, "tensors": ["*"]}
    plan = plan_of(**changes)
    if plan.shared_classes:
        # An even weight makes ties of mixtures likely where both heads nearly tie.
        plan = with_queries(plan, shared_weight=0.5, home_weight=0.25)
    held, draw = records(300), np.random.default_rng(5)
    state = fitted(plan, 2, 1e-6 if close else 2.0)
    for silo in range(len(NAMES)):
        layout = layout_of(plan.at(plan.silos[silo]))
        personal = from_float(draw.normal(size=len(initial_personal(layout, HASH))) * 2)
        if close:
            head = layout.split(personal, "personal")["target_head.weight"]
            head[:] = head[0] + draw.integers(-2, 3, head.shape)
        counted = Shares(plan, silo, held, held, bytes)._evaluate(
            Contribute(HASH, plan, STAGE_EVALUATE, 1, state, personal)
        )
        assert counted.tolist() == one_by_one(plan, silo, state, personal, held).tolist()


def test_an_answer_is_the_same_in_any_company() -> None:
    plan = plan_of()
    model, shared = answering(plan, fitted(plan), "beta")
    features = records().features
    for head in (None, shared):
        predictor = Predictor(plan, model, initial_personal(layout_of(plan), HASH) * 40, head)
        whole = predictor.answer(features).probabilities
        for start, stop in ((0, 1), (7, 9), (3, 60)):
            assert (predictor.answer(features[start:stop]).probabilities == whole[start:stop]).all()


def test_what_would_be_refused_is_counted_as_wrong_and_refuses_nothing() -> None:
    plan = plan_of(model={"kind": "mlp", "hidden": [8] * 8}, evaluation=EVALUATION)
    state, held = fitted(plan), records(20)
    Parts.of(plan, layout_of(plan), state).shared[:] = (1 << 53) // ONE * ONE
    personal = initial_personal(layout_of(plan), HASH)
    counted = Shares(plan, 1, held, held, bytes)._evaluate(Contribute(HASH, plan, STAGE_EVALUATE, 1, state, personal))
    model, shared = answering(plan, state, "beta")
    predictor, refused = Predictor(plan, model, personal, shared), 0
    for row in held.features:
        try:
            predictor.answer(row[None])
        except MalformedError:
            refused += 1
    assert refused > 0
    assert counted[0] == 20 << 16
    assert counted[1] <= (40 - refused) << 15
