"""DP noise from a CSPRNG, against numpy's own generator, which is fast and must not be used for it."""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom

import numpy as np

from bench.report import arguments, cpu_seconds, show
from privacy.noise import GaussianSource, grid_for


def main(argv: Sequence[str] | None = None) -> None:
    """Print samples a CPU second, and the ratio to numpy."""
    options = arguments(argv, "CSPRNG noise, samples a CPU second")
    source, generator = GaussianSource(urandom), np.random.default_rng(0)
    rows = []
    for count in (10_000, 1_000_000):
        ours = cpu_seconds(lambda count=count: source.sample(count, 1.0, grid_for(1.0)))  # type: ignore[misc]
        numpy = cpu_seconds(lambda count=count: generator.normal(size=count))  # type: ignore[misc]
        rows.append(
            {
                "samples": count,
                "ours_per_second": count / ours,
                "numpy_per_second": count / numpy,
                "ours_over_numpy_time": ours / numpy,
            }
        )
    show(rows, "Noise: samples a CPU second", options.format)


if __name__ == "__main__":
    main()
