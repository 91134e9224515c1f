"""For all tests: how Hypothesis searches, and which tests share a worker.

By itself Hypothesis takes the same examples every time, so that a run depends on the commit alone; with
HYPOTHESIS_PROFILE=explore (`make soak`) other ones each time, and more of them. Nothing measures the machine; no
examples are kept: one that fails is frozen as a test. What a test sets itself wins.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", settings.get_profile("repeatable"), derandomize=False, max_examples=1000, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests share its fixtures, and those who look at the small federation share that one, in one process."""
    for item in items:
        group = "small" if "small" in getattr(item, "fixturenames", ()) else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
