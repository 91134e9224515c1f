"""Whole jobs with real participants, a real coordinator and their files, under faults at every moment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from federation_world import FederationWorld


def simulate(directory: Path, seeds: range, *, faults: float, limit: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        folder = directory / str(seed)
        folder.mkdir()
        world = FederationWorld(folder, seed, outcomes, faults=faults, limit=limit)
        try:
            world.run().check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        finally:
            world.close()
    return outcomes


def test_without_faults_every_round_is_published_with_everybody(tmp_path: Path) -> None:
    outcomes = simulate(tmp_path, range(2), faults=0.0, limit=0)
    assert outcomes["published"] == outcomes["rounds"] > 0
    assert not outcomes["published without somebody"]


def test_jobs_under_faults(tmp_path: Path) -> None:
    outcomes = simulate(tmp_path, range(100, 108), faults=0.1, limit=40)
    assert outcomes["published"] > 0.2 * outcomes["rounds"], outcomes
    assert outcomes["published without somebody"], outcomes
    assert outcomes["silo killed with its answer"], outcomes


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("start", range(10_000, 12_000, 200))
def test_two_thousand_jobs_under_faults(tmp_path: Path, start: int) -> None:
    outcomes = simulate(tmp_path, range(start, start + 200), faults=0.1, limit=40)
    assert outcomes["published"] > 0.2 * outcomes["rounds"], outcomes
    assert outcomes["attempts beyond the first"], outcomes
    assert outcomes["lost"], outcomes
