"""Accusations that prove nothing, by more silos than can collude; and those that come late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator_harness import World

from aggregator.blobs import CASES
from aggregator.events import FromSilo, Stamp
from aggregator.job import Room
from aggregator.offences import punish
from feddrm.contract import messages as m
from feddrm.contract.case import Case
from privacy.canonical import canonical_json
from privacy.merkle import Tree
from privacy.note import sign_head
from privacy.witness import asked_sizes
from secagg.aborts import abort_frame
from secagg.bodies import Keys
from secagg.evidence import judge
from secagg.exhibits import Conflict, encode_exhibit
from secagg.keys import KeyPair, sign
from secagg.wire import Step

BAD = "site-4"


def unbelievable(world: World, rounds: int = 99) -> None:
    """The silo's ledger is one that no other believes; whenever it is left out, it comes back as another process."""

    def leave(way: str, silo: str, event: Any) -> bool:
        keys = isinstance(event, m.StepFrames) and event.step == Step.KEYS
        if way == "up" or not keys or silo == BAD or len(world.job.outcomes) >= rounds:
            return True
        if all(frame.sender != BAD for frame in event.frames):
            return True
        agent = world.silos[silo]
        frame = agent.state.abort("a ledger that was rolled back", BAD)
        agent.state = None
        world.to_coordinator.append((silo, m.SiloFrame(frame)))
        return False

    original = world.take

    def come_back(name: str, event: Any) -> None:
        original(name, event)
        if world.job.barred.get(BAD, (b"", ""))[0] and BAD not in world.down:
            world.crash(BAD)

    world.filter = leave
    world.take = come_back  # type: ignore[method-assign]


def test_more_accusers_than_can_collude_count_as_an_offence_however_often_it_restarts(world: World) -> None:
    """Or one silo ends the job and burns three rounds of everybody's budget, though it is named every time."""
    unbelievable(world)
    world.run()
    assert [(h.outcome, h.attempt) for h in world.job.history] == [("published", 3), ("published", 1)]
    assert world.job.offences == {BAD: 2}
    assert world.job.barred[BAD][0] == b""


def test_voices_that_led_to_an_offence_are_not_counted_again(world: World) -> None:
    """A silo whose ledger is put right after all is not at the mercy of one colluder from then on."""
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    job, session = world.job, world.job.phase.session
    room = Room(Stamp(world.now, bytes(32)), world.identities.round_key, {})

    def blame(session: Any, *accusers: str) -> None:
        for accuser in accusers:
            frame = abort_frame(
                announcement=session.start, me=accuser, signer=world.silos[accuser].signer, released=False, reason="x",
                blamed=BAD,
            )  # fmt: skip
            session.receive_abort(accuser, frame, job.key(accuser))
        punish(job, room, session, broken=True)

    blame(session, "site-1", "site-2")
    blame(session, "site-3")
    assert job.offences == {BAD: 1}
    again = replace(session, aborts={}, said={}, punished=set())
    blame(again, "site-1")
    assert job.offences == {BAD: 1}
    blame(again, "site-2")
    assert job.offences == {BAD: 2}


def test_a_round_that_came_to_a_sum_does_not_forgive_what_many_say(world: World) -> None:
    """Two of five are driven out, the other three suffice."""
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    session = world.job.phase.session
    for silo in ("site-1", "site-2"):
        agent = world.silos[silo]
        frame = agent.state.abort("a ledger that was rolled back", BAD)
        agent.state = None
        session.receive_abort(silo, frame, world.job.key(silo))
    room = Room(Stamp(world.now, bytes(32)), world.identities.round_key, {})
    punish(world.job, room, session, broken=False)
    assert world.job.offences == {BAD: 1}
    assert BAD in world.job.barred


def test_evidence_that_comes_only_after_the_sum_is_kept_and_judged(world: World) -> None:
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    session = world.job.phase.session
    first = session.counted[Step.KEYS, BAD]
    twin = replace(Keys.decode(first.body), mask=KeyPair.from_private(bytes(31) + b"\1").public)
    second = sign(Step.KEYS, BAD, twin.encode(), world.silos[BAD].signer)
    world.filter = lambda way, silo, event: not (silo == "site-1" and isinstance(event, m.Publish))
    world.run(lambda: world.phase == "Acknowledging")
    frame = world.silos["site-1"].state.abort(
        "signed two different KEYS", BAD, encode_exhibit(Conflict(first, second, ()))
    )
    world.submit(FromSilo("site-1", m.SiloFrame(frame)))
    (case,) = (world.directory / "blobs" / CASES).iterdir()
    evidence = Case.from_json(case.read_bytes())
    assert evidence.evidence == frame
    assert judge(frame, evidence.announcement, session.keys).guilty == BAD
    assert BAD in world.job.barred
    world.silos["site-1"].state = None
    world.filter = lambda *_: True
    world.run()
    assert [h.outcome for h in world.job.history] == ["published", "published"]


def test_an_r1_whose_ledger_proof_answers_another_question_is_not_relayed(world: World) -> None:
    """Peers blame nobody for a proof that the silo says it was not asked for, so the coordinator must."""
    liar = world.silos[BAD]
    honest = liar.ledger_proof
    liar.ledger_proof = lambda event: honest(replace(event, witnessed=(*event.witnessed, 1)))  # type: ignore[method-assign]
    world.run()
    assert [h.survivors for h in world.job.history] == [("site-1", "site-2", "site-3", "site-5")] * 2
    assert world.job.offences == {BAD: 2}


def test_a_retry_asks_for_what_the_attempt_before_showed(world: World) -> None:
    """Its peers hold that head, and have had no occasion to say so; a restart of the coordinator changes nothing."""
    asked: list[tuple[int, ...]] = []
    silo = world.silos["site-1"]
    tree = Tree([b"leaf"] * 3)

    def growing(event: m.Announce) -> bytes:
        asked.append(event.witnessed)
        sizes = asked_sizes(event.witnessed)
        size = min(len(asked), 3)
        head = sign_head("feddrm/retina/site-1", size, tree.root(size), silo.signer).decode()
        # The coordinator holds no head to check the paths by; that they are there is what it sees.
        paths = [{"size": old, "path": []} for old in sizes if old < size]
        return canonical_json({"head": head, "leaves": [], "asked": list(sizes), "consistency": paths})

    silo.ledger_proof = growing  # type: ignore[method-assign]
    world.filter = lambda way, name, event: not (way == "down" and isinstance(event, m.StepFrames) and len(asked) < 2)
    world.run(lambda: world.phase == "Gathering" and world.job.phase.attempt == 2)
    world.restart_coordinator()
    world.run(lambda: len(world.job.outcomes) == 1)
    assert asked[:2] == [(), (1,)]
    assert "site-1" in world.job.history[0].survivors
