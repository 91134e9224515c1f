from __future__ import annotations

import json
from pathlib import Path

import pytest
import rfc8785
from pydantic import ValidationError

from feddrm.contract.documents import canonical, parse_body
from feddrm.contract.errors import InputError, MalformedError
from feddrm.contract.files import load_document
from feddrm.contract.plan import Plan
from feddrm.contract.policy import Policy

POLICY_ERRORS = [
    ("[budget]\njob_epsilom = 3", "unknown key budget.job_epsilom. Did you mean job_epsilon?"),
    ("[budgets]\njob_epsilon = 3", "unknown key budgets. Did you mean budget?"),
    ("[budget]\nzzz = 3", "unknown key budget.zzz. Remove budget.zzz"),
    ("[budget]\njob_epsilon = -3", "budget.job_epsilon must be at least 0"),
    ('[budget]\njob_epsilon = "3"', "budget.job_epsilon must be a number"),
    ("[budget]\njob_epsilon = true", "budget.job_epsilon must be a number"),
    ("[budget]\njob_epsilon = inf", "budget.job_epsilon must be"),
    ("[budget]\njob_epsilon = nan", "budget.job_epsilon must be a finite number"),
    ("[budget]\nlife_delta = 1.0", "budget.life_delta must be below 1"),
    ("[budget]\nrounds_without_release = 1.5", "budget.rounds_without_release must be a whole number"),
    ("budget = 3", "budget must be a table"),
    ("[jobs]\nmodels = 'mlp'", "jobs.models must be a list in square brackets"),
    ("[jobs]\nmodels = ['mlp', 3]", "jobs.models[2] must be a text in quotes"),
    ("[jobs]\noperators = ['zz']", "jobs.operators[1]: must be 64 hexadecimal digits"),
    ("[jobs]\nevaluation = 1", "jobs.evaluation must be true or false"),
    ("[jobs]\nevaluation = 2020-01-01", "dates and times are not used"),
    ("[jobs\n", "is not valid TOML"),
    ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ("[jobs]\nmodels = []\nmodels = []", "is not valid TOML"),
]


@pytest.mark.parametrize(("text", "message"), POLICY_ERRORS)
def test_errors_name_file_key_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_document(path, Policy)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    for jargon in ("pydantic", "Input should", "type=", "validation error", "Value error"):
        assert jargon not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds = 3", "", "key training.rounds is missing. Add training.rounds."),
        ("rounds = 3", "rounds = 3\nround = 4", "unknown key training.round. Did you mean"),
        ('kind = "mlp"', 'kind = "resnet"', "model.kind must be one of 'mlp', 'linear'"),
        ('kind = "numeric"', 'kind = "number"', "schema.columns[1].kind must be one of"),
        ('kind = "numeric"\n', "", "key schema.columns[1].kind is missing"),
        ("lower = 0", "lower = 5", "schema.columns[1]: column x: lower must be below upper"),
        ("upper = 1", "uper = 1", "unknown key schema.columns[1].uper (and "),
        ('"a", "b", "c"', '"a", "b"', "silos must have at least 3 entries"),
        ('"a", "b", "c"', '"a", "b", "../c"', "silos[3]: must be 1 to 32 characters"),
        ("threshold = 3", "threshold = 1", "secure_aggregation.threshold must be at least 2"),
        ("fraction_bits = 20", "fraction_bits = 29", "would wrap; lower fraction_bits or clip"),
    ],
)
def test_errors_in_a_plan(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = """
federation = "retina"
name = "first"
roster_version = 1
silos = ["a", "b", "c"]
[schema]
patient = "id"
target = {kind = "threshold", column = "y", operator = ">", value = 0.0, labels = ["no", "yes"]}
[[schema.columns]]
kind = "numeric"
name = "x"
lower = 0
upper = 1
[model]
kind = "mlp"
hidden = [4]
[training]
rounds = 3
local_steps = 1
sampling_rate = 0.1
clip_norm = 1
noise_multiplier = 1.0
target_weight = 0.5
learning_rate = 0.1
[privacy]
delta = 1e-5
[secure_aggregation]
threshold = 3
minimum_cohort = 3
colluders = 1
clip = 1
fraction_bits = 20
"""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    assert load_document(path, Plan).training.rounds == 3
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_document(path, Plan)
    assert message in str(caught.value)


def test_only_the_one_canonical_form_of_a_body_is_accepted(plan: Plan) -> None:
    body = plan.body()
    assert parse_body(body, Plan, what="The plan") == plan
    assert canonical(plan) == body
    variants = [
        body + b" ",
        b" " + body,
        body[:-1] + b',"name":"second"}',
        body.replace(b'"clip":1,', b'"clip":1.0,'),
        body.replace(b'"clip":1,', b'"clip":1e0,'),
        body.replace(b'"name":"first"', b'"name":"\\u0066irst"'),
        b"\xff",
        b"",
        b"NaN",
        b"[" * 100_000,
        b"9" * 5000,
        body.replace(b'"rounds":10', b'"rounds":"10"'),
        body.replace(b'"rounds":10', b'"rounds":10,"roundz":10'),
    ]
    for variant in variants:
        assert variant != body
        with pytest.raises(MalformedError, match="The plan"):
            parse_body(variant, Plan, what="The plan")


def means(raw: object) -> Plan | None:
    """What a lenient reader would take a body for."""
    try:
        return Plan.model_validate_json(json.dumps(raw), strict=True)
    except ValidationError:
        return None


def test_a_signed_body_leaves_nothing_to_defaults(plan: Plan) -> None:
    """Two signed texts would mean the same, and a default that changes would change what an old signature means."""
    raw = json.loads(plan.body())
    shorter = [{name: raw[name] for name in raw if name != key} for key in raw]
    tables = {key: value for key, value in raw.items() if isinstance(value, dict)}
    shorter += [
        {**raw, key: {name: table[name] for name in table if name != inner}}
        for key, table in tables.items()
        for inner in table
    ]
    same = [text for text in shorter if means(text) == plan]
    assert same, "no key of a plan has a default"
    for text in same:
        with pytest.raises(MalformedError, match="defaults"):
            parse_body(rfc8785.dumps(text), Plan, what="The plan")
