"""What becomes of a silo that was caught: its evidence outlives session, checkpoint and restart, and faults add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coordinator_harness import World

from aggregator.blobs import EVIDENCE
from feddrm.contract import messages as m
from feddrm.contract.codec import FRAME
from secagg.bodies import Abort
from secagg.keys import sign
from secagg.wire import Frame, Step

BAD = "site-4"


def kept(world: World) -> list[bytes]:
    return [path.read_bytes() for path in sorted((world.directory / "blobs" / EVIDENCE).iterdir())]


def malformed(world: World, step: Step, rounds: int) -> None:
    """The silo signs frames of a step that are no frames, for so many rounds."""
    original = world.take

    def corrupt(name: str, event: Any) -> None:
        guilty = name == BAD and len(world.job.outcomes) < rounds
        if guilty and isinstance(event, m.SiloFrame) and event.frame.step == step:
            frame = event.frame
            event = m.SiloFrame(sign(step, BAD, frame.body + b"\0", world.silos[BAD].signer, frame.attachment))
        original(name, event)

    world.take = corrupt  # type: ignore[method-assign]


@pytest.mark.parametrize("step", [Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY, Step.UNMASK])
def test_evidence_of_a_fault_is_kept_for_good(world: World, step: Step) -> None:
    malformed(world, step, 1)
    world.run(lambda: len(world.job.outcomes) == 1)
    (evidence,) = kept(world)
    assert BAD.encode() in evidence
    # The job goes on to its end, whose checkpoint forgets the session, and the process dies.
    world.run()
    world.restart_coordinator()
    assert kept(world) == [evidence]
    assert BAD not in world.job.barred
    assert world.job.offences == {BAD: 1}


def test_evidence_is_kept_once_when_the_log_is_replayed_in_the_middle(world: World) -> None:
    malformed(world, Step.KEYS, 1)
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    before = kept(world)
    assert len(before) == 1
    world.restart_coordinator()
    world.run()
    assert kept(world) == before


def test_the_second_fault_costs_the_job_though_every_round_came_to_a_sum(tmp_path: Path) -> None:
    world = World(tmp_path / "server", training__rounds=3)
    world.connect()
    world.start()
    malformed(world, Step.MASKED, 2)
    world.run()
    assert [h.outcome for h in world.job.history] == ["published"] * 3
    assert [BAD in h.cohort for h in world.job.history] == [True, True, False]
    assert world.job.barred[BAD][0] == b""


def test_an_accusation_is_kept_with_its_evidence_as_it_was_signed(world: World) -> None:
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    agent = world.silos["site-2"]
    frame: Frame = agent.state.abort("a share that does not open", BAD, b"evidence")
    agent.state = None
    for event in (frame, frame, replace(frame, attachment=b"another")):
        world.take("site-2", m.SiloFrame(event))
    assert [FRAME.decode(data) for data in kept(world)] == [frame]
    assert Abort.decode(frame.body).blamed == BAD
