"""`plan check` says how much of a patient a query shows the coordinator, and warns when it is much."""

from __future__ import annotations

from typing import Any

import pytest
from coordinator_harness import make_plan

from aggregator.explain import explain
from feddrm.contract.plan import Plan
from feddrm.demo import rand

WARNING = "may be solved for the patient"


def plan_of(bits: int, hidden: tuple[int, ...], **changes: Any) -> Plan:
    names = ("site-1", "site-2", "site-3", "site-4")
    return make_plan(names, model={"kind": "mlp", "hidden": hidden}, queries={"embedding_bits": bits}, **changes)


@pytest.mark.parametrize(
    ("bits", "hidden", "total", "warned"),
    [
        (2, (16,), 32, False),
        (4, (16,), 64, False),
        (5, (13,), 65, True),
        (16, (300, 4), 64, False),
        (2, (48,), 96, True),
    ],
)
def test_plan_check_says_what_a_query_shows(bits: int, hidden: tuple[int, ...], total: int, warned: bool) -> None:
    meaning = explain(plan_of(bits, hidden), None)
    assert meaning.figures["query_bits"] == total
    assert f"at most {total} bits about the patient: {hidden[-1]} units of {bits}." in meaning.text()
    assert any(WARNING in warning for warning in meaning.warnings) is warned


@pytest.mark.parametrize(("factor", "said", "warned"), [(1.0, False, False), (0.7, True, False), (0.3, True, True)])
def test_plan_check_says_when_a_patient_is_shown_to_two_hospitals(factor: float, said: bool, warned: bool) -> None:
    names = ("site-1", "site-2", "site-3", "site-4")
    meaning = explain(make_plan(names, queries={"second_opinion": factor}), None)
    assert meaning.figures["second_opinion"] == factor
    assert (f"more than {factor:g} of the best one's" in meaning.text()) is said
    assert any("clearly second" in warning for warning in meaning.warnings) is warned


def test_few_bits_are_many_where_few_records_are_possible() -> None:
    """Three columns of two categories and a gap each: 4.75 bits name a record."""
    schema = {
        "patient": "id",
        "target": {"kind": "threshold", "column": "y", "operator": ">", "value": 0.0, "labels": ("no", "yes")},
        "columns": tuple({"kind": "categorical", "name": name, "categories": ("0", "1")} for name in "abc"),
    }
    assert any(WARNING in warning for warning in explain(plan_of(1, (5,), schema=schema), None).warnings)
    assert not any(WARNING in warning for warning in explain(plan_of(1, (4,), schema=schema), None).warnings)


def test_the_demo_is_not_warned_of() -> None:
    meaning = explain(Plan.model_validate(rand.plan_document("rand", 1)), None)
    assert meaning.figures["query_bits"] == 32
    assert meaning.warnings == ()


def test_plan_check_says_who_answers_by_classes_of_its_own_and_who_must_sign_a_linear_model() -> None:
    target = {"kind": "classes", "column": "stage", "values": ["I", "II"]}
    text = explain(plan_of(2, (16,), own_targets={"site-2": target}), None).text()
    assert "site-2 answers by classes of its own (I, II; column stage), if it allows it." in text
    names = ("site-1", "site-2", "site-3", "site-4")
    linear = explain(make_plan(names, model={"kind": "linear"}), None)
    assert any("needs the signature of every silo" in warning for warning in linear.warnings)
