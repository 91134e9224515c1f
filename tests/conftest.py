"""How Hypothesis searches: by itself the same examples every time, so that a run depends on the commit alone; with
HYPOTHESIS_PROFILE=explore (`make soak`) other ones each time, and more of them.

Nothing measures the machine; no examples are kept: one that fails is frozen as a test. What a test sets itself wins.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", settings.get_profile("repeatable"), derandomize=False, max_examples=1000, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
