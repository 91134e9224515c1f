"""What lies on the hospital's disk: readable by the agent's user only, and gone once it is deleted."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from silo_harness import Desk, House

from feddrm.contract.errors import InputError
from feddrm.contract.home import init_member
from feddrm.contract.identity import Role
from feddrm.contract.messages import JobEnded, OutcomeEvent
from secagg.wire import Step
from silo.database import LEDGER_REMEDY, NO_RESTORE
from silo.home import Home, exclusive
from silo.state import State


@pytest.fixture(autouse=True)
def careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    init_member(tmp_path / "alpha", "alpha", Role.SILO)
    return Home(tmp_path / "alpha")


def test_the_database_and_what_lies_beside_it_are_private_from_the_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    state = State.open(path)
    state.set_fact("a", b"1")
    files = list(tmp_path.iterdir())
    assert {file.name for file in files} >= {"agent.db", "agent.db-wal", "agent.db-shm"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    # Files of an earlier, careless life are closed to others, too.
    for file in files:
        file.chmod(0o666)
    again = State.open(path)
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.iterdir())
    again.close()
    state.close()


def test_the_state_directory_is_private(home: Home) -> None:
    with exclusive(home):
        assert home.state.stat().st_mode & 0o777 == 0o700
    home.state.chmod(0o755)
    with exclusive(home):
        assert home.state.stat().st_mode & 0o777 == 0o700
        assert home.lock.stat().st_mode & 0o077 == 0


def test_a_state_directory_that_leads_elsewhere_is_refused(home: Home, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    home.state.symlink_to(tmp_path / "shared")
    with pytest.raises(InputError, match="state"), exclusive(home):
        raise AssertionError


def traces(house: House, needle: bytes) -> list[str]:
    return [path.name for path in house.directory.iterdir() if needle in path.read_bytes()]


@pytest.mark.parametrize("end", ["published", "lost", "job ended"])
def test_no_trace_of_an_update_is_left_once_its_round_is_over(desk: Desk, end: str) -> None:
    """Masked and unmasked together they would undo the masks of everybody's sum."""
    alpha = desk.houses["alpha"]
    desk.open()
    q = alpha.state.update(desk.trial.plan_hash, 1, 1)
    assert q is not None
    needle = q.astype("<i8").tobytes()[:64]
    assert traces(alpha, needle), "a search that finds nothing at all proves nothing"
    match end:
        case "published":
            for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY):
                desk.advance(step)
            desk.publish()
        case "lost":
            alpha.handle(OutcomeEvent(desk.lose()))
        case "job ended":
            alpha.handle(JobEnded(desk.trial.plan_hash, "stopped", completed=False))
    assert traces(alpha, needle) == []


def test_a_reader_in_the_way_postpones_the_cleaning_and_nothing_else(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    desk.open()
    reader = sqlite3.connect(alpha.directory / "agent.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM jobs").fetchone()
    outcome = desk.lose()
    for house in desk.houses.values():
        house.handle(OutcomeEvent(outcome))
    assert alpha.ready.round == 1
    reader.close()
    desk.run()
    assert alpha.ready.round == 2


@pytest.mark.parametrize("advice", [LEDGER_REMEDY, NO_RESTORE])
def test_nobody_is_told_to_put_back_a_copy(advice: str) -> None:
    """That is a rollback: it repeats what was sent, and peers exclude a silo for it."""
    assert advice.startswith("Do not put back a copy")
    assert "operator" in advice


def test_no_text_of_the_agent_advises_a_restore() -> None:
    import silo.database

    folder = Path(silo.database.__file__).parent
    found = [path.name for path in folder.glob("*.py") if "from a backup" in path.read_text()]
    assert found == []


def test_a_member_that_left_the_roster_does_not_stop_the_stream(make_desk: Callable[..., Desk]) -> None:
    """The outcome cannot be verified any more: it is refused, with the reason in the hospital's log."""
    desk = make_desk()
    desk.offer()
    desk.run()
    alpha = desk.houses["alpha"]
    members = tuple(member for member in desk.trial.roster.members if member.name != "gamma")
    object.__setattr__(alpha.context, "roster", desk.trial.roster.model_copy(update={"members": members}))
    assert alpha.handle(OutcomeEvent(desk.outcomes[1])) == []
    text = [effect.text for effect in alpha.effects if hasattr(effect, "text")][-1]
    assert "gamma" in text
    assert "no longer in the pinned roster" in text
    desk.open()
    assert alpha.frames(Step.ABORT)
    assert not alpha.internal
