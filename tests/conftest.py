"""For all tests: how Hypothesis searches, and which tests share a worker.

By itself Hypothesis takes the same examples every time, so that a run depends on the commit alone; with
HYPOTHESIS_PROFILE=explore (`make soak`) other ones each time, and more of them. Nothing measures the machine; no
examples are kept: one that fails is frozen as a test. What a test sets itself wins.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

LOOK_AT_THE_SMALL_FEDERATION = {
    "test_report_in_chromium.py",
    "test_small_federation.py",
    "test_traffic.py",
    "test_wrong_inputs.py",
}

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", settings.get_profile("repeatable"), derandomize=False, max_examples=1000, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands whole files to a worker, in order; all that look at the one small federation go to the same."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return "small" if Path(file).name in LOOK_AT_THE_SMALL_FEDERATION else file

    return Files(config, log)
