"""Two hospitals on disk whose keys change and whose ledgers are lost: played through the commands' functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from silo_harness import plan_document
from test_silo_renewal import NOW, SILOS, Hospital

from aggregator.homes import load_operator_home
from aggregator.operations import enroll, read_requests
from feddrm.audit.cli import app as audit
from feddrm.cli import invoke
from feddrm.contract.charge import charge, round_event
from feddrm.contract.home import join_member, load_silo_home
from feddrm.contract.identity import Role
from feddrm.contract.plan import Plan
from feddrm.contract.release import schema_hash
from feddrm.contract.schedule import STAGE_TRAIN
from feddrm.contract.signed_plan import SignedPlan, sign_plan
from feddrm.method.layout import initial_personal, layout_of
from feddrm.method.progress import initial_state
from feddrm.method.update import model_hash
from privacy.gate import Caps, Gate
from privacy.note import open_head
from privacy.proofs import sighting_of
from privacy.witness import check_proof, make_proof
from silo.assembly import open_ledger
from silo.books import origin_of
from silo.export import export_ledger
from silo.home import Home
from silo.peers import Heads
from silo.recovery import Recovery, recover
from silo.rekey import make_next_keys, take_keys
from silo.state import State
from silo.witnessing import owed_by

CAPS = Caps(3.0, 3.0, 1e-5, 10.0, 10.0, 1e-4, 3)


class Federation(Hospital):
    """alpha and beta with directories of their own, and a job in which both train."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fingerprint = load_operator_home(self.operator).anchor.fingerprint
        join_member(path / "beta", path / "beta" / "beta.kit", self.fingerprint, Role.SILO, NOW)
        (path / "beta" / "state").mkdir()
        self.beta = State.open(Home(path / "beta").database)
        self.state.close()
        for name in ("alpha", "beta"):
            (path / name / "local" / "data.toml").write_text('records = "x.csv"\npatient = "id"\npublic_size = 1000\n')
        self.work = self.sign("first")

    def sign(self, name: str) -> SignedPlan:
        document = plan_document() | {"silos": list(SILOS), "roster_version": 1, "name": name}
        return sign_plan(Plan.model_validate(document), load_operator_home(self.operator).key)

    def play(self, name: str, work: SignedPlan, number: int) -> bytes:
        """One round at one silo; returns the proof that R1 would carry."""
        member = load_silo_home(self.path / name)
        state = State.open(Home(self.path / name).database)
        layout, cost = layout_of(work.plan), charge(work.plan)
        event = round_event(work.plan, STAGE_TRAIN)
        assert event is not None
        with open_ledger(Home(self.path / name), member, state) as ledger:
            gate = Gate(ledger, CAPS)
            gate.open_job(work.hash, work.plan.name, cost.delta, cost.events, now_ms=NOW)
            gate.record_dataset(
                work.hash, bytes(32), schema_hash(work.plan), patient="id", public_size=1000, now_ms=NOW
            )
            model = _before(work, number)
            reservation = gate.reserve(work.hash, 1, number, event, model=model, now_ms=NOW)
            commit = gate.commit(reservation, bytes(32), now_ms=NOW)
            proof = make_proof(ledger, (reservation.leaf, commit, *ledger.succession()), range(1, 60))
            gate.release(work.hash, 1, number, sum=bytes(32), model=bytes([number]) * 32, now_ms=NOW)
        if state.job(work.hash) is None:
            state.add_job(
                work.hash, work.signed, initial_state(work.plan, layout, work.hash), initial_personal(layout, work.hash)
            )
        state.end_job(work.hash, "done")
        state.close()
        return proof

    def witness(self, proof: bytes, work: SignedPlan, number: int) -> None:
        """beta checks and keeps what alpha shows, by the roster that beta's staff approved."""
        heads, origin = Heads(self.beta), origin_of("trial", "alpha")
        member = load_silo_home(self.path / "beta").roster.find("alpha", "silo")
        known, event = heads.head("alpha"), round_event(work.plan, STAGE_TRAIN)
        assert event is not None
        model = _before(work, number)
        note = check_proof(
            proof,
            origin=origin,
            key=member.identity,
            witnessed=known and known[0],
            witnessed_key=known and known[1],
            plan=work.hash,
            stage=1,
            round=number,
            event=event,
            model=model,
            owed=() if known is None or known[1] == member.identity else owed_by(self.beta, "alpha"),
        )
        heads.set_head("alpha", open_head(note, origin, member.identity).size, note, member.identity)
        heads.sight("alpha", work.hash, sighting_of(proof))

    def rekey(self, *, lost: bool = False) -> str:
        """alpha's staff, the operator and beta's staff, as far as `roster accept`; returns what take_keys said."""
        made = make_next_keys(self.path / "alpha")
        enroll(self.operator, read_requests(load_operator_home(self.operator), [made.request]), None, NOW)
        kit = made.request.with_suffix(".kit")
        taken = take_keys(self.path / "alpha", kit, self.fingerprint, NOW, lost=lost)
        for name in ("alpha", "beta"):
            pin = load_silo_home(self.path / name).pin
            pin.offer(load_operator_home(self.operator).signed_roster, NOW)
            waiting = pin.pending()
            assert waiting is not None
            pin.accept(waiting[1].version, NOW)
        return taken.problem

    def recover(self, files: list[Path], without: tuple[str, ...] = ("gamma",)) -> Recovery:
        """alpha begins again; gamma, which never had a ledger, is named as absent."""
        return recover(self.path / "alpha", files, NOW, without)

    def export(self, name: str, file: str = "") -> Path:
        out = self.path / (file or f"{name}.ledger")
        export_ledger(self.path / name, out)
        return out

    def lose(self, *patterns: str) -> None:
        for pattern in patterns or ("ledger.db*",):
            for found in (self.path / "alpha" / "state").glob(pattern):
                found.unlink()


def _before(work: SignedPlan, number: int) -> bytes:
    """Hash of the model from which a round starts."""
    if number > 1:
        return bytes([number - 1]) * 32
    return model_hash(initial_state(work.plan, layout_of(work.plan), work.hash))


def begun(tmp_path: Path) -> Iterator[Federation]:
    """After one round, in which beta saw and kept what alpha showed."""
    made = Federation(tmp_path)
    made.play("beta", made.work, 1)
    made.witness(made.play("alpha", made.work, 1), made.work, 1)
    yield made
    made.beta.close()


def verdict(world: Federation, capsys: pytest.CaptureFixture[str], *files: Path) -> tuple[int, dict[str, list[str]]]:
    root = world.path / "alpha" / "startup" / "federation.root"
    capsys.readouterr()
    code = invoke(audit, ["verify", *map(str, files), "--root", str(root), "--format", "json"])
    found: dict[str, list[str]] = {}
    for ledger in json.loads(capsys.readouterr().out)["ledgers"]:
        for check in ledger["checks"]:
            found.setdefault(check["status"], []).append(f"{ledger['silo']} {check['name']}: {check['message']}")
    return code, found
