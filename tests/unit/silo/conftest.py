from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from silo_harness import NAMES, Desk, House, Trial


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Builds a federation whose plan has the given training keys; `policies` replaces a silo's policy."""
    made: list[House] = []

    def make(policies: dict[str, Any] | None = None, *, slot_ms: int = 0, **training: object) -> Desk:
        trial = Trial.make(**training)
        houses = {
            name: House(trial, name, tmp_path / name, (policies or {}).get(name) or trial.policy(), slot_ms)
            for name in NAMES
        }
        made.extend(houses.values())
        return Desk(trial, houses)

    yield make
    for house in made:
        house.die()


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    """A federation that has accepted the plan."""
    desk = make_desk()
    assert all(answer.accepted for answer in desk.offer().values())
    return desk
