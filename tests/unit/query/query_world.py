"""A small federation for the querier's tests: real keys, certificates, roster, plan, release and TLS; its coordinator
does what a test tells it to, which the real one never would."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from small_plan import plan_document

from feddrm.contract import query_messages as q
from feddrm.contract.authority import Address, certificate_hash, create_authority, issue, pem
from feddrm.contract.chunks import blob_hash
from feddrm.contract.errors import FeddrmError
from feddrm.contract.home import QueryHome, init_member, join_member, load_query_home
from feddrm.contract.identity import Credentials, MemberKeys, Role, Subject, private_pem, sign_sealing_key
from feddrm.contract.kit import FederationRoot, make_kit
from feddrm.contract.plan import Plan
from feddrm.contract.release import make_statement, sign_statement
from feddrm.contract.roster import Member, Roster, sign_roster
from feddrm.contract.seal import AskContext, open_request, seal_answer
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import sign_plan
from feddrm.contract.tickets import Ticket, issue_ticket, ticket_hash
from feddrm.method.layout import initial_model, initial_personal, layout_of
from feddrm.method.model import Predictor
from feddrm.method.update import head_hash, trunk_hash, trunk_tensors

NAMES = ("hospital-a", "hospital-b", "hospital-c")
LABELS = ("condition-absent", "condition-present")
HERE = Address("127.0.0.1", 1)
ROWS = [(31.7, "f"), (64.2, "m"), (50.9, "f"), (12.3, "m")]
Run = Callable[..., tuple[int, Any, str]]


def now() -> int:
    return time.time_ns() // 1_000_000


def a_plan(**changes: Any) -> Plan:
    own: dict[str, Any] = {
        "schema__columns": [
            {"kind": "numeric", "name": "age", "lower": 0.0, "upper": 100.0},
            {"kind": "categorical", "name": "sex", "categories": ["f", "m"]},
        ],
        "schema__target": {"kind": "threshold", "column": "y", "operator": ">", "value": 0.0, "labels": list(LABELS)},
        "model__hidden": [7],
        "training__rounds": 2,
        "training__local_steps": 1,
        "training__sampling_rate": 0.1,
        "training__noise_multiplier": 1.0,
        "secure_aggregation__fraction_bits": 16,
    }
    return Plan.model_validate(plan_document(NAMES, **(own | changes)))


def a_member(name: str, role: Literal["silo", "querier"], keys: MemberKeys, certificate: bytes) -> Member:
    sealing = keys.sealing.public()
    return Member(
        name=name,
        role=role,
        identity=keys.identity_public,
        sealing=sealing,
        sealing_signature=sign_sealing_key(keys.identity, name, sealing),
        certificate=certificate,
    )


@dataclass
class World:
    """Everybody's keys. Tests change what is served (`offer`, `trunk`, `pick`, `on_ask` …) before they query."""

    directory: Path
    seen: list[bytes] = field(default_factory=list)
    fetches: int = 0
    in_service: bool = True
    hiccups: int = 0

    def __post_init__(self) -> None:
        self.operator, self.round_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        self.authority = create_authority("retina", now())
        self.silos = {name: MemberKeys.generate() for name in NAMES}
        self.querier = self.directory / "desk"
        init_member(self.querier, "desk", Role.QUERIER)
        desk = MemberKeys.load(self.querier / "keys")
        self.certificate = issue(self.authority, desk.tls.public_key(), Subject("retina", Role.QUERIER, "desk"), now())
        members = [a_member(n, "silo", k, hashlib.sha256(n.encode()).digest()) for n, k in self.silos.items()]
        members.append(a_member("desk", "querier", desk, certificate_hash(self.certificate)))
        self.roster = Roster(
            federation="retina",
            version=1,
            issued_ms=now(),
            expires_ms=now() + 86_400_000,
            operator=self.operator.public_key().public_bytes_raw(),
            round_key=self.round_key.public_key().public_bytes_raw(),
            members=tuple(members),
        )
        self.signed_roster = sign_roster(self.roster, self.operator)
        self.make_release()
        self.pick: Callable[[int, bytes], str | tuple[str, ...]] = lambda number, _: NAMES[number % 3]
        self.ticket: Callable[[Ticket], Signed] = lambda ticket: issue_ticket(ticket, self.round_key)
        self.rows: Callable[[list[q.RouteRow]], list[q.RouteRow]] = lambda rows: rows
        self.on_ask: Callable[[q.Ask], bytes] = self.answer
        self.routed = 0

    def make_release(self, plan: Plan | None = None) -> None:
        self.plan = sign_plan(plan or a_plan(), self.operator)
        layout = layout_of(self.plan.plan)
        self.model = initial_model(layout, self.plan.hash)
        self.personal = {name: self._personal(name) for name in self.silos}
        self.trunk = safetensors.numpy.save(trunk_tensors(layout, self.model))
        self.statement = make_statement(
            self.plan,
            trunk=trunk_hash(layout, self.model),
            head=head_hash(layout, self.model),
            layout=layout.fingerprint(),
            rounds=2,
        )
        self.offer = q.QuerierRelease(self.plan.signed, self.signed_by(NAMES), blob_hash(self.trunk))

    def _personal(self, silo: str) -> Any:
        return initial_personal(layout_of(self.plan.plan.at(silo)), hashlib.sha256(silo.encode()).digest())

    def signed_by(self, names: tuple[str, ...], body: bytes | None = None) -> Signed:
        body = body or self.statement.body()
        signatures = [sign_statement(body, self.silos[name].identity).signatures[0] for name in names]
        return Signed(body, tuple(signatures))

    def predictor(self, silo: str) -> Predictor:
        return Predictor(self.plan.plan.at(silo), self.model, self.personal[silo])

    def answer(self, ask: q.Ask, *, by: str | None = None) -> bytes:
        """What a hospital does with a request that the coordinator relays."""
        name = by or ask.silo
        keys = self.silos[name]
        ticket = Ticket.model_validate_json(ask.ticket.body)
        context = AskContext("retina", "desk", ask.silo, ticket.roster_version, ticket.release, ticket_hash(ask.ticket))
        opened = open_request(
            ask.sealed,
            context=context,
            private_key=self.silos[ask.silo].sealing.hpke(),
            querier_key=self.roster.find("desk", "querier").identity,
            now_ms=now(),
        )
        return seal_answer(opened, self.predictor(name).predict(opened.features).probabilities, signer=keys.identity)

    def join(self, port: int) -> QueryHome:
        anchor = FederationRoot(
            federation="retina", operator=self.roster.operator, root=pem(self.authority.certificate).decode()
        )
        address = Address("127.0.0.1", port)
        kit = make_kit(self.operator, anchor, address, pem(self.certificate), self.signed_roster)
        path = self.directory / "desk.kit"
        path.write_text(kit.to_json())
        join_member(self.querier, path, anchor.fingerprint, Role.QUERIER, now())
        return load_query_home(self.querier)

    def server_credentials(self) -> Credentials:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = Subject("retina", Role.COORDINATOR, "coordinator")
        certificate = issue(self.authority, key.public_key(), subject, now(), address=HERE)
        return Credentials(pem(self.authority.certificate), pem(certificate), private_pem(key))


class Refuse:
    """Raises the given errors one after the other, then lets asks through."""

    def __init__(self, world: World, *errors: FeddrmError) -> None:
        self._world = world
        self._errors = list(errors)

    def __call__(self, ask: q.Ask) -> bytes:
        if self._errors:
            raise self._errors.pop(0)
        return self._world.answer(ask)


def features_of(age: float, sex: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([2 * age / 100 - 1, 0, sex == "f", sex == "m", 0], dtype=np.float32)
