from __future__ import annotations

from collections.abc import Iterator

import pytest
from small_federation import SmallRun, run_small_federation


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRun]:
    """One finished job of four small hospitals; coordinator and silos still run while the tests look."""
    with run_small_federation(tmp_path_factory.mktemp("small")) as run:
        yield run
