"""Random interleavings of delivery, loss, duplication, crash and restart; silo i contributes 2**i, so that any double
count or omission shows. A seed that ever fails becomes a test of its own."""

from __future__ import annotations

from collections import Counter

import pytest
from secagg_world import World

OPERATIONS = 3000


def run(seeds: range) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        try:
            World(seed, outcomes).run(OPERATIONS)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    return outcomes


def test_random_interleavings() -> None:
    """Besides the invariants: the runs must have gone everywhere, or they prove nothing."""
    outcomes = run(range(1000, 1250))
    assert outcomes["published"] > 60, outcomes
    assert outcomes["published after a retry"] > 10, outcomes
    assert outcomes["published with dropouts"] > 5, outcomes
    assert outcomes["lost"] > 5, outcomes
    assert outcomes["verified"] > 100, outcomes


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_random_interleavings() -> None:
    run(range(10_000, 20_000))
