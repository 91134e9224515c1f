"""How benchmarks measure and print."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def cpu_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median CPU seconds of `work` in this process, after one run to warm up."""
    work()
    samples = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        samples.append(time.process_time() - start)
    return statistics.median(samples)


def parser(about: str) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    options = argparse.ArgumentParser(description=about)
    options.add_argument("--format", choices=("text", "json"), default="text")
    options.add_argument("--quick", action="store_true", help="small sizes only")
    return options


def arguments(argv: Sequence[str] | None, about: str) -> argparse.Namespace:
    """What was given of them."""
    return parser(about).parse_args(argv)


def progress(text: str) -> None:
    """A line for whoever watches; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def show(rows: Sequence[dict[str, Any]], title: str, form: str) -> None:
    """Print rows of equal keys as a table, or as one JSON object a line."""
    if form == "json":
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    table = Table(title=title, title_justify="left")
    for key in rows[0]:
        table.add_column(key, justify="right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console(width=max(120, Console().width)).print(table)
