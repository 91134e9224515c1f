"""Keys, roster and plan of a federation of four silos."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Any

import small_plan
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.identity import MemberKeys, sign_sealing_key
from feddrm.contract.plan import Plan
from feddrm.contract.policy import Policy
from feddrm.contract.roster import Member, Roster, sign_roster
from feddrm.contract.signed_plan import SignedPlan, sign_plan

NAMES = ("alpha", "beta", "delta", "gamma")


NOW = 1_700_000_000_000


FEDERATION = "trial"


def entropy_of(seed: object) -> Any:
    """Reproducible bytes."""
    return random.Random(str(seed)).randbytes


def plan_document(**changes: object) -> dict[str, Any]:
    """A small plan of four silos; keyword arguments replace keys of its training section, or are sections."""
    names = ("routing_fit", "personal_head", "evaluation", "model", "own_targets")
    sections = {name: changes.pop(name) for name in names if name in changes}
    training = {"rounds": 4, "local_steps": 2, "sampling_rate": 0.1, "noise_multiplier": 4.0} | changes
    return small_plan.plan_document(
        NAMES,
        federation=FEDERATION,
        schema__columns=[{"kind": "numeric", "name": "a", "lower": 0.0, "upper": 1.0}],
        model__hidden=[3],
        **{f"training__{name}": value for name, value in training.items()},
        **sections,
    )


@dataclass
class Trial:
    """Keys, roster and plan of a federation of four silos."""

    operator: Ed25519PrivateKey
    round_key: Ed25519PrivateKey
    keys: dict[str, MemberKeys]
    querier: MemberKeys
    roster: Roster
    roster_signed: Any
    plan: Plan
    signed_plan: SignedPlan
    uploads: dict[bytes, bytes] = field(default_factory=dict)
    sums: dict[bytes, bytes] = field(default_factory=dict)

    @classmethod
    def make(cls, **training: object) -> Trial:
        """Fresh keys."""
        operator, round_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        keys = {name: MemberKeys.generate() for name in NAMES}
        querier = MemberKeys.generate()
        members = [_member(name, "silo", key) for name, key in keys.items()]
        members.append(_member("desk", "querier", querier))
        roster = Roster(
            federation=FEDERATION,
            version=1,
            issued_ms=NOW - 1000,
            expires_ms=NOW + 10**10,
            operator=operator.public_key().public_bytes_raw(),
            round_key=round_key.public_key().public_bytes_raw(),
            members=tuple(members),
        )
        plan = Plan.model_validate(plan_document(**training))
        return cls(
            operator, round_key, keys, querier, roster, sign_roster(roster, operator), plan, sign_plan(plan, operator)
        )

    @property
    def plan_hash(self) -> bytes:
        """Names the plan."""
        return self.signed_plan.hash

    def policy(self, **budget: object) -> Policy:
        """A policy that accepts the plan; keyword arguments replace keys of its budget."""
        return Policy.model_validate(
            {
                "budget": {
                    "job_epsilon": 5.0,
                    "job_epsilon_alone": 5.0,
                    "job_delta": 1e-4,
                    "life_epsilon": 10.0,
                    "life_epsilon_alone": 10.0,
                    "life_delta": 1e-3,
                    "rounds_without_release": 10,
                    **budget,
                },
                "jobs": {
                    "operators": [self.roster.operator.hex()],
                    "models": ["mlp"],
                    "smallest_cohort": 3,
                    "colluders": 1,
                    "routing_fit": True,
                    "personal_head": True,
                    "evaluation": True,
                },
                "queries": {"serve": True},
            }
        )


def _member(name: str, role: Any, keys: MemberKeys) -> Member:
    sealing = keys.sealing.public()
    return Member.model_validate(
        {
            "name": name,
            "role": role,
            "identity": keys.identity_public,
            "sealing": sealing,
            "sealing_signature": sign_sealing_key(keys.identity, name, sealing),
            "certificate": os.urandom(32),
        }
    )
