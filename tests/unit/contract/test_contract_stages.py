"""Plans with later stages: their numbering, what they cost, and which are refused before anybody signs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from feddrm.contract import stages
from feddrm.contract.announce import parameters
from feddrm.contract.charge import charge, round_event, stage_events
from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.plan import Plan
from feddrm.contract.policy import Policy, objections
from feddrm.contract.release import Counts, Reached, make_statement
from feddrm.contract.schedule import (
    STAGE_EVALUATE,
    STAGE_PERSONAL,
    STAGE_ROUTING,
    STAGE_TRAIN,
    describe,
    last_round,
    place_of_tuning,
    rounds_of,
    stage_of,
)
from feddrm.contract.signed_plan import SignedPlan
from feddrm.contract.stages import fit_sensitivity
from feddrm.demo import rand
from feddrm.method import evaluation, routing_fit
from feddrm.method.progress import fit_terms
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian


def document(**sections: Any) -> dict[str, Any]:
    raw = rand.plan_document("rand", 1)
    for name, changes in sections.items():
        raw[name] = None if changes is None else {**raw[name], **changes}
    return {name: section for name, section in raw.items() if section is not None}


def plan_of(**sections: Any) -> Plan:
    return Plan.model_validate(document(**sections))


def test_rounds_are_numbered_through_all_stages() -> None:
    plan = plan_of(training={"rounds": 20}, routing_fit={"sums": 30})
    assert [len(rounds_of(plan, stage)) for stage in range(1, 6)] == [20, 30, 1, 2, 0]
    assert last_round(plan) == 52
    assert last_round(plan_of(training={"rounds": 20}, routing_fit={"sums": 30}, evaluation={"attempts": 1})) == 51
    assert [stage_of(plan, number) for number in (1, 20, 21, 50, 51, 52)] == [1, 1, 2, 2, 4, 4]
    assert place_of_tuning(plan) == rounds_of(plan, STAGE_PERSONAL).start == 51
    assert describe(plan, 21) == "round 21 (routing fit, 1 of 30)"
    assert describe(plan, 51) == "round 51 (evaluation)"
    assert describe(plan, 52) == "round 52 (evaluation, tried again)"
    for number in (0, 53):
        with pytest.raises(ValueError, match="no round"):
            stage_of(plan, number)
    training = plan_of(routing_fit=None, personal_head=None, evaluation=None)
    assert (last_round(training), describe(training, 3)) == (20, "round 3")


def test_a_stage_that_does_not_run_leaves_no_key_in_what_is_signed() -> None:
    """Plans that were written before a stage existed keep their hash."""
    plain = plan_of(routing_fit=None, personal_head=None, evaluation=None)
    assert not any(name in plain.body() for name in (b"routing_fit", b"personal_head", b"evaluation"))
    assert parameters(plain) != parameters(plan_of())


def test_the_noise_in_shares_counts_the_smallest_sum_less_the_colluders() -> None:
    plan = plan_of()
    event = round_event(plan, STAGE_ROUTING)
    assert isinstance(event, DistributedDiscreteGaussian)
    # Six silos, threshold 5, one colluder.
    assert event.shares == 4
    assert event.dimension == plan.fit_entries == (6 + 2) * 17
    assert event.sensitivity == fit_sensitivity(8 * 17, 16, 0.5) == fit_terms(plan).sensitivity
    assert isinstance(round_event(plan_of(routing_fit={"noise": "local"}), STAGE_ROUTING), LocalDiscreteGaussian)
    assert evaluation.SENSITIVITY == stages.EVALUATION_SENSITIVITY
    assert (evaluation.WORDS, evaluation.FRACTION_BITS) == (stages.EVALUATION_WORDS, stages.EVALUATION_FRACTION_BITS)
    assert routing_fit.bound(fit_terms(plan), 1000, event.scale) == stages.entry_bound(event, 1000)


def test_stages_compose_to_less_than_the_sum_of_them() -> None:
    plan = plan_of()
    whole = charge(plan)
    alone = [charge(plan, stage) for stage, _ in stage_events(plan)]
    assert [stage for stage, _ in stage_events(plan)] == [STAGE_TRAIN, STAGE_ROUTING, STAGE_PERSONAL, STAGE_EVALUATE]
    assert max(one.epsilon for one in alone) < whole.epsilon < sum(one.epsilon for one in alone)
    assert whole.epsilon < whole.epsilon_alone
    local = charge(plan_of(routing_fit={"noise": "local"}, evaluation={"noise": "local"}))
    assert local.epsilon == pytest.approx(local.epsilon_alone)


def test_what_works_on_noised_heads_is_signed_and_charges_nothing() -> None:
    plain = plan_of()
    assert plain.personal_head is not None
    same = plan_of(personal_head={"momentum": 0.0, "average_from": None})
    assert same.body() == plain.body()
    assert not {"momentum", "average_from"} & set(json.loads(plain.body())["personal_head"])
    shaped = plan_of(personal_head={"momentum": 0.8, "average_from": plain.personal_head.steps})
    assert shaped.body() != plain.body()
    assert charge(shaped).events == charge(plain).events


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"routing_fit": {"fraction_bits": 24, "largest_silo": 1_000_000}}, "2\\*\\*40 is the most that is summed"),
        ({"evaluation": {"largest_silo": 100_000_000}}, "2\\*\\*40 is the most that is summed"),
        ({"personal_head": {"steps": 20, "average_from": 21}}, "average_from: exceeds the 20 steps"),
        ({"personal_head": {"average_from": 0}}, "greater than or equal to 1"),
        ({"personal_head": {"momentum": 1.0}}, "less than or equal to 0.999"),
        ({"routing_fit": {"public_sizes": {"site-1": 10, "site-2": 10, "site-3": 10}}}, "every silo's public size"),
        ({"routing_fit": {"average_from": 31}}, "average_from: exceeds"),
        ({"routing_fit": {"minimum_sums": 31}}, "minimum_sums: exceeds"),
        ({"routing_fit": {"sums": 201}}, "less than or equal to 200"),
        ({"training": {"rounds": 9999}}, "at most 10000 rounds"),
        ({"personal_head": {"steps": 99_999}, "training": {"rounds": 9000, "local_steps": 105}}, "personal_head.steps"),
    ],
)
def test_unsound_stages_are_refused(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        plan_of(**sections)


@pytest.mark.parametrize("key", ["routing_fit", "personal_head", "evaluation"])
def test_a_policy_must_allow_every_stage(key: str) -> None:
    allowed = {
        "budget": dict.fromkeys(("job_epsilon", "job_epsilon_alone", "life_epsilon", "life_epsilon_alone"), 9.0)
        | {"job_delta": 1e-4, "life_delta": 1e-4, "rounds_without_release": 3},
        "jobs": {
            "operators": ["ab" * 32],
            "models": ["mlp", "linear"],
            "smallest_cohort": 3,
            "colluders": 1,
            "routing_fit": True,
            "personal_head": True,
            "evaluation": True,
        },
    }
    operator = bytes.fromhex("ab" * 32)
    assert objections(Policy.model_validate(allowed), plan_of(), 1.0, 1.0, operator=operator) == ()
    without = Policy.model_validate({**allowed, "jobs": {**allowed["jobs"], key: False}})
    (phrase,) = objections(without, plan_of(), 1.0, 1.0, operator=operator)
    assert f"jobs.{key}" in phrase
    linear = Plan.model_validate({**document(), "model": {"kind": "linear"}})
    (phrase,) = objections(Policy.model_validate(allowed), linear, 1.0, 1.0, operator=operator)
    assert "queries.linear" in phrase


def test_a_release_says_what_was_reached_and_needs_what_the_plan_requires() -> None:
    plan = plan_of()
    counts = Counts(silos=6, total=(1, 2, 3, 4))
    signed = SignedPlan(plan, bytes(32), None)  # type: ignore[arg-type]

    def statement(rounds: int, sums: int, figures: Counts | None) -> None:
        make_statement(
            signed, trunk=bytes(32), head=bytes(32), layout=bytes(32), rounds=rounds, sums=sums, evaluation=figures
        )

    statement(10, 15, counts)
    for short in ((9, 15, counts), (10, 14, counts), (10, 15, None)):
        with pytest.raises(VerificationError, match="a release requires"):
            statement(*short)
    for beyond in ((21, 30, counts), (20, 31, counts)):
        with pytest.raises((VerificationError, MalformedError)):
            statement(*beyond)
    assert Reached(9).shortfall(plan, up_to=STAGE_TRAIN)
    assert not Reached(10).shortfall(plan, up_to=STAGE_TRAIN)
    lenient = plan_of(evaluation={"required": False})
    assert Reached(10, 15).shortfall(lenient) == ""
