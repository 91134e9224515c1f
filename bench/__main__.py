"""`make bench` runs all benchmarks; `python -m bench.secagg --format json` and the like run one."""

from __future__ import annotations

import subprocess
import sys

from bench import accounting, dpsgd, noise, rounds

if __name__ == "__main__":
    # A process of its own, whose memory settings the agents and trainings of the others do not get.
    subprocess.run([sys.executable, "-m", "bench.secagg", *sys.argv[1:]], check=True)
    for benchmark in (rounds, noise, dpsgd, accounting):
        benchmark.main(sys.argv[1:])
