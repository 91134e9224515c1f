"""The coordinator's state machine against real secagg clients: dropouts at every step, and what is tried again."""

from __future__ import annotations

from typing import Any

import pytest
from coordinator_faults import ALL, REQUEST_OF, Fault, without
from coordinator_harness import Upload, World

from aggregator.events import FromSilo, ReleaseOrdered
from feddrm.contract import messages as m
from feddrm.contract.release import read_bundle, verify_release
from feddrm.contract.rounds import Lost, verify_outcome
from secagg.wire import Step


def test_a_job_from_start_to_release(world: World) -> None:
    world.run()
    assert world.sums() == [31, 31]
    world.check()
    status = world.status()
    assert (status.state, status.round, status.rounds) == ("release ready", 2, 2)
    assert [h.survivors for h in status.history] == [ALL, ALL]
    assert {s.rounds_joined for s in status.silos} == {2}
    (release,) = world.engine.coordinator.releases.candidates
    world.submit(ReleaseOrdered(release))
    world.run()
    assert world.status().state == "completed"
    assert all(silo.ended[-1].completed for silo in world.silos.values())
    bundle = read_bundle(world.directory / "releases" / release)
    verified = verify_release(bundle.statement, plan=bundle.plan, roster=world.identities.roster)
    assert (verified.id, verified.signatures) == (release, 5)
    assert world.engine.serving is not None
    assert world.engine.serving.release == verified.hash


@pytest.mark.parametrize(
    ("step", "survivors", "opened"),
    [
        (Step.KEYS, without("site-3"), ()),
        (Step.SHARES, without("site-3"), ()),
        (Step.MASKED, without("site-3"), ("site-3",)),
        (Step.CONSISTENCY, ALL, ()),
        (Step.UNMASK, ALL, ()),
    ],
)
@pytest.mark.parametrize("returns", [False, True], ids=["away", "back at once"])
def test_a_silo_killed_at_every_step(
    world: World, step: Step, survivors: tuple[str, ...], opened: tuple[str, ...], returns: bool
) -> None:
    def act(silo: str) -> None:
        world.kill(silo)
        if returns:
            world.connect(silo)

    Fault(world, step, "site-3", act=act)
    start = world.now
    world.run(lambda: len(world.job.outcomes) == 1)
    (summary,) = world.job.history
    assert (summary.outcome, summary.survivors, summary.mask_keys_opened) == ("published", survivors, opened)
    # A silo that comes back as another process is not waited for: what it held in memory is gone.
    patience = {Step.KEYS: 100_000, Step.UNMASK: 0}.get(step, 20_000)
    assert world.now - start <= (0 if returns else patience)
    if "site-3" in world.down:
        world.connect("site-3")
    world.run()
    assert world.job.history[1].survivors == ALL
    world.check()


@pytest.mark.parametrize("step", list(REQUEST_OF))
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_silo_cut_off_at_every_step_resumes_its_session(world: World, step: Step, lost: str) -> None:
    done: list[Step] = []

    def cut(way: str, silo: str, event: Any) -> bool:
        frame = event.frame if isinstance(event, m.SiloFrame) else None
        hit = REQUEST_OF[step](event) if lost == "request" else frame is not None and frame.step == step
        if not done and silo == "site-2" and hit and way == ("down" if lost == "request" else "up"):
            done.append(step)
            world.disconnect(silo)
            world.connect(silo)
            return False
        return True

    world.filter = cut
    start = world.now
    world.run()
    assert done
    assert [h.survivors for h in world.job.history] == [ALL, ALL]
    assert world.now == start, "nobody is waited for who is there"
    world.check()


