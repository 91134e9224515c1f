"""Ctrl-C or SIGTERM at any moment ends a comparison of several processes: one word, nobody left, rows kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def members(session: int) -> list[int]:
    """Processes of a session that live."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(place.parent.name))
    return found


def start(folder: Path, processes: int) -> subprocess.Popen[str]:
    # What started the tests may ignore Ctrl-C, as a shell's background jobs do.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from feddrm.commands import main; main()"
    )
    command = [sys.executable, "-c", program, "compare", "rand", "--dir", str(folder), "--processes"]
    return subprocess.Popen(
        [*command, str(processes)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def one_begins(process: subprocess.Popen[str], _: Path) -> bool:
    """A worker beside the process that counts semaphores; the next is not begun, or half."""
    return len(members(process.pid)) >= 3


def workers_import(process: subprocess.Popen[str], _: Path) -> bool:
    """Which takes them seconds: the worst moment."""
    maps = (Path(f"/proc/{member}/maps") for member in members(process.pid) if member != process.pid)
    return any("torch" in place.read_text() for place in maps)


def rows_are_kept(_: subprocess.Popen[str], folder: Path) -> bool:
    return any((folder / "rows").glob("*.json"))


@pytest.mark.parametrize("moment", [one_begins, workers_import, rows_are_kept])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_a_word_and_leaves_nobody(
    number: signal.Signals, moment: Callable[[subprocess.Popen[str], Path], bool], tmp_path: Path
) -> None:
    folder = tmp_path / "there"
    process = start(folder, 2)
    deadline = time.monotonic() + 120
    while not moment(process, folder):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    # A terminal sends Ctrl-C to all, a batch system SIGTERM to the first.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    out, told = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert out == ""
    assert [line for line in told.splitlines() if not line.startswith("Rounds: ")] == ["Interrupted."]
    while members(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if moment is rows_are_kept:
        assert any((folder / "rows").glob("*.json"))
