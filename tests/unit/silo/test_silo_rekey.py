"""New keys for a silo, which take its ledger with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from recovery_world import Federation, begun, verdict
from test_silo_renewal import NOW

from feddrm.contract.errors import VerificationError
from feddrm.contract.home import load_silo_home
from feddrm.contract.identity import MemberKeys
from privacy.ledger import Ledger
from silo.books import origin_of
from silo.rekey import make_next_keys, take_keys


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Federation]:
    yield from begun(tmp_path)


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


def test_old_keys_stay_until_the_ledger_went_over(world: Federation) -> None:
    """The file was only mislaid: with the old keys gone it would be lost for good."""
    keys = world.path / "alpha" / "keys"
    old, ledger = MemberKeys.load(keys).identity_public, world.path / "alpha" / "state" / "ledger.db"
    mislaid = ledger.rename(world.path / "mislaid.db")
    with pytest.raises(VerificationError, match="cannot be handed over") as refused:
        world.rekey()
    assert "--lost" in refused.value.remedy
    assert MemberKeys.load(keys).identity_public == old
    assert (world.path / "alpha" / "keys.next").is_dir()
    mislaid.rename(ledger)
    kit = world.path / "alpha" / "alpha.kit"
    assert take_keys(world.path / "alpha", kit, world.fingerprint, NOW).problem == ""
    assert not (world.path / "alpha" / ".keys.former").exists()
    assert load_silo_home(world.path / "alpha").keys.identity_public != old


def test_old_keys_of_a_ledger_that_is_given_up_are_destroyed(world: Federation) -> None:
    old = MemberKeys.load(world.path / "alpha" / "keys").identity_public
    world.lose()
    assert "there is no ledger" in world.rekey(lost=True)
    assert MemberKeys.load(world.path / "alpha" / "keys").identity_public != old
    assert not (world.path / "alpha" / ".keys.former").exists()


def test_saying_lost_of_a_ledger_that_is_there_hands_it_over(world: Federation) -> None:
    assert world.rekey(lost=True) == ""
