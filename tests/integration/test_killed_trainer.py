"""kill -9 at any instant of a silo's charging and training: no leaf is lost, no step goes uncharged."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the silo extra is not installed")


@pytest.mark.parametrize(("lives", "seed"), [(20, 4), pytest.param(200, None, marks=pytest.mark.soak)])
def test_a_killed_trainer_loses_no_leaf_and_understates_nothing(tmp_path: Path, lives: int, seed: int | None) -> None:
    chosen = random.SystemRandom().randrange(2**32) if seed is None else seed
    script = Path(__file__).with_name("killed_trainer.py")
    command = [sys.executable, str(script), str(tmp_path / "ledger.db"), str(lives), str(chosen)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["faults"] == [], f"seed {chosen}"
    assert said["epsilon"] >= said["epsilon_of_what_was_trained"] > 0, f"seed {chosen}: {said}"
    assert said["charged"] >= said["rounds"] > 0, f"seed {chosen}: nothing was trained, so nothing was tested"