def test_too_many_dropouts_after_masking_lead_to_a_certified_retry(world: World) -> None:
    Fault(world, Step.MASKED, "site-1", "site-4", act=world.crash)
    world.run(lambda: len(world.job.outcomes) == 1)
    (summary,) = world.job.history
    assert (summary.attempt, summary.survivors) == (2, ALL)
    retry = next(e for _, e in world.sent if isinstance(e, m.Announce) and e.abort_certificate)
    assert len(retry.abort_certificate) >= 3
    masked = {name: silo.contributions for name, silo in world.silos.items()}
    assert masked == {"site-1": {1: 1}, "site-2": {1: 2}, "site-3": {1: 2}, "site-4": {1: 1}, "site-5": {1: 2}}
    world.run()
    world.check()
    assert world.sums() == [31, 31]


def test_a_retry_before_masking_needs_no_certificate(world: World) -> None:
    Fault(world, Step.SHARES, "site-1", "site-4", act=world.crash)
    world.run(lambda: len(world.job.outcomes) == 1)
    assert world.job.history[0].attempt == 2
    assert not any(e.abort_certificate for _, e in world.sent if isinstance(e, m.Announce))
    assert not any(isinstance(e, m.AbortRequest) for _, e in world.sent)


def test_without_a_certificate_the_round_is_lost_and_the_job_waits_by_name(world: World) -> None:
    gone = ("site-1", "site-2", "site-4")
    Fault(world, Step.MASKED, *gone, act=world.kill)
    world.run()
    assert [h.outcome for h in world.job.history] == ["lost"]
    record = verify_outcome(world.job.outcomes[0], world.plan.plan, world.identities.roster, plan_hash=world.plan.hash)
    assert isinstance(record, Lost)
    status = world.status()
    assert (status.state, status.waiting_for) == ("gathering", gone)
    assert status.detail == "2 silos are ready, 4 are needed; waiting for site-1, site-2, site-4"
    # A lost round leaves the model where it was, and those who were away hear of it first.
    assert world.job.models[1] == world.job.models[0]
    world.connect(*gone)
    world.run()
    assert [h.outcome for h in world.job.history] == ["lost", "published"]
    assert world.sums() == [31]
    world.check()


def test_a_round_that_too_few_may_try_again_is_given_up(world: World) -> None:
    """Those who masked without a certificate that convinces them sit the round out; the next one has them again."""
    for silo in world.silos.values():
        silo.remembers_u1 = False
    Fault(world, Step.KEYS, "site-4", act=world.crash)
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    assert len(world.job.phase.session.members) == 4
    Fault(world, Step.MASKED, "site-3", "site-5", act=world.kill)
    world.run(lambda: world.phase == "Gathering")
    world.connect("site-5")
    world.run(lambda: len(world.job.outcomes) == 1)
    assert [h.outcome for h in world.job.history] == ["lost"]
    assert world.silos["site-1"].contributions == {1: 1}
    world.connect("site-3")
    world.run()
    assert [h.outcome for h in world.job.history] == ["lost", "published"]
    assert world.job.history[1].survivors == ALL
    world.check()


def test_every_message_twice_changes_nothing(world: World) -> None:
    original = world.take

    def twice(name: str, event: Any) -> None:
        original(name, event)
        if not isinstance(event, Upload):
            original(name, event)

    world.take = twice  # type: ignore[method-assign]
    world.run()
    assert world.sums() == [31, 31]
    assert not world.job.barred
    world.check()


def test_frames_that_come_too_late_are_no_offence(world: World) -> None:
    held: list[tuple[str, Any]] = []

    def hold(way: str, silo: str, event: Any) -> bool:
        if way == "up" and silo == "site-2" and isinstance(event, m.SiloFrame) and not world.job.outcomes:
            held.append((silo, event))
            return False
        return True

    world.filter = hold
    world.run(lambda: len(world.job.outcomes) == 1)
    assert world.job.history[0].survivors == without("site-2")
    for silo, event in held:
        world.submit(FromSilo(silo, event))
    world.run()
    for silo, event in held:
        world.submit(FromSilo(silo, event))
    assert not world.job.barred
    assert world.job.history[1].survivors == ALL
    world.check()
