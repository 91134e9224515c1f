"""The agent's directory: one agent at a time, state that survives, commands that need no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from feddrm.contract.errors import AlreadyRunningError, InputError
from feddrm.contract.home import init_member
from feddrm.contract.identity import Role
from silo.database import Database
from silo.home import Home, exclusive, running
from silo.link import Backoff
from silo.sessions import Entered
from silo.state import State

HOLD = """
import sys, time
from pathlib import Path
from silo.home import Home, exclusive
with exclusive(Home(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    init_member(tmp_path / "alpha", "alpha", Role.SILO)
    return Home(tmp_path / "alpha")


def holder(home: Home) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(home.root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_agent_is_refused_and_told_who_runs(home: Home) -> None:
    assert running(home) is None
    process = holder(home)
    try:
        assert running(home) == process.pid
        with pytest.raises(AlreadyRunningError, match=str(process.pid)), exclusive(home):
            raise AssertionError
    finally:
        process.kill()
        process.wait()
    # SIGKILL leaves the file but not the lock.
    assert running(home) is None
    with exclusive(home):
        assert running(home) == os.getpid()


def test_a_lock_dies_with_its_process_only(home: Home) -> None:
    process = holder(home)
    home.lock.write_text("1\n")
    try:
        with pytest.raises(AlreadyRunningError), exclusive(home):
            raise AssertionError
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="init"), exclusive(Home(tmp_path)):
        raise AssertionError


def test_settings_have_defaults_and_refuse_unknown_keys(home: Home) -> None:
    assert home.settings().torch_threads == 1
    (home.local / "agent.toml").write_text("torch_thread = 2\n")
    with pytest.raises(InputError, match="torch_threads"):
        home.settings()
    with pytest.raises(InputError, match="records"):
        home.data_settings()


def test_marks_survive_and_are_never_taken_back(tmp_path: Path) -> None:
    plan = bytes(32)
    state = State.open(tmp_path / "agent.db")
    state.enter(plan, 1, 1, Entered(1, b"body", b"s" * 32, b"b" * 16))
    state.spend(plan, 1, 1, 1, ("alpha", "beta"))
    with pytest.raises(LookupError):
        state.mark(plan, 1, 1, 2, "released")
    state.close()
    state = State.open(tmp_path / "agent.db")
    (entered,) = state.entered(plan, 1, 1)
    assert (entered.masked, entered.released, entered.members) == (True, False, ("alpha", "beta"))
    assert state.highest(plan) == (1, 1, 1)
    assert state.session(b"s" * 32) == entered
    assert (tmp_path / "agent.db").stat().st_mode & 0o077 == 0
    state.close()


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    state = State.open(tmp_path / "agent.db")

    def interrupted() -> None:
        with state.transaction():
            state.set_fact("a", b"1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert state.fact("a") is None
    state.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(InputError, match=r"agent\.db"):
        Database.open(path)


def test_vectors_come_back_as_they_were(tmp_path: Path) -> None:
    state = State.open(tmp_path / "agent.db")
    q = np.array([-(2**40), 0, 2**40], np.int64)
    state.set_update(bytes(32), 1, 1, q, q + 1)
    found, personal = state.update(bytes(32), 1, 1), state.personal(bytes(32))
    assert found is not None
    assert personal is not None
    assert found.tolist() == q.tolist()
    assert personal[1].tolist() == (q + 1).tolist()
    state.close()


def test_backoff_grows_to_a_limit_and_starts_again() -> None:
    backoff = Backoff()
    waits = [backoff.next() for _ in range(12)]
    assert all(wait > 0 for wait in waits)
    assert max(waits) <= 30
    assert waits[-1] >= 15
    backoff.reset()
    assert backoff.next() <= 0.5


LAZY = """
import sys
from silo.cli import app
from feddrm.cli import invoke
code = invoke(app, sys.argv[1:])
assert not {"torch", "opacus"} & set(sys.modules), "torch was loaded"
sys.exit(code)
"""


@pytest.mark.parametrize(
    "command", [["--help"], ["serve", "--help"], ["status", "DIR"], ["ledger", "export", "--help"]]
)
def test_commands_that_train_nothing_load_no_torch(command: list[str], home: Home) -> None:
    arguments = [str(home.root) if word == "DIR" else word for word in command]
    done = subprocess.run([sys.executable, "-c", LAZY, *arguments], capture_output=True, text=True, check=False)
    assert "torch was loaded" not in done.stderr
    # A directory that has not joined is refused in one sentence; the help needs no directory.
    assert done.returncode == (3 if "status" in command else 0), done.stderr


def test_stop_says_when_nothing_runs(home: Home) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "silo.cli", "stop", str(home.root), "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"stopped": False, "running": False}


def test_stop_waits_until_the_agent_is_gone(home: Home) -> None:
    process = holder(home)
    done = subprocess.Popen(
        [sys.executable, "-m", "silo.cli", "stop", str(home.root), "--format", "json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    process.wait()
    out, _ = done.communicate()
    assert json.loads(out) == {"stopped": True, "running": False, "process": process.pid}
    assert process.returncode == -signal.SIGTERM
