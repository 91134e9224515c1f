"""Flower's side of the comparison, seen from here: a process of the interpreter that has `flwr`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[1]
ENVIRONMENT: Final = ROOT / ".venv-flower"
HOW_TO_GET: Final = "Flower is not installed, so its columns are empty; `make bench` installs it into .venv-flower"


def interpreter() -> Path | None:
    """The Python that has Flower: the one of its own environment, else this one, else none."""
    # The stamp and not the interpreter, which is there as well where an installation was cut short.
    if (ENVIRONMENT / ".installed").exists():
        return ENVIRONMENT / "bin/python"
    return Path(sys.executable) if importlib.util.find_spec("flwr") else None


@dataclass(frozen=True, slots=True)
class FlowerTimes:
    """CPU seconds of every surviving client, and of the server."""

    clients: tuple[float, ...]
    server: float


class Flower:
    """The runner as a context: it starts once, and each `session` is one sum in it."""

    def __init__(self, python: Path) -> None:
        # One thread, as on our side; and a benchmark reports to nobody.
        environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [str(python), "-m", "bench.flower_runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def session(self, n: int, cohort: int, threshold: int, dropouts: int) -> FlowerTimes:
        """One sum; this process waits meanwhile.

        Raises:
            RuntimeError: the runner ended; what it had to say is on stderr.
        """
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("Flower's process has no pipes")
        request = {"n": n, "cohort": cohort, "threshold": threshold, "dropouts": dropouts}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"Flower's process ended with {process.wait()}")
        answer = json.loads(line)
        return FlowerTimes(tuple(answer["client_s"]), answer["server_s"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if error is not None:
            self._process.kill()
        self._process.wait()
