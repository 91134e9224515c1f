"""Starts the roles as real processes, exactly as their users would, and never leaves one behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from feddrm.contract.errors import FeddrmError

AGGREGATOR = "aggregator.cli"
SILO = "silo.cli"
QUERY = "feddrm.query.cli"
AUDIT = "feddrm.audit.cli"

_STOP_SECONDS = 10.0


class CommandFailedError(FeddrmError):
    """A command of the demo ended with an error; the message is that command's own."""


@dataclass
class Daemon:
    """A long-running role."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.process.poll()

    def stop(self, seconds: float = _STOP_SECONDS) -> None:
        """SIGTERM, then SIGKILL for whoever does not end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def tail(self, lines: int = 12) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class Processes:
    """All processes of one demo. A context manager: leaving it ends every one of them."""

    logs: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    _daemons: list[Daemon] = field(default_factory=list)
    _read_end: int = -1
    _write_end: int = -1

    def __enter__(self) -> Processes:
        self.logs.mkdir(parents=True, exist_ok=True)
        self._read_end, self._write_end = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons:
            if daemon.poll() is None:
                daemon.process.send_signal(signal.SIGTERM)
        # One time limit for all of them: one each would add up to minutes on a machine where all are slow.
        deadline = time.monotonic() + _STOP_SECONDS
        for daemon in self._daemons:
            daemon.stop(max(0.0, deadline - time.monotonic()))
        os.close(self._write_end)
        os.close(self._read_end)

    def _start(
        self, module: str, arguments: Sequence[str | Path], output: IO[Any] | int, errors: IO[Any] | int
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "feddrm.demo.child", str(self._read_end), module]
        return subprocess.Popen(
            [*command, *(str(argument) for argument in arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            pass_fds=(self._read_end,),
            # Its own session: a Ctrl-C in the terminal reaches the demo alone, which then ends the others in order.
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
        )

    def run(self, module: str, *arguments: str | Path, accept: Sequence[int] = (0,)) -> str:
        """Run a command to its end and return what it printed.

        Raises:
            CommandFailedError: its exit code is not in `accept`.
        """
        process = self._start(module, arguments, subprocess.PIPE, subprocess.PIPE)
        try:
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode not in accept:
            words = " ".join([module, *(str(argument) for argument in arguments)])
            detail = errors.decode(errors="replace").strip() or output.decode(errors="replace").strip()
            raise CommandFailedError(f"`{words}` ended with exit code {process.returncode}: {detail}")
        return output.decode()

    def run_json(self, module: str, *arguments: str | Path, accept: Sequence[int] = (0,)) -> Any:
        """Run a command with --format json and return the object it printed."""
        return json.loads(self.run(module, *arguments, "--format", "json", accept=accept))

    def serve(self, name: str, module: str, *arguments: str | Path) -> Daemon:
        """Start a long-running role; its output goes to a log file of its own, appended to over restarts."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            daemon = Daemon(name, self._start(module, arguments, output, subprocess.STDOUT), log)
        self._daemons.append(daemon)
        return daemon

    def stream(self, module: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """Start a command whose output is read line by line while it runs."""
        process = self._start(module, arguments, subprocess.PIPE, (self.logs / "stream.log").open("ab"))
        self._daemons.append(Daemon(module, process, self.logs / "stream.log"))
        return process
