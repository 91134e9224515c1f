"""Memory that a process frees and needs again is still there: asked of the kernel, in a process of its own."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

# Three vectors of 16 MiB at once are more than glibc keeps by itself, once it has seen one.
_PROGRAM = """
import resource, sys
from feddrm.memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
for turn in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    vectors = [b"x" * (16 << 20) for _ in range(3)]
    del vectors
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(kept, faults)
"""


def faults_of_the_last_turn(mode: str) -> int:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", _PROGRAM, mode]
    kept, faults = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    assert kept == str(mode == "keep")
    return int(faults)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="mallopt is glibc's")
def test_vectors_of_the_next_round_cost_no_new_pages() -> None:
    assert faults_of_the_last_turn("leave") > 3 * (16 << 20) // 4096 // 2
    assert faults_of_the_last_turn("keep") < 100
