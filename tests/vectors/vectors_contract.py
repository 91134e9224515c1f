"""The signed JSON documents around a round, as the packages make them: plan, announcement, ack, lost round, release."""

from __future__ import annotations

import hashlib
from typing import Any

from vectors_inputs import COORDINATOR_NAME, identity, xof

from feddrm.contract import labels
from feddrm.contract.announce import NO_PREVIOUS, Place, announcement_of, outcome_hash
from feddrm.contract.documents import validate
from feddrm.contract.messages import RoundOutcome
from feddrm.contract.plan import Plan
from feddrm.contract.release import make_statement, release_hash, sign_statement
from feddrm.contract.rounds import Ack, Lost, sign_ack, sign_lost
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import sign_plan

FORMAT = "feddrm contract vectors 1"
SILOS = ("silo-0", "silo-1", "silo-2")
OPERATOR = "operator"
WORDS32 = 1234

Json = dict[str, Any]

PLAN: Json = {
    "federation": "vectors",
    "name": "first-job",
    "roster_version": 2,
    "silos": list(SILOS),
    "model": {"kind": "mlp", "hidden": [4]},
    "training": {
        "rounds": 2, "local_steps": 3, "sampling_rate": 0.1, "clip_norm": 0.5, "noise_multiplier": 4.5,
        "target_weight": 0.55, "learning_rate": 4.0, "server_learning_rate": 1.0, "minimum_rounds": 1,
    },
    "privacy": {"delta": 1e-5},
    "secure_aggregation": {
        "threshold": 3, "minimum_cohort": 3, "colluders": 1, "clip": 4.0, "fraction_bits": 24,
    },
    "queries": {"embedding_bits": 2},
    "deadlines": {"gather_seconds": 60, "train_seconds": 3600, "step_seconds": 60},
    "schema": {
        "patient": "person_id",
        "target": {"kind": "threshold", "column": "pressure", "operator": ">", "value": 140, "labels": ["no", "yes"]},
        "columns": [
            {"kind": "numeric", "name": "age", "lower": 0, "upper": 110},
            {"kind": "categorical", "name": "sex", "categories": ["f", "m"], "missing": ["", "?"]},
        ],
    },
}  # fmt: skip


def field_hash(name: str) -> bytes:
    """What stands for a hash of something that is not in the file."""
    return hashlib.sha256(name.encode()).digest()


def signed_json(label: str, documents: dict[str, Signed]) -> Json:
    """One body and who signed it; the label by its name in feddrm/contract/labels.py."""
    bodies = {signed.body for signed in documents.values()}
    if len(bodies) != 1:
        raise AssertionError(f"{label}: signers of one document signed different bodies")
    return {
        "label": label,
        "signed_under": vars(labels)[label].decode(),
        "body": bodies.pop().decode(),
        "signatures": {name: signed.signatures[0].signature.hex() for name, signed in documents.items()},
    }


def contract_json() -> Json:
    """One file."""
    plan = sign_plan(validate(PLAN, Plan), identity(OPERATOR))
    ack = Ack(
        plan=plan.hash,
        round=1,
        session=field_hash("session"),
        sum=field_hash("sum"),
        count=3,
        model=field_hash("model"),
    )
    acks = {name: sign_ack(ack, identity(name)) for name in SILOS}
    lost = sign_lost(Lost(plan=plan.hash, round=1, reason="nobody came"), identity(COORDINATOR_NAME))
    ends = {
        "none": NO_PREVIOUS,
        "acknowledged": outcome_hash(RoundOutcome(1, tuple(acks.values()), ack.sum)),
        "lost": outcome_hash(RoundOutcome(1, lost=lost)),
    }
    statement = make_statement(
        plan, trunk=field_hash("trunk"), head=field_hash("head"), layout=field_hash("layout"), rounds=2
    )
    released = {name: sign_statement(statement.body(), identity(name)) for name in SILOS}
    return {
        "format": FORMAT,
        "about": "A plan, the announcements of its rounds, and how a round and the job may end.",
        "identities": {
            name: {
                "private": identity(name).private_bytes_raw().hex(),
                "public": identity(name).public_key().public_bytes_raw().hex(),
            }
            for name in (OPERATOR, COORDINATOR_NAME, *SILOS)
        },
        "plan": signed_json("PLAN", {OPERATOR: plan.signed}) | {"hash": plan.hash.hex()},
        "ack": signed_json("ROUND_ACK", acks) | {"previous": ends["acknowledged"].hex()},
        "lost": signed_json("ROUND_LOST", {COORDINATOR_NAME: lost}) | {"previous": ends["lost"].hex()},
        "announcements": [announced(plan.plan, plan.hash, previous, end) for previous, end in ends.items()],
        "release": signed_json("RELEASE", released) | {"hash": release_hash(released[SILOS[0]]).hex()},
    }


def announced(plan: Plan, plan_hash: bytes, previous: str, end: bytes) -> Json:
    """R0's body for the round after an outcome."""
    place = Place(
        plan=plan_hash,
        roster=field_hash("roster"),
        layout=field_hash("layout"),
        words32=WORDS32,
        round=1 if previous == "none" else 2,
        model=field_hash("model"),
        previous=end,
    )
    nonce = xof(f"contract/{previous}/nonce", 32)
    announcement = announcement_of(plan, place, attempt=1, cohort=SILOS, deadline_ms=1_700_000_000_000, nonce=nonce)
    return {"previous": previous, "words32": WORDS32, "nonce": nonce.hex(), "body": announcement.encode().hex()}
