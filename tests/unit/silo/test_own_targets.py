"""A silo whose own model answers other classes: from the plan to the sums, in which nothing of it shows."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from silo_harness import NAMES, House, Trial, plan_document

from feddrm.contract.home import init_member
from feddrm.contract.identity import Role
from feddrm.contract.messages import JobOffer
from feddrm.contract.plan import Plan
from feddrm.contract.policy import Policy, objections
from feddrm.method.layout import initial_model, initial_personal, layout_of
from feddrm.method.model import Predictor
from feddrm.method.progress import initial_state
from silo.effects import Contribute, Contributed, DataLoaded, DataRefused, LoadData, Train, Trained, Tune, Tuned
from silo.home import Home
from silo.workshop import Workshop

STAGE: dict[str, Any] = {"kind": "classes", "column": "stage", "values": ["I", "II", "III"]}
FIT: dict[str, Any] = {
    "sums": 1,
    "noise_multiplier": 8.0,
    "step_size": 1.0,
    "public_sizes": dict.fromkeys(NAMES, 20),
}
HEAD: dict[str, Any] = {"steps": 4, "sampling_rate": 0.5, "noise_multiplier": 0.3, "learning_rate": 0.5}
EVALUATION: dict[str, Any] = {"noise_multiplier": 0.3, "noise": "local", "held_out": 0.5}
ROWS = "id,a,y,stage\n" + "".join(f"p{i},{i / 60:.3f},{i % 2},{('I', 'II', 'III')[i // 20]}\n" for i in range(60))


def own(**changes: Any) -> dict[str, Any]:
    return {
        "own_targets": {"alpha": STAGE},
        "routing_fit": FIT,
        "personal_head": HEAD,
        "evaluation": EVALUATION,
    } | changes


def test_only_the_target_head_of_that_silo_differs() -> None:
    plan = Plan.model_validate(plan_document(**own()))
    plain = Plan.model_validate(plan_document(routing_fit=FIT, personal_head=HEAD, evaluation=EVALUATION))
    assert plan.at("beta") is plan
    assert plan.at("alpha").schema_.target.classes == ("I", "II", "III")
    assert plan.schema_.target.classes == plan.at("beta").schema_.target.classes == ("no", "yes")
    mine, common = layout_of(plan.at("alpha")), layout_of(plan)
    assert common.fingerprint() == layout_of(plain).fingerprint() != mine.fingerprint()
    assert mine.of("shared") == common.of("shared")
    assert (mine.personal_size, common.personal_size) == (3 * 4, 2 * 4)
    assert np.array_equal(initial_model(mine, bytes(32)), initial_model(common, bytes(32)))
    # A plan in which no silo has one is signed in the words of before.
    assert b"own_targets" not in plain.body()
    assert Plan.model_validate_json(plan.body()).body() == plan.body()


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"own_targets": {"omega": STAGE}}, "own_targets.omega: is none of the plan's silos"),
        ({"own_targets": {"alpha": STAGE | {"column": "a"}}}, "own_targets.alpha: .*target a may not be a feature"),
        ({"own_targets": {"alpha": STAGE | {"values": ["I", "I"]}}}, "values must differ"),
        (
            {"own_targets": {"alpha": STAGE}, "model": {"kind": "mlp", "hidden": [3], "personal": []}},
            "own_targets.alpha: the target head is shared",
        ),
    ],
)
def test_unsound_own_targets_are_refused(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Plan.model_validate(plan_document(**sections))


def test_a_hospital_allows_a_target_of_its_own_or_declines(tmp_path: Path) -> None:
    trial = Trial.make(own_targets={"alpha": STAGE})
    houses = {name: House(trial, name, tmp_path / name, trial.policy()) for name in ("alpha", "beta")}
    try:
        for house in houses.values():
            house.handle(JobOffer(trial.signed_plan.signed))
        assert houses["beta"].state.job(trial.plan_hash) is not None
        assert houses["alpha"].state.job(trial.plan_hash) is None
        declined = houses["alpha"].state.noted("declined")
        assert declined is not None
        assert "stage as I, II, III, and jobs.own_target is not true" in declined["detail"]
        allowing = Policy.model_validate(
            {
                **trial.policy().model_dump(),
                "jobs": {**trial.policy().jobs.model_dump(), "own_target": True},
            }
        )
        assert objections(allowing, trial.plan, 1.0, 1.0, operator=trial.roster.operator, silo="alpha") == ()
        houses["alpha"].policy = allowing
        houses["alpha"].handle(JobOffer(trial.signed_plan.signed))
        for name, size in (("alpha", 12), ("beta", 8)):
            personal = houses[name].state.personal(trial.plan_hash)
            assert personal is not None
            assert len(personal[1]) == size
    finally:
        for house in houses.values():
            house.die()


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    init_member(tmp_path / "alpha", "alpha", Role.SILO)
    home = Home(tmp_path / "alpha")
    (home.local / "data.toml").write_text('records = "records.csv"\npatient = "id"\npublic_size = 20\n')
    (home.local / "records.csv").write_text(ROWS)
    return Workshop(home, "alpha", 1, os.urandom, lambda digest, _: digest, bytes(32))


def test_a_silo_trains_tunes_and_evaluates_by_its_own_classes(shop: Workshop) -> None:
    trial = Trial.make(**own())
    plan, name = trial.plan, trial.plan_hash
    mine = layout_of(plan.at("alpha"))
    assert isinstance(shop.read(LoadData(name, plan)), DataLoaded)
    model, personal = initial_model(layout_of(plan), name), initial_personal(mine, name)
    trained = shop.round(Train(name, plan, 1, 20, model, personal), threading.Event())
    assert isinstance(trained, Trained)
    assert (len(trained.update), len(trained.personal)) == (layout_of(plan).shared_size, 12)
    tuned = shop.tune(Tune(name, plan, 20, model, trained.personal), threading.Event())
    assert isinstance(tuned, Tuned)
    assert len(tuned.personal) == 12
    assert not np.array_equal(tuned.personal, trained.personal)
    # A head that always says "II" is right about a third of the patients, by the silo's own classes.
    heads = np.zeros(12, np.int64)
    heads[-3:] = np.array([0, 1 << 24, 0])
    state = initial_state(plan, layout_of(plan), name)
    counted = shop.contribute(Contribute(name, plan, 4, plan.training.rounds + 2, state, heads))
    assert isinstance(counted, Contributed)
    count, right, _, _ = (entry / 2**16 for entry in counted.words)
    assert 0.1 < right / count < 0.6
    answer = Predictor(plan.at("alpha"), model, tuned.personal).predict(np.zeros((1, 2), np.float32))
    assert answer.probabilities.shape == (1, 3)


def test_a_table_without_the_silo_s_own_column_is_refused(shop: Workshop, tmp_path: Path) -> None:
    trial = Trial.make(**own())
    (tmp_path / "alpha" / "local" / "records.csv").write_text("id,a,y\np,0.5,1\n")
    refused = shop.read(LoadData(trial.plan_hash, trial.plan))
    assert isinstance(refused, DataRefused)
    assert "stage" in refused.detail
