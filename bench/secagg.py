"""Secure aggregation side by side with Flower's SecAgg+, in one run: CPU seconds of a client and of the server.

See docs/benchmarks.md for what each side includes. Both sides get the same updates, threshold and dropouts; their
sessions alternate, so that other load on the machine hits them alike; every sum is checked.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from bench.flower import HOW_TO_GET, Flower, FlowerTimes, interpreter
from bench.inputs import threshold
from bench.limit import mask_and_limit
from bench.memory import client_memory
from bench.ours import Clock, Measured, session
from bench.report import parser, progress, show
from feddrm.memory import keep_freed_memory

_SHORT: Final = 100_000
_LONG: Final = 1_000_000
_COHORTS: Final = (5, 10, 20, 50, 100)
_OURS_ONLY: Final = 100
_MEMORY_COHORT: Final = 20
_MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One row; both sides run `repeats` times, in turn."""

    n: int
    cohort: int
    dropouts: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Target:
    """A figure of the summary and its bound: the least it may be if `at_least`, or what it has to stay under.

    There is no value if this run did not measure it.
    """

    figure: str
    value: float | None
    bound: float
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Whether it is met, for people."""
        if self.value is None:
            return "not measured"
        return "met" if (self.value >= self.bound if self.at_least else self.value < self.bound) else "NOT MET"

    def row(self) -> dict[str, Any]:
        """For a table."""
        need = f"{'at least' if self.at_least else 'under'} {self.bound:g}"
        return {"figure": self.figure, "measured": self.value, "needed": need, "": self.verdict}


def dropouts_of(cohort: int) -> tuple[int, int]:
    """None, and a tenth of the cohort rounded to a silo, at least one; of 100 silos 33, the most that t allows."""
    return 0, 33 if cohort == _OURS_ONLY else max(1, round(cohort / 10))


def cases(quick: bool, cohorts: Sequence[int] = _COHORTS) -> list[Case]:
    """What is run: a hundred clients or more of each side for a median, where a sum of Flower does not take a minute.

    Its server takes a second for a sum of 20, which varies, so that one sum is no measure.
    """
    repeats = {5: 1, 10: 1, 20: 1} if quick else {5: 25, 10: 11, 20: 7, 50: 1, _OURS_ONLY: 1}
    return [
        Case(n, cohort, dropouts, times)
        for n in ((_SHORT,) if quick else (_SHORT, _LONG))
        for cohort, times in repeats.items()
        for dropouts in dropouts_of(cohort)
        if cohort in cohorts
    ]


def measure(case: Case, flower: Flower | None, mask: tuple[float, float]) -> tuple[dict[str, Any], float]:
    """The row of a case, and the CPU seconds of our coordinator's part in R5 and R6 alone."""
    ours: list[Measured[Clock]] = []
    theirs: list[FlowerTimes] = []
    t = threshold(case.cohort)
    for _ in range(case.repeats):
        ours.append(session(case.n, case.cohort, t, case.dropouts, Clock))
        if flower is not None and case.cohort != _OURS_ONLY:
            theirs.append(flower.session(case.n, case.cohort, t, case.dropouts))
    row = {
        "n": case.n,
        "cohort": case.cohort,
        "dropouts": case.dropouts,
        "client_ours_s": statistics.median(silo.spent for one in ours for silo in one.silos),
        "client_flower_s": statistics.median(s for one in theirs for s in one.clients) if theirs else None,
        "server_ours_s": statistics.median(one.collecting.spent + one.unmasking.spent for one in ours),
        "server_flower_s": statistics.median(one.server for one in theirs) if theirs else None,
        "mask_s": mask[0],
        "mask_limit_s": mask[1],
    }
    return row, statistics.median(one.unmasking.spent for one in ours)


def _ratios(rows: Sequence[dict[str, Any]], who: str) -> Iterator[float]:
    for row in rows:
        if row[f"{who}_flower_s"] is not None:
            yield row[f"{who}_flower_s"] / row[f"{who}_ours_s"]


def summary(rows: Sequence[dict[str, Any]], unmask: float | None, memory: int | None) -> list[Target]:
    """The figures that this project promises, each the worst of the rows that it is about."""
    client = min(_ratios([row for row in rows if row["n"] == _LONG], "client"), default=None)
    server = min(_ratios([row for row in rows if row["cohort"] == 20], "server"), default=None)
    mask = max(row["mask_s"] / row["mask_limit_s"] for row in rows)
    return [
        Target(f"client, Flower's time over ours, n = {_LONG:,}, every cohort", client, 5, at_least=True),
        Target("server, Flower's time over ours, cohort 20", server, 20, at_least=True),
        Target("one mask over its limit", mask, 1.4),
        Target(f"unmask 100 silos of which 33 dropped out, n = {_LONG:,}: s", unmask, 2),
        Target(f"client's working memory, n = {_LONG:,}: MiB", None if memory is None else memory / _MEBIBYTE, 1),
    ]


def readable(row: dict[str, Any], repeats: int) -> dict[str, Any]:
    """A row for people: milliseconds, ratios, and how often each side that ran did."""

    def side(who: str) -> dict[str, Any]:
        ours, theirs = row[f"{who}_ours_s"], row[f"{who}_flower_s"]
        return {
            f"{who}, ours": 1000 * ours,
            f"{who}, Flower": None if theirs is None else 1000 * theirs,
            f"{who}, ratio": None if theirs is None else theirs / ours,
        }

    masks = {"mask": 1000 * row["mask_s"], "its limit": 1000 * row["mask_limit_s"]}
    return (
        {"n": row["n"], "K": row["cohort"], "lost": row["dropouts"]}
        | side("client")
        | side("server")
        | masks
        | {"runs": repeats}
    )


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options that all benchmarks share, and which cohorts, since the whole takes some ten minutes."""
    options = parser("Secure aggregation beside Flower's SecAgg+, CPU seconds")
    options.add_argument("--cohorts", type=int, nargs="+", choices=_COHORTS, default=_COHORTS, help="these alone")
    return options.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Print one row for every case, and then the summary (on stderr where the rows are for machines)."""
    options = arguments(argv)
    python = interpreter()
    rows: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    masks: dict[int, tuple[float, float]] = {}
    unmask: float | None = None
    with ExitStack() as stack:
        flower = None if python is None else stack.enter_context(Flower(python))
        for case in cases(options.quick, options.cohorts):
            progress(f"secagg: n = {case.n:,}, cohort {case.cohort}, {case.dropouts} dropouts")
            if case.n not in masks:
                masks[case.n] = mask_and_limit(case.n)
                measure(Case(case.n, 5, 0, 1), flower, masks[case.n])  # warms up both sides
            row, opening = measure(case, flower, masks[case.n])
            rows.append(row)
            tables.append(readable(row, case.repeats))
            if options.format == "json":
                show([row], "", "json")
            if case.n == _LONG and case.cohort == _OURS_ONLY and case.dropouts:
                unmask = opening
    memory = None
    if not options.quick:
        progress("secagg: memory of a silo")
        memory = client_memory(_LONG, _MEMORY_COHORT)
    targets = summary(rows, unmask, memory)
    if options.format == "json":
        for target in targets:
            progress(", ".join(str(value) for value in target.row().values()))
    else:
        show(tables, "Secure aggregation: CPU milliseconds for one sum, medians", "text")
        show([target.row() for target in targets], "Promised figures: the worst row that each is about", "text")
    if python is None:
        progress(HOW_TO_GET)


if __name__ == "__main__":
    # As agents and coordinator do when they start.
    keep_freed_memory()
    main()
