"""DP noise from a CSPRNG, real and discrete, against numpy's generator, which is fast and must not be used for it."""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom

import numpy as np

from bench.report import arguments, cpu_seconds, show
from privacy.discrete import DiscreteGaussianSource
from privacy.noise import GaussianSource, grid_for


def main(argv: Sequence[str] | None = None) -> None:
    """Print samples a CPU second, and the ratio to numpy."""
    options = arguments(argv, "CSPRNG noise, samples a CPU second")
    real, discrete, generator = GaussianSource(urandom), DiscreteGaussianSource(urandom), np.random.default_rng(0)
    # The scale of a routing fit's noise; a table for it is made once.
    scale = 1 << 24
    discrete.sample(1, scale)
    rows = []
    for count in (10_000, 1_000_000):
        numpy = cpu_seconds(lambda count=count: generator.normal(size=count))  # type: ignore[misc]
        for name, draw in (
            ("gaussian", lambda count=count: real.sample(count, 1.0, grid_for(1.0))),  # type: ignore[misc]
            ("discrete gaussian", lambda count=count: discrete.sample(count, scale)),  # type: ignore[misc]
        ):
            ours = cpu_seconds(draw)
            rows.append(
                {
                    "noise": name,
                    "samples": count,
                    "ours_per_second": count / ours,
                    "numpy_per_second": count / numpy,
                    "ours_over_numpy_time": ours / numpy,
                }
            )
    show(rows, "Noise: samples a CPU second", options.format)


if __name__ == "__main__":
    main()
