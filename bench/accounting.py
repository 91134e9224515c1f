"""Privacy accounting: a ledger of many rounds, first and again, against one round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench.report import arguments, show
from privacy.accounting import epsilon
from privacy.events import PoissonSubsampledGaussian


def _once(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main(argv: Sequence[str] | None = None) -> None:
    """Print CPU seconds; the first row pays the import of dp-accounting."""
    options = arguments(argv, "Privacy accounting, CPU seconds")
    rows = []
    for rounds in (1, 20, 1000):
        # A noise multiplier of its own for each row, or the cache would answer.
        events = [PoissonSubsampledGaussian(1.7 + rounds / 1e5, 0.03, 5)] * rounds
        first = _once(lambda events=events: epsilon(events, 1e-6))  # type: ignore[misc]
        again = _once(lambda events=events: epsilon(events, 1e-6))  # type: ignore[misc]
        rows.append({"rounds": rounds, "first_s": first, "again_s": again})
    show(rows, "Accounting: CPU seconds for a ledger", options.format)


if __name__ == "__main__":
    main()
