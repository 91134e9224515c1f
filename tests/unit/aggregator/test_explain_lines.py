"""`plan check` says which hospitals' lines are too slow for the model and the deadline of a step."""

from __future__ import annotations

import pytest
from coordinator_harness import make_plan

from aggregator.explain import explain
from feddrm.contract.plan import Plan
from feddrm.demo import rand


@pytest.mark.parametrize(
    ("hidden", "step_seconds", "warned"),
    [
        ((16,), 1.0, False),
        # 25 million parameters, 100 MB: at 10 Mbit/s 80 seconds, and TLS and HTTP/2 beside.
        ((4096, 4096, 1990), 60.0, True),
        ((4096, 4096, 1990), 80.0, True),
        ((4096, 4096, 1990), 90.0, False),
    ],
)
def test_a_model_too_large_for_its_step_is_warned_of(
    hidden: tuple[int, ...], step_seconds: float, warned: bool
) -> None:
    plan = make_plan(
        ("site-1", "site-2", "site-3", "site-4"),
        model={"kind": "mlp", "hidden": hidden},
        deadlines={"gather_seconds": 10.0, "train_seconds": 100.0, "step_seconds": step_seconds},
    )
    meaning = explain(plan, None)
    found = [warning for warning in meaning.warnings if "Mbit/s" in warning]
    assert bool(found) is warned
    needed = meaning.figures["upload_bytes_per_round"] * 8 / step_seconds / 1e6
    assert needed < meaning.figures["upload_line_mbit"] < 1.2 * needed
    if warned:
        assert f"step_seconds = {step_seconds:g}" in found[0]


@pytest.mark.parametrize("shared", [False, True])
def test_a_target_head_of_all_silos_is_spelt_out(shared: bool) -> None:
    document = rand.plan_document("rand", 1)
    document["routing_fit"]["shared_target"] = shared
    text = explain(Plan.model_validate(document), None).text()
    assert ("makes one target head for all silos" in text) is shared
    assert ("0.7 of an answer to a querier and 0.3 of one about a silo's own patient" in text) is shared


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (None, None),
        ({"anchor_round": 3, "tensors": ["target_head.*"]}, "where they stand after 3 published rounds, in the 17"),
        ({}, "to an average of the last 16 published models"),
    ],
)
def test_what_consolidation_holds_is_spelt_out(terms: dict[str, object] | None, said: str | None) -> None:
    document = rand.plan_document("rand", 1)
    document["model"]["personal"] = []
    if terms is not None:
        document["training"]["ewc"] = {"strength": 0.001, **terms}
    text = explain(Plan.model_validate(document), None).text()
    assert ("Consolidation" in text) is (said is not None)
    if said is not None and terms is not None:
        assert said in text
        assert "target_head.weight" in text
        assert ("trunk.0.weight" in text) is ("tensors" not in terms)


def test_consolidation_that_holds_nothing_says_so() -> None:
    document = rand.plan_document("rand", 1)
    document["model"]["personal"] = ["trunk.*", "target_head.*"]
    document["training"]["ewc"] = {"strength": 0.001}
    assert "Consolidation holds nothing" in explain(Plan.model_validate(document), None).text()
