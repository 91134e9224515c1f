"""A small plan, and the keys and the roster of a whole federation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from small_plan import plan_document

from feddrm.contract.identity import MemberKeys, sign_sealing_key
from feddrm.contract.plan import Plan
from feddrm.contract.roster import Member, Roster, sign_roster
from feddrm.contract.signed_plan import SignedPlan, sign_plan

DAY_MS = 86_400_000


START_MS = 1_800_000_000_000


def entropy_of(*context: object) -> Callable[[int], bytes]:
    counter = 0

    def draw(size: int) -> bytes:
        nonlocal counter
        counter += 1
        return hashlib.shake_256(repr((context, counter)).encode()).digest(size)

    return draw


def make_plan(silos: Iterable[str], **changes: Any) -> Plan:
    own: dict[str, Any] = {
        "schema__columns": [{"kind": "numeric", "name": "age", "lower": 0.0, "upper": 100.0}],
        "model__hidden": [3],
        "training__rounds": 2,
        "training__local_steps": 1,
        "training__sampling_rate": 0.1,
        "training__noise_multiplier": 1.0,
        "secure_aggregation__threshold": 4,
        "deadlines": {"gather_seconds": 10.0, "train_seconds": 100.0, "step_seconds": 20.0},
    }
    return Plan.model_validate(plan_document(silos, **(own | changes)))


@dataclass
class Identities:
    """Keys of a whole federation."""

    names: tuple[str, ...]
    version: int = 1
    operator: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    round_key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    keys: dict[str, MemberKeys] = field(init=False)
    roster: Roster = field(init=False)

    def __post_init__(self) -> None:
        self.keys = {name: MemberKeys.generate() for name in self.names}
        self.roster = self.make_roster(self.version)

    def make_roster(self, version: int) -> Roster:
        members = tuple(
            Member(
                name=name,
                role="silo",
                identity=keys.identity_public,
                sealing=keys.sealing.public(),
                sealing_signature=sign_sealing_key(keys.identity, name, keys.sealing.public()),
                certificate=hashlib.sha256(name.encode()).digest(),
            )
            for name, keys in self.keys.items()
        )
        return Roster(
            federation="retina",
            version=version,
            issued_ms=START_MS - DAY_MS,
            expires_ms=START_MS + 300 * DAY_MS,
            operator=self.operator.public_key().public_bytes_raw(),
            round_key=self.round_key.public_key().public_bytes_raw(),
            members=members,
        )

    @property
    def signed_roster(self) -> Any:
        return sign_roster(self.roster, self.operator)

    def sign(self, plan: Plan) -> SignedPlan:
        return sign_plan(plan, self.operator)
