"""A ledger that is wiped with all that lies beside it, or put back to an older copy: the silo itself does not start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_silo_renewal import Hospital

from feddrm.contract.errors import ExitCode, VerificationError
from feddrm.contract.home import load_silo_home
from privacy.ledger import Ledger
from silo.assembly import open_ledger
from silo.report import status_of
from silo.state import State


@pytest.fixture
def hospital(tmp_path: Path) -> Iterator[Hospital]:
    hospital = Hospital(tmp_path)
    yield hospital
    hospital.state.close()


def begin(hospital: Hospital) -> Ledger:
    return open_ledger(hospital.home, load_silo_home(hospital.home.root), hospital.state)


def wipe_ledger(hospital: Hospital) -> None:
    for file in hospital.home.state.glob("ledger.db*"):
        file.unlink()


def assert_refused(hospital: Hospital, words: str) -> None:
    with pytest.raises(VerificationError, match=words) as refused:
        begin(hospital)
    assert refused.value.exit_code == ExitCode.VERIFICATION
    assert "ask the federation's operator" in refused.value.remedy
    assert not hospital.home.ledger.exists(), "a refusal begins nothing"
    with pytest.raises(VerificationError, match=words):
        status_of(hospital.home.root)


def test_a_first_ledger_is_begun_and_found_again(hospital: Hospital) -> None:
    for _ in range(2):
        ledger = begin(hospital)
        assert ledger.size == 1
        ledger.close()


def test_a_ledger_that_is_wiped_with_its_lock_file_is_missed(hospital: Hospital) -> None:
    begin(hospital).close()
    wipe_ledger(hospital)
    assert not list(hospital.home.state.glob("ledger.db*"))
    assert_refused(hospital, "is gone: .*ledger.begun remembers one")


def test_a_wiped_state_directory_is_missed(hospital: Hospital) -> None:
    begin(hospital).close()
    hospital.state.close()
    shutil.rmtree(hospital.home.state)
    hospital.home.state.mkdir()
    hospital.state = State.open(hospital.home.database)
    assert_refused(hospital, "is gone: .*ledger.begun remembers one")


def test_agent_db_alone_remembers_it(hospital: Hospital) -> None:
    begin(hospital).close()
    wipe_ledger(hospital)
    hospital.home.ledger_note.unlink()
    assert_refused(hospital, "is gone: .*agent.db remembers one")


def test_a_job_of_an_earlier_version_of_this_software_remembers_it(hospital: Hospital) -> None:
    hospital.begin_job(2)
    assert_refused(hospital, "is gone: .*agent.db remembers one")


def test_heads_that_were_shown_remember_it_and_its_size(hospital: Hospital) -> None:
    hospital.state.set_fact("heads shown", b"2 5")
    assert_refused(hospital, "is gone: .*agent.db remembers one")


def test_an_older_copy_than_was_shown_to_peers_is_refused(hospital: Hospital) -> None:
    begin(hospital).close()
    hospital.state.set_fact("heads shown", b"1")
    begin(hospital).close()
    hospital.state.set_fact("heads shown", b"1 3")
    with pytest.raises(VerificationError, match="holds 1 leaves, but 3 were shown to the peers") as refused:
        begin(hospital)
    assert "peers" in refused.value.remedy
