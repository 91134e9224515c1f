"""Masked inputs and sums that travel with their frames: as durable, and checked as strictly, as those by themselves."""

from __future__ import annotations

import pytest
from coordinator_harness import World
from coordinator_small import send_along

from aggregator import acknowledge
from aggregator.blobs import SUMS
from feddrm.contract import messages as m
from secagg.hashing import blob_hash
from secagg.wire import Step


def test_what_came_with_a_logged_frame_survives_a_kill(world: World) -> None:
    send_along(world)
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    world.run(lambda: len(world.job.phase.session.state.missing) == 2)
    held = world.job.phase.session.state.missing
    world.engine.submit_all(())
    world.restart_coordinator()
    assert world.job.phase.session.state.missing == held
    assert not list((world.directory / "uploads").rglob("*.*"))
    world.run(lambda: len(world.job.outcomes) == 1)
    assert world.job.history[0].survivors == tuple(world.silos)
    assert world.job.history[0].attempt == 1
    world.check()


def test_a_vector_other_than_was_signed_is_not_added(world: World) -> None:
    send_along(world, forger="site-2")
    world.run(lambda: len(world.job.outcomes) == 1)
    assert world.job.history[0].survivors == tuple(name for name in world.silos if name != "site-2")
    assert world.sums() == [sum(1 << silo.index for name, silo in world.silos.items() if name != "site-2")]


@pytest.mark.parametrize("small", [True, False])
def test_a_small_sum_is_sent_along_and_kept_for_who_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if not small:
        monkeypatch.setattr(acknowledge, "SMALL_VECTOR", 16)
    world.run(lambda: len(world.job.outcomes) == 1)
    sent = [event for _, event in world.sent if isinstance(event, m.Publish)]
    assert len(sent) >= len(world.silos)
    data = world.engine.store.blobs.get(SUMS, sent[0].sum)
    assert blob_hash(data) == sent[0].sum
    assert {event.frame.attachment for event in sent} == {data if small else b""}
