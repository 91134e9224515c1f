"""`make bench` runs all benchmarks; `python -m bench.secagg --format json` and the like run one."""

from __future__ import annotations

import sys

from bench import accounting, dpsgd, noise, rounds, secagg

if __name__ == "__main__":
    for benchmark in (secagg, rounds, noise, dpsgd, accounting):
        benchmark.main(sys.argv[1:])
