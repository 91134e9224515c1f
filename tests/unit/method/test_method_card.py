"""The model card says what the signed plan and the signed statement say, and nothing that a column's name could add."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.charge import charge
from feddrm.contract.plan import Plan
from feddrm.contract.release import Counts, Release, make_statement, sign_statement
from feddrm.contract.signed_plan import sign_plan
from feddrm.demo import rand
from feddrm.method.card import figures_of, render_card

LARGE = Counts(silos=6, total=(1000 << 16, 700 << 16, 400 << 16, 300 << 16))


def released(counts: Counts | None = LARGE, **changes: Any) -> Release:
    plan = Plan.model_validate({**rand.plan_document("rand", 1), **changes})
    signed = sign_plan(plan, Ed25519PrivateKey.generate())
    sums = plan.routing_fit.sums if plan.routing_fit else 0
    statement = make_statement(
        signed,
        trunk=bytes(32),
        head=bytes(32),
        layout=bytes(32),
        rounds=plan.training.rounds,
        sums=sums,
        evaluation=counts,
    )
    return Release(signed, statement, sign_statement(statement.body(), Ed25519PrivateKey.generate()), 5)


def test_a_card_states_cost_stages_and_figures() -> None:
    release = released()
    card = render_card(release)
    plan = release.plan.plan
    cost = charge(plan)
    assert f"epsilon {cost.epsilon:.3f}" in card
    assert f"{cost.epsilon_alone:.3f}" in card
    assert "| a patient is routed to the own hospital | 0.400 |" in card
    assert "30 of 30 secure sums" in card
    for column in plan.schema_.columns:
        assert column.name in card
    assert release.plan.hash.hex() in card
    deviations = {figure.name: figure.deviation for figure in figures_of(plan, LARGE)}
    assert all(0 < deviation < 0.1 for deviation in deviations.values())


def test_a_card_says_whether_hospitals_answer_together() -> None:
    fit = rand.plan_document("rand", 1)["routing_fit"]
    for shared in (False, True):
        card = " ".join(render_card(released(routing_fit={**fit, "shared_target": shared})).split())
        assert ("together with a target head of all" in card) is shared
        assert ("0.7 of every answer to a querier, 0.3 of one about a hospital's own patient." in card) is shared


def test_a_card_says_whether_a_second_hospital_sees_the_record() -> None:
    for factor, found in ((0.7, True), (1.0, False)):
        card = render_card(released(queries={"second_opinion": factor}))
        assert ("where two hospitals are nearly tied, both of them" in card) is found
        assert "the chosen hospital the whole record" in card


def test_a_card_does_not_make_up_what_is_not_known() -> None:
    few = released(Counts(silos=6, total=(5 << 16, 4 << 16, 3 << 16, 2 << 16)))
    assert figures_of(few.plan.plan, few.statement.evaluation) == ()
    assert "too few held-out patients" in render_card(few)
    lost = released(None, evaluation={**rand.plan_document("rand", 1)["evaluation"], "required": False})
    assert "The evaluation was lost" in render_card(lost)
    assert "Nothing is known" in render_card(released(None, evaluation=None))


def test_what_an_operator_writes_is_text_and_no_markup() -> None:
    schema = rand.schema_document()
    schema["target"] = {**schema["target"], "labels": ["no | yes", "[yes](http://x.example)"]}
    card = render_card(released(schema=schema))
    assert "[yes](http" not in card
    assert "no | yes" not in card


def test_a_card_of_images_says_their_size_and_the_network() -> None:
    schema = rand.schema_document()
    del schema["columns"]
    schema["image"] = {"channels": 3, "height": 32, "width": 28, "lower": 0, "upper": 255}
    for model, words in (
        ({"kind": "lenet_gn"}, "lenet_gn, channels 6-16, hidden 120, units 84"),
        ({"kind": "resnet18_gn", "width": 16}, "resnet18_gn, width 16, units 128"),
        ({"kind": "mlp", "hidden": [32, 16]}, "mlp, hidden 32-16"),
    ):
        card = render_card(released(schema=schema, model=model))
        assert f"| model | {words} |" in card
        assert "| image | 3 channels of 32 x 28 pixels, 0 to 255 |" in card


def test_a_card_says_what_a_silo_with_classes_of_its_own_answers_and_how_many_signatures_it_takes() -> None:
    target = {"kind": "classes", "column": "sta|ge", "values": ["I", "II", "III"]}
    card = render_card(released(model={"kind": "mlp", "hidden": [16]}, own_targets={"site-4": target}))
    assert "| answers of site-4 | I / II / III (column sta\\|ge) |" in card
    assert "of which\n5 are needed" in card
    linear = render_card(released(model={"kind": "linear"}))
    assert "of which\n6 are needed" in linear
    assert "answers of" not in linear
