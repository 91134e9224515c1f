"""`status --watch` and the querier's patience, against a coordinator that is not there yet, or goes and comes back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_federation import plan_text, write_records

from feddrm.demo.federation import Federation, Hospital
from feddrm.demo.processes import AGGREGATOR, QUERY, Daemon, Processes

HOSPITALS = ("north", "south", "east")


class Background:
    """A command that runs beside the test; its output line by line, as a person would see it."""

    def __init__(self, module: str, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + 120
        while words not in self.text:
            assert self.process.poll() is None or words in self.text, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def end(self) -> int:
        code = self.process.wait(timeout=120)
        self._reader.join()
        return code


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three hospitals and a clinic are enrolled; nobody's agent runs."""
    directory = tmp_path_factory.mktemp("operator")
    with Processes(directory / "logs") as processes:
        hospitals = [Hospital(name, directory / f"{name}.csv", "person", 70, 50.0) for name in HOSPITALS]
        federation = Federation(directory, processes, "small", hospitals)
        federation.found()
        federation.enrol(["clinic"])
        yield federation


def stop(daemon: Daemon) -> None:
    daemon.process.terminate()
    daemon.process.wait(timeout=60)


def status(federation: Federation, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", AGGREGATOR, "status", "--operator", str(federation.operator), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_watcher_is_told_that_there_is_no_job_and_sees_a_restart_through(federation: Federation) -> None:
    never_there = status(federation, "--watch")
    assert never_there.returncode == 7, "an address that is wrong is known at once"

    coordinator = federation.start_coordinator()
    idle = status(federation, "--watch")
    assert idle.returncode == 0
    assert "no job was started" in idle.stdout
    assert "--wait" in idle.stderr
    assert status(federation, "--wait").returncode == 2

    watcher = Background(AGGREGATOR, "status", "--watch", "--wait", "--operator", federation.operator)
    try:
        impatient = Background(
            AGGREGATOR, "status", "--watch", "--wait", "--patience", "1", "--operator", federation.operator
        )
        for one in (watcher, impatient):
            one.wait_for("Waiting for a job to start.")
        stop(coordinator)
        assert impatient.end() == 7
        watcher.wait_for("Asking again for up to 600 s.")
        coordinator = federation.start_coordinator()
        watcher.wait_for("The coordinator answers again.")
        federation.start_job(plan_text(2, silos=HOSPITALS))
        watcher.wait_for("0 silos are ready")
        stop(coordinator)
        coordinator = federation.start_coordinator()
        operator = federation.operator
        federation.processes.run(AGGREGATOR, "job", "stop", "--operator", operator, "--reason", "a test")
        assert watcher.end() == 3
        assert "stopped by the operator: a test" in watcher.text
    finally:
        watcher.process.kill()
        watcher.end()
        stop(coordinator)


def test_a_querier_waits_for_a_coordinator_that_is_not_there_yet(federation: Federation, tmp_path: Path) -> None:
    questions = tmp_path / "questions.csv"
    write_records(questions, "north", target=False)
    home = federation.home("clinic")
    asked = Background(QUERY, "route", questions, "--dir", home, "--patience", "100")
    try:
        asked.wait_for("Asking again for up to 100 s.")
        coordinator = federation.start_coordinator()
        try:
            # There is no release: that answer came over the connection that was waited for.
            assert asked.end() == 7
        finally:
            stop(coordinator)
        assert "No release is in service yet" in asked.text
    finally:
        asked.process.kill()
        asked.end()
    impatient = Background(QUERY, "route", questions, "--dir", home, "--patience", "0")
    assert impatient.end() == 7
    assert "Nothing listens" in impatient.text
    assert "Asking again" not in impatient.text
