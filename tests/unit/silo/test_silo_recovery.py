"""New keys for a silo with its ledger, and a new ledger for one that lost its own: from the files to the auditor."""

from __future__ import annotations

import json
import shutil
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
from feddrm.contract.errors import ExitCode, InputError, VerificationError
from feddrm.contract.home import join_member, load_silo_home
from feddrm.contract.identity import MemberKeys, Role
from feddrm.contract.plan import Plan, plan_hash
from feddrm.contract.release import schema_hash
from feddrm.contract.schedule import STAGE_TRAIN
from feddrm.contract.signed_plan import SignedPlan, sign_plan
from feddrm.method.layout import initial_model, initial_personal, layout_of
from feddrm.method.update import model_hash
from privacy.errors import LedgerCorrupt
from privacy.gate import Caps, Gate
from privacy.ledger import Ledger
from privacy.note import open_head
from privacy.proofs import sighting_of
from privacy.witness import check_proof, make_proof
from silo.assembly import open_ledger
from silo.books import origin_of
from silo.export import export_ledger
from silo.home import Home
from silo.peers import Heads
from silo.recovery import recover
from silo.rekey import make_next_keys, take_keys
from silo.state import State

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
            model = model_hash(initial_model(layout, work.hash)) if number == 1 else bytes([number - 1]) * 32
            reservation = gate.reserve(work.hash, 1, number, event, model=model, now_ms=NOW)
            commit = gate.commit(reservation, bytes(32), now_ms=NOW)
            proof = make_proof(ledger, (reservation.leaf, commit, *ledger.succession()), range(1, 60))
            gate.release(work.hash, 1, number, sum=bytes(32), model=bytes([number]) * 32, now_ms=NOW)
        if state.job(work.hash) is None:
            state.add_job(work.hash, work.signed, initial_model(layout, work.hash), initial_personal(layout, work.hash))
        state.end_job(work.hash, "done")
        state.close()
        return proof

    def witness(self, proof: bytes, work: SignedPlan, number: int) -> None:
        """beta checks and keeps what alpha shows, by the roster that beta's staff approved."""
        heads, origin = Heads(self.beta), origin_of("trial", "alpha")
        member = load_silo_home(self.path / "beta").roster.find("alpha", "silo")
        known, event = heads.head("alpha"), round_event(work.plan, STAGE_TRAIN)
        assert event is not None
        model = model_hash(initial_model(layout_of(work.plan), work.hash)) if number == 1 else bytes([number - 1]) * 32
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
        )
        heads.set_head("alpha", open_head(note, origin, member.identity).size, note, member.identity)
        heads.sight("alpha", work.hash, sighting_of(proof))

    def rekey(self) -> str:
        """alpha's staff, the operator and beta's staff, as far as `roster accept`; returns what take_keys said."""
        made = make_next_keys(self.path / "alpha")
        enroll(self.operator, read_requests(load_operator_home(self.operator), [made.request]), None, NOW)
        kit = made.request.with_suffix(".kit")
        taken = take_keys(self.path / "alpha", kit, self.fingerprint, NOW)
        for name in ("alpha", "beta"):
            pin = load_silo_home(self.path / name).pin
            pin.offer(load_operator_home(self.operator).signed_roster, NOW)
            waiting = pin.pending()
            assert waiting is not None
            pin.accept(waiting[1].version, NOW)
        return taken.problem

    def export(self, name: str, file: str = "") -> Path:
        out = self.path / (file or f"{name}.ledger")
        export_ledger(self.path / name, out)
        return out

    def lose(self, *patterns: str) -> None:
        for pattern in patterns or ("ledger.db*",):
            for found in (self.path / "alpha" / "state").glob(pattern):
                found.unlink()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Federation]:
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


