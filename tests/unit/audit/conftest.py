"""A federation of four hospitals on paper: keys, roster, plan, and a ledger for each after three rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from audit_tools import NOW, SILOS, Run, make_roster
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from small_plan import plan_document

from feddrm.audit.cli import app
from feddrm.cli import invoke
from feddrm.contract.authority import create_authority, pem
from feddrm.contract.charge import charge, round_event
from feddrm.contract.identity import MemberKeys
from feddrm.contract.kit import FederationRoot
from feddrm.contract.plan import Plan
from feddrm.contract.release import schema_hash
from feddrm.contract.schedule import STAGE_TRAIN
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan, sign_plan
from feddrm.method.layout import initial_model, layout_of
from feddrm.method.update import model_hash
from privacy.bundle import export_bundle
from privacy.gate import Caps, Gate
from privacy.ledger import Ledger
from privacy.proofs import sighting_of
from privacy.witness import make_proof

CAPS = Caps(3.0, 3.0, 1e-5, 10.0, 10.0, 1e-4, 3)


@dataclass
class Paper:
    """Everything an auditor may get, and the keys to forge it with."""

    path: Path
    operator: Ed25519PrivateKey
    keys: dict[str, MemberKeys]
    anchor: FederationRoot
    roster: Signed
    plan: SignedPlan
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)
    heads: dict[str, bytes] = field(default_factory=dict)
    sightings: dict[tuple[str, bytes], bytes] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.path / "federation.root"

    def play(self, name: str, *numbers: int) -> None:
        cost = charge(self.plan.plan)
        event = round_event(self.plan.plan, STAGE_TRAIN)
        assert event is not None
        gate = self.gates[name]
        gate.open_job(self.plan.hash, self.plan.plan.name, cost.delta, cost.events, now_ms=NOW)
        self.read(name, number=len(self.ledgers[name].bodies()))
        for number in numbers:
            reservation = gate.reserve(self.plan.hash, 1, number, event, model=self.model(number - 1), now_ms=NOW)
            commit = gate.commit(reservation, bytes([number]) * 32, now_ms=NOW)
            ledger = self.ledgers[name]
            self.heads[ledger.origin] = ledger.head()
            proof = make_proof(ledger, (reservation.leaf, commit), ())
            self.sightings[ledger.origin, self.plan.hash] = sighting_of(proof)
            gate.release(self.plan.hash, 1, number, sum=bytes(32), model=self.model(number), now_ms=NOW)

    def read(self, name: str, number: int = 0, patient: str = "id") -> int:
        """A DATASET leaf, as the agent writes one whenever it has read the records."""
        return self.gates[name].record_dataset(
            self.plan.hash,
            number.to_bytes(32),
            schema_hash(self.plan.plan),
            patient=patient,
            public_size=1000,
            now_ms=NOW,
        )

    def model(self, number: int) -> bytes:
        """The hash of the model after a round; 0: the initial one, which the plan fixes."""
        if number:
            return bytes([number]) * 32
        return model_hash(initial_model(layout_of(self.plan.plan), self.plan.hash))

    def export(self, name: str, *, roster: Signed | None = None, plans: list[Signed] | None = None) -> Path:
        ledger = self.ledgers[name]
        witnessed = {origin: note for origin, note in self.heads.items() if origin != ledger.origin}
        text = export_bundle(
            ledger,
            witnessed=witnessed,
            sightings=[one for (origin, _), one in sorted(self.sightings.items()) if origin != ledger.origin],
            roster=(roster or self.roster).to_json(),
            plans=[signed.to_json() for signed in ([self.plan.signed] if plans is None else plans)],
        )
        file = self.path / f"{name}.ledger"
        file.write_text(text, encoding="utf-8")
        return file


def make_plan(**training: object) -> Plan:
    changes = {f"training__{name}": value for name, value in training.items()}
    return Plan.model_validate(plan_document(SILOS, roster_version=2, **changes))


@pytest.fixture
def paper(tmp_path: Path) -> Iterator[Paper]:
    operator = Ed25519PrivateKey.generate()
    keys = {name: MemberKeys.generate() for name in SILOS}
    root = create_authority("retina", NOW)
    anchor = FederationRoot(
        federation="retina",
        operator=operator.public_key().public_bytes_raw(),
        root=pem(root.certificate).decode(),
    )
    made = Paper(tmp_path, operator, keys, anchor, make_roster(keys, operator, 2), sign_plan(make_plan(), operator))
    made.root.write_bytes(anchor.to_text())
    for name in SILOS:
        ledger = Ledger.open(tmp_path / f"{name}.db", f"feddrm/retina/{name}", keys[name].identity, now_ms=NOW)
        made.ledgers[name], made.gates[name] = ledger, Gate(ledger, CAPS)
    for number in (1, 2, 3):
        for name in SILOS:
            made.play(name, number)
    yield made
    for ledger in made.ledgers.values():
        ledger.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = invoke(app, [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call
