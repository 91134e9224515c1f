"""Commands that only read a silo's directory read that one, or say in a sentence why they cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from feddrm.contract.errors import InputError
from feddrm.contract.home import init_member
from feddrm.contract.identity import Role
from silo.export import export_evidence
from silo.home import Home
from silo.state import State

OPEN = """
import resource, sys
from pathlib import Path
from feddrm.contract.errors import InputError
from silo.state import State
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    State.open(Path(sys.argv[1])).close()
except InputError as error:
    print(f"{error.message} {error.remedy}")
"""


def test_a_disk_that_is_full_when_the_agent_starts_is_a_sentence(tmp_path: Path) -> None:
    state = State.open(tmp_path / "agent.db")
    state.set_fact("a", bytes(300_000))
    killed = tmp_path / "killed"
    killed.mkdir()
    # As a process that was killed leaves them: all of it in the log.
    for file in tmp_path.glob("agent.db*"):
        shutil.copy(file, killed)
    state.close()

    def opened(limit: int) -> str:
        command = [sys.executable, "-c", OPEN, str(killed / "agent.db"), str(limit)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout

    assert "cannot be used" in (said := opened(100_000))
    assert "Free some space" in said
    assert opened(10_000_000) == ""
    again = State.read(killed / "agent.db")
    assert again.fact("a") == bytes(300_000)
    again.close()


@pytest.mark.parametrize("name", ["ward #1", "a?mode=rwc", "50%23", "100% a&b", "straße"])
def test_no_name_of_a_directory_leads_to_another_file(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with_facts = State.open(folder / "agent.db")
    with_facts.set_fact("a", b"1")
    with_facts.close()
    reading = State.read(folder / "agent.db")
    assert reading.fact("a") == b"1"
    reading.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_database_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    for content in (b"", b"not a database at all" * 100):
        (tmp_path / "agent.db").write_bytes(content)
        with pytest.raises(InputError, match=r"agent\.db cannot be read"):
            State.read(tmp_path / "agent.db")


def test_evidence_goes_into_no_file(tmp_path: Path) -> None:
    init_member(tmp_path / "alpha", "alpha", Role.SILO)
    home = Home(tmp_path / "alpha")
    home.state.mkdir()
    State.open(home.database).close()
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(InputError, match="taken exists already"):
        export_evidence(home.root, tmp_path / "taken")
    assert export_evidence(home.root, tmp_path / "new" / "folder") == ()
