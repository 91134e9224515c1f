from __future__ import annotations

from pathlib import Path

import pytest
from coordinator_harness import Identities, World

_FIVE = Identities(tuple(f"site-{i}" for i in range(1, 6)))


@pytest.fixture
def identities() -> Identities:
    """One federation of five silos; keys are made once."""
    return _FIVE


@pytest.fixture
def world(tmp_path: Path, identities: Identities) -> World:
    """Five silos, connected, a job started, nothing delivered yet."""
    made = World(tmp_path / "server", identities=identities)
    made.connect()
    made.start()
    return made
