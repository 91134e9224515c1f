"""What becomes of a round: certificates that are lost on the way, lost rounds, and the release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coordinator_faults import ALL, three_fall_silent, without
from coordinator_harness import Identities, World

from aggregator.events import FromSilo, ReleaseOrdered
from feddrm.contract import messages as m
from feddrm.contract.errors import InputError
from feddrm.contract.rounds import Ack, sign_ack, verify_outcome
from feddrm.method.update import model_hash


def test_an_outcome_that_was_lost_on_the_way_is_sent_again_on_every_new_stream(world: World) -> None:
    """Only a silo that still differs after it was told on this very stream is left out."""

    def crash(way: str, silo: str, event: Any) -> bool:
        if not world.job.outcomes and way == "down" and isinstance(event, m.Publish) and silo in ("site-2", "site-5"):
            world.kill(silo)
            world.connect(silo)
            return False
        return True

    world.filter = crash
    world.run(lambda: len(world.job.outcomes) == 1)
    for _ in range(3):
        world.restart_coordinator()
        world.filter = lambda way, silo, event: not (silo == "site-1" and way == "down")
        for _ in range(8):
            world.step()
    assert not world.job.barred
    world.filter = lambda *_: True
    world.restart_coordinator()
    world.run()
    assert world.sums() == [31]
    world.check()


def test_a_silo_whose_model_stays_different_is_left_out(world: World) -> None:
    world.run(lambda: len(world.job.outcomes) == 1)
    odd = world.silos["site-4"]
    odd.models[1] = odd.models[1] + 1
    odd._outcome = lambda outcome: [odd.ready()]  # type: ignore[method-assign]
    world.disconnect("site-4")
    world.connect("site-4")
    world.run()
    assert world.job.history[1].survivors == without("site-4")
    states = {silo.name: silo.state for silo in world.status().silos}
    assert states["site-4"] == "left out until its agent is restarted: its model after round 1 differs"


def test_three_lost_rounds_in_a_row_end_the_job(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities, training__rounds=9)
    world.connect()
    world.start()

    three_fall_silent(world)
    for _ in range(5):
        world.run()
        world.connect(*(name for name in ALL if name in world.down))
    world.run()
    assert [h.outcome for h in world.job.history] == ["lost"] * 3
    status = world.status()
    assert (status.state, status.waiting_for) == ("failed", ())
    assert "3 rounds in a row" in status.detail


def test_no_release_of_too_few_published_rounds(world: World) -> None:
    """A coordinator that declares rounds lost gets no untrained model signed."""

    three_fall_silent(world)
    for _ in range(3):
        world.run()
        world.connect(*(name for name in ALL if name in world.down))
    world.run()
    assert [h.outcome for h in world.job.history] == ["lost", "lost"]
    assert world.status().state == "failed"
    assert world.status().detail == "0 rounds were published; a release requires 1"
    assert not world.engine.coordinator.releases.candidates


def test_a_published_round_without_acks_is_lost_and_taken_back(world: World) -> None:
    applied: dict[str, bytes] = {}

    def crash(way: str, silo: str, event: Any) -> bool:
        if len(world.job.outcomes) == 0 and way == "down" and isinstance(event, m.Publish):
            if silo in ("site-2", "site-5"):
                world.kill(silo)
                world.connect(silo)
                return False
            applied[silo] = b""
        return True

    world.filter = crash
    world.run(lambda: len(world.job.outcomes) == 1)
    assert world.job.history[0].outcome == "lost"
    assert set(applied) == {"site-1", "site-3", "site-4"}
    assert {world.silos[name].round for name in applied} == {1}
    assert {model_hash(world.silos[name].models[1]) for name in applied} != {world.job.models[0]}
    world.run()
    world.check()
    assert [h.outcome for h in world.job.history] == ["lost", "published"]
    assert world.job.history[1].survivors == ALL


def test_an_ack_that_was_lost_is_sent_again_by_a_restarted_silo(world: World) -> None:
    dropped: list[str] = []

    def lose(way: str, silo: str, event: Any) -> bool:
        if way == "up" and isinstance(event, m.AckEvent) and not dropped and len(world.job.outcomes) == 0:
            dropped.append(silo)
            world.kill(silo)
            world.connect(silo)
            return False
        return True

    world.filter = lose
    world.run()
    assert dropped
    assert [h.outcome for h in world.job.history] == ["published", "published"]
    world.check()


def test_an_ack_about_something_else_is_not_counted(world: World) -> None:
    def forge(way: str, silo: str, event: Any) -> bool:
        if way == "up" and isinstance(event, m.AckEvent) and silo == "site-1" and not world.job.outcomes:
            phase = world.job.phase
            lie = Ack(
                plan=world.plan.hash,
                round=1,
                session=phase.session.state.session,
                sum=bytes(32),
                count=5,
                model=phase.model_hash,
            )
            world.submit(FromSilo(silo, m.AckEvent(sign_ack(lie, world.silos[silo].signer))))
            honest = world.silos["site-2"].signer
            world.submit(FromSilo(silo, m.AckEvent(sign_ack(Ack.model_validate_json(event.ack.body), honest))))
            assert "site-1" not in phase.acks
            return False
        return True

    world.filter = forge
    world.run()
    assert [h.outcome for h in world.job.history] == ["published", "published"]
    first = world.job.outcomes[0]
    verify_outcome(first, world.plan.plan, world.identities.roster, plan_hash=world.plan.hash)
    keys = {signature.key for ack in first.acks for signature in ack.signatures}
    assert world.silos["site-1"].signer.public_key().public_bytes_raw() not in keys


def test_a_release_needs_its_threshold_of_honest_signatures(world: World) -> None:
    def withhold(way: str, silo: str, event: Any) -> bool:
        if way == "up" and isinstance(event, m.ReleaseSignature):
            if silo == "site-1":
                signed = event.statement
                forged = type(signed)(signed.body, (type(signed.signatures[0])(signed.signatures[0].key, bytes(64)),))
                world.submit(FromSilo(silo, m.ReleaseSignature(forged)))
            return silo not in ("site-1", "site-2")
        return True

    world.filter = withhold
    world.run()
    status = world.status()
    assert (status.state, status.waiting_for) == ("releasing", ("site-1", "site-2"))
    (release,) = world.engine.coordinator.releases.candidates
    with pytest.raises(InputError, match="3 of 4 signatures"):
        world.submit(ReleaseOrdered(release))
    assert world.engine.serving is None
    world.filter = lambda *_: True
    world.disconnect("site-2")
    world.connect("site-2")
    world.run()
    assert world.status().state == "release ready"


def test_a_plan_without_rounds_is_released_at_once(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities, training__rounds=0)
    world.connect()
    world.start()
    world.run()
    assert world.status().state == "release ready"
    (release,) = world.engine.coordinator.releases.candidates
    world.submit(ReleaseOrdered(release))
    world.run()
    assert world.status().state == "completed"
