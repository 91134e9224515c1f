"""The demo from an installed wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Installed:
    """feddrm installed from its wheel: how to run it, and from where."""

    site: Path
    cwd: Path

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1"}

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "feddrm.demo.cli", *arguments],
            cwd=self.cwd,
            env=self.environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def demo(self, *arguments: str) -> dict[str, Any]:
        process = self.start("demo", *arguments, "--format", "json")
        output, errors = process.communicate(timeout=880)
        assert process.returncode == 0, errors + output
        result: dict[str, Any] = json.loads(output)
        return result
