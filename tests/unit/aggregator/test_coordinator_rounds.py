"""The coordinator's state machine against real secagg clients: dropouts, retries, lost rounds, catching up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coordinator_harness import Identities, Upload, World

from aggregator.events import FromSilo, ReleaseOrdered
from feddrm.contract import messages as m
from feddrm.contract.errors import InputError
from feddrm.contract.release import read_bundle, verify_release
from feddrm.contract.rounds import Ack, Lost, sign_ack, verify_outcome
from feddrm.method.update import model_hash
from secagg.wire import Step

# What a silo gets before it sends the frame of a step.
REQUEST_OF = {
    Step.KEYS: lambda e: isinstance(e, m.Announce),
    Step.SHARES: lambda e: isinstance(e, m.StepFrames) and e.step == Step.KEYS,
    Step.MASKED: lambda e: isinstance(e, m.StepFrames) and e.step == Step.SHARES,
    Step.CONSISTENCY: lambda e: isinstance(e, m.StepFrames) and e.step == Step.MASKED,
    Step.UNMASK: lambda e: isinstance(e, m.StepFrames) and e.step == Step.CONSISTENCY,
}
ALL = tuple(f"site-{i}" for i in range(1, 6))


def without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in ALL if name not in names)


class Fault:
    """Does something to a silo the first time that it is about to send a step's frame in a round."""

    def __init__(self, world: World, step: Step, *names: str, act: Any) -> None:
        self.world, self.step, self.names, self.act = world, step, names, act
        self.done: set[str] = set()
        world.filter = self

    def __call__(self, way: str, silo: str, event: Any) -> bool:
        if way == "down" and silo in self.names and silo not in self.done and REQUEST_OF[self.step](event):
            self.done.add(silo)
            self.act(silo)
            return False
        return True


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

    def sabotage(way: str, silo: str, event: Any) -> bool:
        if silo in ("site-1", "site-2", "site-4") and way == "down":
            if REQUEST_OF[Step.MASKED](event):
                world.kill(silo)
                return False
            return not isinstance(event, m.AbortRequest)
        return True

    world.filter = sabotage
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

    def sabotage(way: str, silo: str, event: Any) -> bool:
        if silo in ("site-1", "site-2", "site-4") and way == "down":
            if REQUEST_OF[Step.MASKED](event):
                world.kill(silo)
                return False
            return not isinstance(event, m.AbortRequest)
        return True

    world.filter = sabotage
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


def test_an_absent_silo_is_waited_for_no_longer_than_the_plan_says(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities)
    world.connect(*without("site-5"))
    world.down.add("site-5")
    world.start()
    start = world.now
    world.run(lambda: world.phase == "Running")
    assert world.now - start == 10_000
    assert world.job.phase.session.announcement.cohort == without("site-5")
    world.connect("site-5")
    world.run()
    world.check()
    assert world.sums() == [15, 31]


def test_an_absent_silo_delays_one_round_once(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities, training__rounds=4)
    world.connect()
    world.start()
    world.run(lambda: len(world.job.outcomes) == 1 and world.phase == "Gathering")
    start = world.now
    world.disconnect("site-5")
    world.run(lambda: len(world.job.outcomes) == 4)
    assert world.now - start == 10_000
    assert [h.survivors for h in world.job.history[1:]] == [without("site-5")] * 3


def test_a_connected_silo_that_has_not_answered_yet_is_not_left_out(tmp_path: Path, identities: Identities) -> None:
    """Loading data may take longer than one waits for a silo that is away."""
    world = World(tmp_path / "server", identities=identities)
    late: list[tuple[str, Any]] = []

    def load(way: str, silo: str, event: Any) -> bool:
        if way == "down" and silo == "site-5" and isinstance(event, m.JobOffer) and not late:
            late.append((silo, event))
            return False
        return True

    world.filter = load
    world.connect()
    world.start()
    world.run(lambda: bool(late) and not world.to_silo and not world.to_coordinator)
    assert world.status().waiting_for == ("site-5",)
    due = world.engine.coordinator.due_ms()
    assert due is not None
    assert due - world.now == 100_000
    world.now += 60_000
    world.to_silo.extend(late)
    world.run()
    assert world.sums() == [31, 31]


def test_a_decliner_shows_in_the_status_and_trains_nothing(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities)
    world.silos["site-3"].decline = m.DeclineReason.POLICY
    world.connect()
    world.start()
    start = world.now
    world.run()
    assert world.now == start, "who declines is not waited for"
    assert world.sums() == [27, 27]
    states = {silo.name: silo.state for silo in world.status().silos}
    assert states["site-3"] == "declined: policy"
    assert not world.silos["site-3"].entered
    assert not world.silos["site-3"].contributions


def test_too_many_decliners_leave_no_quorum_until_one_changes_its_policy(
    tmp_path: Path, identities: Identities
) -> None:
    world = World(tmp_path / "server", identities=identities)
    for name in ("site-3", "site-4"):
        world.silos[name].decline = m.DeclineReason.BUDGET
    world.connect()
    world.start()
    world.run()
    status = world.status()
    assert status.state == "gathering"
    assert status.detail == "3 silos are ready, 4 are needed, and too many do not take part: site-3, site-4"
    world.silos["site-4"].decline = None
    world.kill("site-4")
    world.connect("site-4")
    world.run()
    assert world.sums() == [27, 27]


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
