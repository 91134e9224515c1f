from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_federation import SmallRun, run_small_federation
from transport_world import greeting

from feddrm.contract.authority import Address


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRun]:
    """One finished job of four small hospitals; coordinator and silos still run while the tests look."""
    with run_small_federation(tmp_path_factory.mktemp("small")) as run:
        yield run


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the coordinator at `address`."""
    return tmp_path_factory.mktemp("coordinator")


@pytest.fixture(scope="module")
def address(directory: Path) -> Iterator[Address]:
    """Where a coordinator that only greets listens, one for each file of tests."""
    with greeting(directory) as address:
        yield address
