"""A new ledger for a silo that lost its own: from the files to the auditor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from recovery_world import Federation, begun, verdict
from test_silo_renewal import NOW

from feddrm.audit.cli import app as audit
from feddrm.cli import invoke
from feddrm.contract.charge import charge
from feddrm.contract.errors import ExitCode, InputError, VerificationError
from feddrm.contract.home import load_silo_home
from feddrm.contract.identity import MemberKeys
from feddrm.contract.plan import plan_hash
from privacy.errors import LedgerCorrupt, LedgerFault
from privacy.handover import Recovered
from privacy.ledger import Ledger
from privacy.merkle import Tree
from privacy.note import sign_head
from silo.assembly import open_ledger
from silo.books import origin_of
from silo.home import Home
from silo.state import State


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Federation]:
    yield from begun(tmp_path)


@pytest.mark.parametrize("memory", ["kept", "gone"])
def test_a_lost_ledger_is_answered_for_and_the_silo_goes_on(
    world: Federation, capsys: pytest.CaptureFixture[str], memory: str
) -> None:
    other = world.export("beta")
    world.lose(*(("*",) if memory == "gone" else ()))
    assert "there is no ledger" in world.rekey(lost=True)
    with pytest.raises(VerificationError, match="is gone"):
        open_ledger(
            Home(world.path / "alpha"),
            load_silo_home(world.path / "alpha"),
            State.open(Home(world.path / "alpha").database),
        )
    done = world.recover([other])
    assert done.jobs == ("first",)
    assert done.epsilon == pytest.approx(charge(world.work.plan).epsilon)
    assert world.recover([other]) == done, "safe to run again"
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
    assert world.rekey(lost=True) == ""
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
    world.rekey(lost=True)
    world.recover([early])
    second = world.sign("second")
    with pytest.raises(Exception, match="nor that a new log answers for"):
        world.witness(world.play("alpha", second, 1), second, 1)
    assert len(world.recover([late]).lost) == 2
    world.witness(world.play("alpha", second, 2), second, 2)


def test_recovery_needs_new_keys_and_something_to_go_by(world: Federation) -> None:
    other = world.export("beta")
    world.lose()
    with pytest.raises(InputError, match="under an earlier key") as refused:
        world.recover([other])
    assert "keys new" in refused.value.remedy
    world.rekey(lost=True)
    with pytest.raises(InputError, match="under an earlier key"):
        world.recover([])
    assert not (world.path / "alpha/state/ledger.db").exists()


def test_a_plan_that_is_missing_stops_the_recovery(world: Federation) -> None:
    """beta kept a leaf that charges the job, but the plan is in none of the files."""
    other = world.export("beta")
    fields = json.loads(other.read_text())
    fields["plans"] = []
    other.write_text(json.dumps(fields))
    world.lose("*")
    world.rekey(lost=True)
    with pytest.raises(InputError, match="signed plan none of the files brings"):
        world.recover([other])
    plan = world.path / "first.signed"
    plan.write_text(world.work.signed.to_json())
    assert world.recover([other, plan]).jobs == ("first",)


def test_another_patient_column_is_not_taken_after_a_loss(world: Federation) -> None:
    other = world.export("beta")
    world.lose()
    world.rekey(lost=True)
    data = world.path / "alpha" / "local" / "data.toml"
    data.write_text(data.read_text().replace('"id"', '"visit"'))
    with pytest.raises(InputError, match="column visit says; in the lost ledger it was id"):
        world.recover([other])


def test_a_damaged_ledger_is_set_aside_only_when_another_one_stands_in_for_it(world: Federation) -> None:
    other = world.export("beta")
    ledger = world.path / "alpha" / "state" / "ledger.db"
    copy = world.path / "old.db"
    shutil.copy(ledger, copy)
    ledger.write_bytes(b"SQLite format 3\x00" + bytes(5000))
    with pytest.raises(InputError):
        world.recover([other])
    assert ledger.exists()
    assert world.rekey(lost=True) != ""
    done = world.recover([other])
    assert done.aside is not None
    assert (done.aside / "ledger.db").exists()
    with pytest.raises(LedgerCorrupt):
        Ledger.read(copy, origin_of("trial", "alpha"), MemberKeys.load(world.path / "alpha/keys").identity_public)


def test_plan_hash_names_what_is_carried(world: Federation) -> None:
    other = world.export("beta")
    world.lose()
    world.rekey(lost=True)
    world.recover([other])
    fields = json.loads(world.export("alpha").read_text())
    carried = [json.loads(leaf) for leaf in fields["leaves"] if '"CARRY"' in leaf]
    assert [leaf["plan"] for leaf in carried] == [plan_hash(world.work.signed.body).hex()]
    assert world.work.signed.to_json() in fields["plans"]


def test_a_new_ledger_for_a_lost_one_is_no_fork_and_the_lost_one_s_fork_is_proven_still(
    world: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    old = MemberKeys.load(world.path / "alpha" / "keys").identity
    before = world.export("alpha", "before.ledger")
    other = world.export("beta")
    world.lose()
    world.rekey(lost=True)
    world.recover([other])
    code, found = verdict(world, capsys, before, world.export("alpha"))
    assert any("is forgotten" in line for line in found["FAIL"]), "its own old export shows more than beta saw"
    world.recover([before, other])
    files = [before, world.export("alpha"), world.export("beta", "after.ledger")]
    root = str(world.path / "alpha" / "startup" / "federation.root")
    assert invoke(audit, ["fork-proof", *map(str, files), "--root", root]) == 0
    code, found = verdict(world, capsys, *files)
    assert (code, found.get("FAIL")) == (0, None), "the lost ledger's own export still verifies, under its own key"
    size = len(json.loads(before.read_text())["leaves"])
    note = world.path / "second.note"
    note.write_bytes(sign_head(origin_of("trial", "alpha"), size, bytes(32), old))
    proof = world.path / "proof.json"
    arguments = ["fork-proof", *map(str, files), str(note), "--root", root, "-o", str(proof)]
    assert invoke(audit, arguments) == ExitCode.VERIFICATION
    assert invoke(audit, ["fork-proof", str(proof), "--root", root]) == ExitCode.VERIFICATION, "it stands by itself"


def test_every_other_hospital_s_export_is_asked_for(world: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    """gamma never began a ledger: that nothing is known from it is a decision, which stays in the log."""
    other = world.export("beta")
    world.lose()
    world.rekey(lost=True)
    for without, message in (
        ((), "exports of gamma are missing"),
        (("gamma", "delta"), "no such other hospital"),
        (("gamma", "alpha"), "no such other hospital"),
        (("gamma", "beta"), "is among the files"),
    ):
        with pytest.raises(InputError, match=message):
            world.recover([other], without)
    assert not (world.path / "alpha/state/ledger.db").exists()
    world.recover([other])
    code, found = verdict(world, capsys, world.export("alpha"), other)
    assert (code, found.get("FAIL")) == (0, None)
    assert any("the exports of gamma were not there" in line for line in found["NOTE"])


def test_an_export_that_its_hospital_did_not_sign_is_none(world: Federation) -> None:
    other = world.export("beta")
    fields = json.loads(other.read_text())
    leaves = [leaf.encode() for leaf in fields["leaves"]]
    forger = MemberKeys.generate().identity
    fields["head"] = sign_head(fields["origin"], len(leaves), Tree(leaves).root(), forger).decode()
    other.write_text(json.dumps(fields))
    world.lose()
    world.rekey(lost=True)
    with pytest.raises(InputError, match="exports of beta are missing"):
        world.recover([other])


def test_a_public_size_does_not_change_with_a_loss(world: Federation) -> None:
    before, other = world.export("alpha", "before.ledger"), world.export("beta")
    world.lose()
    world.rekey(lost=True)
    data = world.path / "alpha" / "local" / "data.toml"
    text = data.read_text()
    data.write_text(text.replace("1000", "900"))
    with pytest.raises(InputError, match="gives 900 as the public size; in the lost ledger it was 1000"):
        world.recover([before, other])
    data.write_text(text)
    world.recover([before, other])
    leaves = [json.loads(leaf) for leaf in json.loads(world.export("alpha").read_text())["leaves"]]
    assert [leaf["public_size"] for leaf in leaves if leaf["type"] == "CARRY"] == [1000]


def test_after_a_crash_what_was_set_aside_is_looked_at_again(
    world: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only alpha's own ledger, of before its keys changed, knows that the second job was charged."""
    second = world.sign("second")
    world.play("alpha", second, 1)
    other, ledger = world.export("beta"), world.path / "alpha" / "state" / "ledger.db"
    copy = world.path / "copy.db"
    old = MemberKeys.load(world.path / "alpha/keys").identity
    with Ledger.open(ledger, origin_of("trial", "alpha"), old, now_ms=NOW) as whole:
        size = whole.size
    shutil.copy(ledger, copy)
    world.lose("*")
    world.rekey(lost=True)
    shutil.copy(copy, ledger)
    plan = world.path / "second.signed"
    plan.write_text(second.signed.to_json())

    class Crash(BaseException):
        pass

    def crash(*_: object, **__: object) -> None:
        raise Crash

    monkeypatch.setattr(Ledger, "begin_again", crash)
    with pytest.raises(Crash):
        world.recover([other, plan])
    monkeypatch.undo()
    assert not ledger.exists()
    done = world.recover([other])
    assert set(done.jobs) == {"first", "second"}
    assert done.lost == ((size, old.public_key().public_bytes_raw()),), "more than beta saw of it"


def test_a_peer_keeps_out_a_new_ledger_that_forgets_a_job_it_saw(world: Federation) -> None:
    """alpha answers for the head that beta holds, and leaves the job out."""
    other = world.export("beta")
    world.lose()
    world.rekey(lost=True)
    world.recover([other])
    member = load_silo_home(world.path / "alpha")
    ledger = world.path / "alpha" / "state" / "ledger.db"
    origin, key = origin_of("trial", "alpha"), member.keys.identity
    whole = [record.leaf for record in Ledger.read(ledger, origin, member.keys.identity_public).leaves()]
    world.lose()
    less = [leaf for leaf in whole if isinstance(leaf, Recovered)]
    Ledger.begin_again(ledger, origin, key, less, now_ms=NOW).close()
    second = world.sign("second")
    with pytest.raises(LedgerFault, match="does not show that it carries job first"):
        world.witness(world.play("alpha", second, 1), second, 1)
