"""A head that begins stage 3 with the target head of all silos: which plans may say so, and what a silo is given."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from silo_harness import Desk, plan_document
from test_own_targets import ROWS
from test_stages_with_coordinator import FIT, HEAD, world_of

from feddrm.contract.home import init_member
from feddrm.contract.identity import Role
from feddrm.contract.plan import Plan
from feddrm.method.layout import MODEL_FRACTION_BITS, initial_model, initial_personal, layout_of
from feddrm.method.progress import Parts, answering_model, fit_terms, segments
from feddrm.method.routing_fit import target_head
from feddrm.method.shared_head import SharedHead
from silo.effects import Contribute, Contributed, LoadData, Tune, Tuned
from silo.home import Home
from silo.workshop import Workshop

SHARED: dict[str, Any] = {**FIT, "shared_target": True}
FROM_SHARED: dict[str, Any] = {**HEAD, "start": "shared"}


class Watching:
    """A worker that sends a number of its own in every place, and keeps what it is asked to tune."""

    def __init__(self) -> None:
        self.asked: list[Tune] = []

    def contribute(self, effect: Contribute) -> Contributed:
        _, words = segments(effect.plan, layout_of(effect.plan), effect.stage)
        return Contributed(effect.plan_hash, effect.stage, effect.round, np.arange(words, dtype=np.int64) << 12)

    def tune(self, effect: Tune, _stop: threading.Event) -> Tuned:
        self.asked.append(effect)
        return Tuned(effect.plan_hash, effect.personal)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"routing_fit": FIT, "personal_head": FROM_SHARED}, r"personal_head\.start: there is no shared target head"),
        ({"personal_head": FROM_SHARED}, r"personal_head\.start: there is no shared target head"),
        (
            {"routing_fit": SHARED, "personal_head": {**FROM_SHARED, "tensors": ["trunk.*"]}},
            r"personal_head\.start: the target head is not among",
        ),
        ({"routing_fit": SHARED, "personal_head": {**HEAD, "start": "zero"}}, "start"),
    ],
)
def test_a_start_that_cannot_be_is_refused(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Plan.model_validate(plan_document(**sections))


def test_only_a_plan_that_says_so_has_the_key() -> None:
    plain = Plan.model_validate(plan_document(routing_fit=SHARED, personal_head=HEAD))
    assert b"start" not in plain.body()
    plan = Plan.model_validate(plan_document(routing_fit=SHARED, personal_head=FROM_SHARED))
    assert b'"start":"shared"' in plan.body()
    assert Plan.model_validate_json(plan.body()) == plan


def test_every_silo_is_given_the_head_that_all_of_them_fitted(make_desk: Callable[..., Desk]) -> None:
    changes: dict[str, Any] = {"routing_fit": SHARED, "personal_head": FROM_SHARED}
    world = world_of(make_desk, 4, **changes)
    workers = {name: Watching() for name in world.houses}
    for name, house in world.houses.items():
        house.worker = workers[name]  # type: ignore[assignment]
    world.run()
    plan, layout = world.trial.plan, layout_of(world.trial.plan)
    terms, state = fit_terms(plan), world.job.model
    weight, bias = target_head(terms, Parts.of(plan, layout, state).fit)
    assert weight.any()
    shared_size = len(answering_model(plan, layout, state)) - weight.size - bias.size
    for worker in workers.values():
        (asked,) = worker.asked
        assert asked.model.shape == (shared_size,)
        assert asked.shared is not None
        assert (np.ldexp(asked.shared.weight, MODEL_FRACTION_BITS) == weight).all()
        assert (np.ldexp(asked.shared.bias, MODEL_FRACTION_BITS) == bias).all()


@pytest.mark.parametrize("start", ["trained", "shared"])
def test_a_silo_tunes_from_what_its_plan_says(tmp_path: Path, start: str) -> None:
    """At a learning rate of next to nothing a head stays where it begins."""
    pytest.importorskip("opacus", reason="the silo extra is not installed")
    init_member(tmp_path / "alpha", "alpha", Role.SILO)
    home = Home(tmp_path / "alpha")
    (home.local / "data.toml").write_text('records = "records.csv"\npatient = "id"\npublic_size = 20\n')
    (home.local / "records.csv").write_text(ROWS)
    shop = Workshop(home, "alpha", 1, os.urandom, lambda digest, _: digest, bytes(32))
    plan = Plan.model_validate(
        plan_document(routing_fit=SHARED, personal_head={**HEAD, "learning_rate": 1e-9, "start": start})
    )
    layout, name = layout_of(plan), bytes(32)
    shop.read(LoadData(name, plan))
    model, personal = initial_model(layout, name), initial_personal(layout, name)
    shared = SharedHead(np.array([[4.0, 0.0, -2.0], [0.0, 2.0, 6.0]]), np.array([-4.0, 8.0]), 0.7, 0.3)
    tuned = shop.tune(Tune(name, plan, 20, model, personal, shared), threading.Event())
    assert isinstance(tuned, Tuned)
    halved = np.concatenate([shared.weight.reshape(-1), shared.bias]) / 2
    expected = halved * 2.0**MODEL_FRACTION_BITS if start == "shared" else personal
    assert np.abs(tuned.personal - expected).max() < 64