def test_new_keys_take_the_ledger_with_them(world: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    old = load_silo_home(world.path / "alpha").keys.identity_public
    before = world.export("alpha", "before.ledger")
    assert world.rekey() == ""
    member = load_silo_home(world.path / "alpha")
    member.check_current(NOW)
    assert member.keys.identity_public != old
    assert not (world.path / "alpha" / ".keys.former").exists(), "the old keys are destroyed"
    world.witness(world.play("alpha", world.work, 2), world.work, 2)
    code, found = verdict(world, capsys, world.export("alpha"), world.export("beta"), before)
    assert (code, found.get("FAIL")) == (0, None)
    assert any("alpha key" in line and "1 times a key handed it" in line for line in found["PASS"])


@pytest.mark.parametrize("when", ["before the ledger", "after the ledger", "between the renames"])
def test_taking_keys_is_finished_after_a_crash(world: Federation, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    import silo.rekey as rekey

    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    if when == "before the ledger":
        monkeypatch.setattr(rekey, "_hand_over", crash)
    elif when == "after the ledger":
        monkeypatch.setattr(rekey, "_swap", crash)
    else:
        monkeypatch.setattr(rekey, "_swap", lambda d: ((d / "keys").rename(d / ".keys.former"), crash()))
    with pytest.raises(Crash):
        world.rekey()
    monkeypatch.undo()
    kit = world.path / "alpha" / "alpha.kit"
    assert take_keys(world.path / "alpha", kit, world.fingerprint, NOW).problem == ""
    member = load_silo_home(world.path / "alpha")
    ledger = Ledger.read(world.path / "alpha/state/ledger.db", origin_of("trial", "alpha"), member.keys.identity_public)
    assert [record.leaf.TYPE for record in ledger.leaves()].count("SUCCESSOR") == 1


def test_a_kit_for_other_keys_takes_nothing(world: Federation) -> None:
    make_next_keys(world.path / "alpha")
    with pytest.raises(VerificationError, match="made for other keys"):
        take_keys(world.path / "alpha", world.path / "alpha" / "alpha.kit", world.fingerprint, NOW)
    load_silo_home(world.path / "alpha")


@pytest.mark.parametrize("memory", ["kept", "gone"])
def test_a_lost_ledger_is_answered_for_and_the_silo_goes_on(
    world: Federation, capsys: pytest.CaptureFixture[str], memory: str
) -> None:
    other = world.export("beta")
    world.lose(*(("*",) if memory == "gone" else ()))
    assert "there is no ledger" in world.rekey()
    with pytest.raises(VerificationError, match="is gone"):
        open_ledger(
            Home(world.path / "alpha"),
            load_silo_home(world.path / "alpha"),
            State.open(Home(world.path / "alpha").database),
        )
    done = recover(world.path / "alpha", [other], NOW)
    assert done.jobs == ("first",)
    assert done.epsilon == pytest.approx(charge(world.work.plan).epsilon)
    assert recover(world.path / "alpha", [other], NOW) == done, "safe to run again"
    second = world.sign("second")
    world.witness(world.play("alpha", second, 1), second, 1)
    world.play("beta", second, 1)
    code, found = verdict(world, capsys, world.export("alpha"), world.export("beta"))
    assert (code, found.get("FAIL")) == (0, None)
    (note,) = (line for line in found["NOTE"] if "recovery" in line)
    assert "1 jobs of it are charged in full" in note


def test_a_silo_that_forgets_is_kept_out_and_found(world: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    """The ledger and all that remembers it are wiped; the new keys come with an empty budget."""
    world.lose("*")
    (world.path / "alpha" / "startup" / "ledger.begun").unlink()
    assert world.rekey() == ""
    second = world.sign("second")
    proof = world.play("alpha", second, 1)
    with pytest.raises(Exception, match="nor that a new log answers for"):
        world.witness(proof, second, 1)
    world.play("beta", second, 1)
    code, found = verdict(world, capsys, world.export("alpha"), world.export("beta"))
    assert code == ExitCode.VERIFICATION
    assert any("what they charged is forgotten" in line for line in found["FAIL"])
    assert any("is not carried here" in line for line in found["FAIL"])


def test_more_heads_that_turn_up_later_are_answered_for(world: Federation) -> None:
    early = world.export("beta", "early.ledger")
    world.witness(world.play("alpha", world.work, 2), world.work, 2)
    late = world.export("beta", "late.ledger")
    world.lose()
    world.rekey()
    recover(world.path / "alpha", [early], NOW)
    second = world.sign("second")
    with pytest.raises(Exception, match="nor that a new log answers for"):
        world.witness(world.play("alpha", second, 1), second, 1)
    assert len(recover(world.path / "alpha", [late], NOW).lost) == 2
    world.witness(world.play("alpha", second, 2), second, 2)


def test_recovery_needs_new_keys_and_something_to_go_by(world: Federation) -> None:
    other = world.export("beta")
    world.lose()
    with pytest.raises(InputError, match="under an earlier key") as refused:
        recover(world.path / "alpha", [other], NOW)
    assert "keys new" in refused.value.remedy
    world.rekey()
    with pytest.raises(InputError, match="under an earlier key"):
        recover(world.path / "alpha", [], NOW)
    assert not (world.path / "alpha/state/ledger.db").exists()


def test_a_plan_that_is_missing_stops_the_recovery(world: Federation) -> None:
    """beta kept a leaf that charges the job, but the plan is in none of the files."""
    other = world.export("beta")
    fields = json.loads(other.read_text())
    fields["plans"] = []
    other.write_text(json.dumps(fields))
    world.lose("*")
    world.rekey()
    with pytest.raises(InputError, match="signed plan none of the files brings"):
        recover(world.path / "alpha", [other], NOW)
    plan = world.path / "first.signed"
    plan.write_text(world.work.signed.to_json())
    assert recover(world.path / "alpha", [other, plan], NOW).jobs == ("first",)


def test_another_patient_column_is_not_taken_after_a_loss(world: Federation) -> None:
    other = world.export("beta")
    world.lose()
    world.rekey()
    data = world.path / "alpha" / "local" / "data.toml"
    data.write_text(data.read_text().replace('"id"', '"visit"'))
    with pytest.raises(InputError, match="column visit says"):
        recover(world.path / "alpha", [other], NOW)


def test_a_damaged_ledger_is_set_aside_only_when_another_one_stands_in_for_it(world: Federation) -> None:
    other = world.export("beta")
    ledger = world.path / "alpha" / "state" / "ledger.db"
    copy = world.path / "old.db"
    shutil.copy(ledger, copy)
    ledger.write_bytes(b"SQLite format 3\x00" + bytes(5000))
    with pytest.raises(InputError):
        recover(world.path / "alpha", [other], NOW)
    assert ledger.exists()
    assert world.rekey() != ""
    done = recover(world.path / "alpha", [other], NOW)
    assert done.aside is not None
    assert (done.aside / "ledger.db").exists()
    with pytest.raises(LedgerCorrupt):
        Ledger.read(copy, origin_of("trial", "alpha"), MemberKeys.load(world.path / "alpha/keys").identity_public)


def test_plan_hash_names_what_is_carried(world: Federation) -> None:
    other = world.export("beta")
    world.lose()
    world.rekey()
    recover(world.path / "alpha", [other], NOW)
    fields = json.loads(world.export("alpha").read_text())
    carried = [json.loads(leaf) for leaf in fields["leaves"] if '"CARRY"' in leaf]
    assert [leaf["plan"] for leaf in carried] == [plan_hash(world.work.signed.body).hex()]
    assert world.work.signed.to_json() in fields["plans"]
