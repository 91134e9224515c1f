from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from query_world import Running, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with Running(world) as port:
        world.join(port)
        yield world
