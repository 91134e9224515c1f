"""What becomes of a silo that was caught: its evidence outlives session, checkpoint and restart, and faults add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coordinator_harness import World

from aggregator.blobs import CASES, EVIDENCE
from aggregator.events import FromSilo
from feddrm.contract import messages as m
from feddrm.contract.case import Case
from feddrm.contract.codec import FRAME
from feddrm.contract.roster import roster_hash
from feddrm.contract.signed import Signed
from secagg.aborts import abort_frame
from secagg.bodies import Abort, Keys, Shares
from secagg.checks import ciphertext_hash
from secagg.evidence import judge
from secagg.exhibits import Conflict, WrongSecret, decode_exhibit, encode_exhibit
from secagg.keys import KeyPair, sign
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


def garbage_for(world: World, victim: str) -> None:
    """In the first round the silo deals garbage to one other."""
    original = world.take

    def corrupt(name: str, event: Any) -> None:
        if (
            name == BAD
            and isinstance(event, m.SiloFrame)
            and event.frame.step == Step.SHARES
            and not world.job.outcomes
        ):
            frame, names = event.frame, world.identities.names
            body = Shares.decode(frame.body)
            size = len(frame.attachment) // (len(names) - 1)
            at = [name for name in names if name != BAD].index(victim)
            junk = bytes(size)
            data = frame.attachment[: at * size] + junk + frame.attachment[(at + 1) * size :]
            index = names.index(victim)
            dealt = list(body.dealt)
            dealt[index] = replace(dealt[index], ciphertext=ciphertext_hash(junk))
            signed = replace(body, dealt=tuple(dealt)).encode()
            event = m.SiloFrame(sign(Step.SHARES, BAD, signed, world.silos[BAD].signer, data))
            # Its honest half believes that it sent this, and goes on.
            state = world.silos[BAD].state
            state._data = replace(state._data, sent=event.frame)
        original(name, event)

    world.take = corrupt  # type: ignore[method-assign]


def test_garbage_for_one_victim_convicts_its_dealer_though_the_round_came_to_a_sum(world: World) -> None:
    """Or a silo could keep a victim out of every sum while the others suffice."""
    garbage_for(world, "site-1")
    world.run()
    first, second = world.job.history
    assert first.survivors == tuple(name for name in world.identities.names if name != "site-1")
    assert second.cohort == tuple(name for name in world.identities.names if name != BAD)
    assert world.job.barred[BAD][1].startswith("dealt ")
    assert "site-1" not in world.job.offences
    (evidence,) = kept(world)
    session_of = FRAME.decode(evidence)
    assert (session_of.sender, Abort.decode(session_of.body).blamed) == ("site-1", BAD)


def test_a_made_up_accusation_convicts_the_accuser(world: World) -> None:
    """The frames are real and prove nothing: two that are the same."""
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.SHARES)
    session = world.job.phase.session
    victim = session.counted[Step.KEYS, "site-1"]
    evidence = encode_exhibit(Conflict(victim, victim, ()))
    frame = abort_frame(
        announcement=session.start,
        me=BAD,
        signer=world.silos[BAD].signer,
        released=False,
        reason="signed two different KEYS",
        blamed="site-1",
        evidence=evidence,
    )
    world.silos[BAD].state = None
    world.submit(FromSilo(BAD, m.SiloFrame(frame)))
    world.run()
    assert set(world.job.barred) == {BAD}
    assert "false accusation" in world.job.barred[BAD][1]
    assert world.job.history[1].cohort == tuple(name for name in world.identities.names if name != BAD)


@pytest.mark.parametrize("late", [False, True])
def test_a_second_r1_is_evidence_also_when_the_step_is_over(world: World, late: bool) -> None:
    world.run(lambda: world.phase == "Running" and world.job.phase.session.counted.get((Step.KEYS, BAD)) is not None)
    session = world.job.phase.session
    first = next(e.frame for name, e in world.received if name == BAD and isinstance(e, m.SiloFrame))
    if late:
        world.run(lambda: session.step == Step.MASKED)
    twin = replace(Keys.decode(first.body), mask=KeyPair.from_private(bytes(31) + b"\1").public)
    frame = sign(Step.KEYS, BAD, twin.encode(), world.silos[BAD].signer)
    # The honest resend before it is none.
    world.submit(FromSilo(BAD, m.SiloFrame(first)))
    assert not session.offenders
    world.submit(FromSilo(BAD, m.SiloFrame(frame)))
    assert BAD in session.offenders
    (evidence,) = kept(world)
    assert judge(evidence, session.frame.body, session.keys).guilty == BAD
    (file,) = (world.directory / "blobs" / CASES).iterdir()
    case = Case.from_json(file.read_bytes())
    assert (case.announcement, case.evidence) == (session.frame.body, evidence)
    assert roster_hash(Signed.from_json(case.roster).body) == session.announcement.roster
    world.run()
    assert world.job.history[0].survivors == tuple(name for name in world.identities.names if name != BAD)


def test_a_secret_that_does_not_match_its_commitment_convicts_its_dealer(world: World) -> None:
    """Found only when t shares are put together: the round is lost, the next goes on without the dealer."""
    original = world.take

    def corrupt(name: str, event: Any) -> None:
        if name == BAD and isinstance(event, m.SiloFrame) and event.frame.step == Step.KEYS and not world.job.outcomes:
            state = world.silos[BAD].state
            state._data = replace(state._data, seed=bytes(32))
        original(name, event)

    world.take = corrupt  # type: ignore[method-assign]
    world.run()
    first, second = world.job.history
    assert first.outcome == "lost"
    assert (second.outcome, second.cohort) == ("published", tuple(n for n in world.identities.names if n != BAD))
    (evidence,) = [data for data in kept(world) if BAD.encode() in data]
    assert isinstance(decode_exhibit(evidence), WrongSecret)
