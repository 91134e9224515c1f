"""Nothing that a coordinator sends reaches a hospital's caps."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from silo_harness import Desk

import silo
from feddrm.contract.charge import charge
from feddrm.contract.messages import JobOffer
from feddrm.contract.plan import Plan as PlanBody
from privacy.leaves import Plan
from silo.books import caps_of

# Caps are made from a policy in one place; the agent reads the file at its start and before each offer and round
# (permission.py); `status` reads it.
PLACES = {
    ("books.py", "Caps"),
    ("books.py", "caps_of"),
    ("books.py", "set_caps"),
    ("permission.py", "set_caps"),
    ("assembly.py", "caps_of"),
    ("report.py", "caps_of"),
}


def test_caps_come_from_the_policy_alone() -> None:
    """Where caps are made, and where they are set, in all of the agent's sources: from a `Policy`, whose only source is
    the hospital's file. A further place must be added here, by somebody who has looked at it."""
    found: set[tuple[str, str]] = set()
    for path in Path(silo.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                function = node.func
                name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
                if name in ("Caps", "caps_of", "set_caps"):
                    found.add((path.name, name))
    assert found == PLACES


def test_a_plan_that_brings_caps_of_its_own_is_no_plan(desk: Desk) -> None:
    fields = desk.trial.plan.model_dump(mode="json", by_alias=True)
    for where in (fields, fields["privacy"], fields["training"]):
        for name in ("job_epsilon", "life_epsilon", "caps", "rounds_without_release"):
            where[name] = 1e5
            with pytest.raises(ValueError, match=name):
                PlanBody.model_validate(fields)
            del where[name]
    PlanBody.model_validate(fields)


def test_whatever_is_offered_the_ledger_names_the_hospitals_own_caps(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    alpha = desk.houses["alpha"]
    alpha.policy = desk.trial.policy(life_epsilon=charge(desk.trial.plan).epsilon)
    alpha.handle(JobOffer(desk.trial.signed_plan.signed))
    leaves = [record.leaf for record in alpha.ledger.leaves() if isinstance(record.leaf, Plan)]
    assert [leaf.caps for leaf in leaves] == [caps_of(alpha.policy)]
