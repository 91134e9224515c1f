"""What dishonest silos cannot do to the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coordinator_faults import all_blame
from coordinator_harness import Upload, World, unsigned

from aggregator.aborting import judge_accusations
from aggregator.blobs import SUMS, Blobs
from aggregator.events import FromSilo, Stamp
from aggregator.gather import bar
from aggregator.job import Room
from aggregator.offences import punish
from aggregator.session import Session
from aggregator.uploads import Uploads
from feddrm.contract import messages as m
from feddrm.contract.chunks import CHUNK_BYTES, iter_chunks
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from secagg.aborts import abort_frame
from secagg.hashing import blob_hash
from secagg.wire import Frame, Step

ALL = tuple(f"site-{i}" for i in range(1, 6))
HONEST = ("site-1", "site-2", "site-3", "site-5")


def flipped(frame: Frame) -> Frame:
    return replace(frame, body=frame.body[:-1] + bytes((frame.body[-1] ^ 1,)))


def resigned(world: World, frame: Frame) -> Frame:
    """A malformed body under a valid signature of its author."""
    from secagg.keys import sign

    return sign(Step(frame.step), frame.sender, frame.body[:40], world.silos[frame.sender].signer)


@pytest.mark.parametrize("step", [Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY, Step.UNMASK])
@pytest.mark.parametrize("how", ["no signature", "altered", "malformed", "another's name"])
def test_a_bad_frame_costs_its_sender_the_round_and_nobody_else(world: World, step: Step, how: str) -> None:
    change: dict[str, Callable[[Frame], Frame]] = {
        "no signature": unsigned,
        "altered": flipped,
        "malformed": lambda frame: resigned(world, frame),
        "another's name": lambda frame: replace(frame, sender="site-1"),
    }
    original = world.take

    def corrupt(name: str, event: Any) -> None:
        if name == "site-4" and isinstance(event, m.SiloFrame) and event.frame.step == step and not world.job.outcomes:
            event = m.SiloFrame(change[how](event.frame))
        original(name, event)

    world.take = corrupt  # type: ignore[method-assign]
    start = world.now
    world.run(lambda: len(world.job.outcomes) == 1)
    (summary,) = world.job.history
    assert summary.outcome == "published"
    assert summary.attempt == 1
    in_sum = step in (Step.CONSISTENCY, Step.UNMASK)
    assert summary.survivors == (ALL if in_sum else HONEST)
    assert world.now == start, "an offender is not waited for"
    world.take = original  # type: ignore[method-assign]
    world.run()
    world.check()


def test_frames_of_another_session_are_ignored_not_punished(world: World) -> None:
    old: list[tuple[str, Any]] = []
    original = world.take

    def keep(name: str, event: Any) -> None:
        if isinstance(event, m.SiloFrame) and not world.job.outcomes:
            old.append((name, event))
        original(name, event)

    world.take = keep  # type: ignore[method-assign]
    world.run(lambda: len(world.job.outcomes) == 1)

    def replay(name: str, event: Any) -> None:
        original(name, event)
        for entry in old:
            original(*entry)

    world.take = replay  # type: ignore[method-assign]
    world.run()
    assert world.sums() == [31, 31]
    assert not world.job.barred


def test_nobody_aborts_in_the_name_of_another(world: World) -> None:
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    session: Session = world.job.phase.session
    mine = world.silos["site-4"].signer
    forged = abort_frame(announcement=session.start, me="site-1", signer=mine, released=False, reason="x")
    own_of_another_round = abort_frame(announcement=bytes(32), me="site-4", signer=mine, released=False, reason="x")
    for frame in (forged, replace(forged, sender="site-4"), own_of_another_round):
        world.submit(FromSilo("site-4", m.SiloFrame(frame)))
    assert not session.aborts
    assert not session.gone
    world.run()
    assert world.sums() == [31, 31]


def test_one_accuser_expels_only_itself(world: World) -> None:
    def accuse(way: str, silo: str, event: Any) -> bool:
        shares = isinstance(event, m.StepFrames) and event.step == Step.SHARES
        if way == "down" and shares and not world.job.outcomes and silo in ("site-2", "site-3"):
            # Two leave, so that the attempt breaks: one accuses site-1, the other accuses nobody.
            agent = world.silos[silo]
            blamed = "site-1" if silo == "site-2" else ""
            frame = agent.state.abort("a share that does not open", blamed)
            agent.state = None
            world.to_coordinator.append((silo, m.SiloFrame(frame)))
            return False
        return True

    world.filter = accuse
    world.run(lambda: len(world.job.outcomes) == 1)
    assert "site-1" not in world.job.barred
    world.filter = lambda *_: True
    world.run()
    world.check()
    assert world.job.history[-1].survivors == ALL


def test_an_accused_of_many_is_left_out(world: World) -> None:
    all_blame(world, "site-1", "a ledger that was rolled back")
    world.run()
    assert world.job.barred["site-1"][1] == "4 silos blame it, saying: a ledger that was rolled back"
    assert [h.survivors for h in world.job.history] == [ALL[1:], ALL[1:]]


def quarrel(world: World, session: Session, accuser: str, accused: str) -> dict[str, str]:
    """Let one silo blame another in a session that breaks; returns who sits out the next attempt."""
    frame = abort_frame(
        announcement=session.start, me=accuser, signer=world.silos[accuser].signer, released=False, reason="x",
        blamed=accused,
    )  # fmt: skip
    world.submit(FromSilo(accuser, m.SiloFrame(frame)))
    resting: dict[str, str] = {}
    room = Room(Stamp(world.now, bytes(32)), world.identities.round_key, {})
    judge_accusations(world.job, session, resting, punish(world.job, room, session, broken=True))
    return resting


def test_who_quarrels_with_one_silo_sits_out_in_turn_with_it(world: World) -> None:
    """Or a liar could keep a chosen victim out of every sum by giving it cause to complain (found in review)."""
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    rested = [quarrel(world, world.job.phase.session, "site-1", "site-5") for _ in range(2)]
    assert [list(entry) for entry in rested] == [["site-1"], ["site-5"]]


def test_accusers_add_up_over_a_job(world: World) -> None:
    world.run(lambda: world.phase == "Running" and world.job.phase.session.step == Step.MASKED)
    session = world.job.phase.session
    quarrel(world, session, "site-1", "site-5")
    assert "site-5" not in world.job.barred
    quarrel(world, session, "site-2", "site-5")
    assert world.job.barred["site-5"][1] == "2 silos blame it, saying: x"


def test_a_second_proven_fault_is_not_forgiven_by_a_restart(world: World) -> None:
    """Or a silo could spoil round after round, each time under the boot of a new process (found in review)."""
    job = world.job
    for boot, lasting in ((b"a" * 16, False), (b"b" * 16, True)):
        note = bar(job, "site-1", boot, "garbage", lasting=lasting)
        assert "site-1 is left out" in note
        ready = replace(world.silos["site-1"].ready(), boot=b"c" * 16)
        world.submit(FromSilo("site-1", ready))
        assert ("site-1" in job.barred) is lasting


def test_silos_outside_the_plan_and_before_ready_change_nothing(world: World) -> None:
    world.run(lambda: world.phase == "Running")
    before = world.job.phase.session.state.missing
    frame = world.job.phase.session.frame
    for event in (m.SiloFrame(replace(frame, sender="stranger")), m.PlanAnswer(world.plan.hash, True)):
        world.submit(FromSilo("stranger", event))
    assert world.job.phase.session.state.missing == before
    assert "stranger" not in world.job.answers


def test_an_upload_is_taken_only_when_due_only_of_the_right_size_and_hash(world: World) -> None:
    world.run(lambda: world.phase == "Running")
    coordinator, uploads = world.engine.coordinator, world.engine.store.uploads
    assert coordinator.upload_size("site-1") is None
    world.run(lambda: world.job.phase.session.step == Step.MASKED)
    size = coordinator.upload_size("site-1")
    assert size is not None
    assert size == world.job.phase.session.announcement.vector_size
    assert coordinator.upload_size("stranger") is None
    data = bytes(size)
    (chunk,) = iter_chunks(data)
    with pytest.raises(MalformedError, match="bytes, not"):
        uploads.add("site-1", next(iter(iter_chunks(data + b"x"))), size)
    with pytest.raises(MalformedError, match="hash it names"):
        uploads.add("site-1", replace(chunk, digest=bytes(32)), size)
    with pytest.raises(MalformedError, match="goes on at byte 0"):
        uploads.add("site-1", replace(chunk, offset=1, data=data[1:], digest=blob_hash(data[1:])), size)
    with pytest.raises(MalformedError, match="named by"):
        uploads.add("site-1", replace(chunk, blob=bytes(32)), size)
    assert uploads.held("site-1", bytes(32), size).held == 0
    assert uploads.add("site-1", chunk, size)
    # A complete upload that no frame names is only garbage on disk, and bounded.
    world.run(lambda: len(world.job.outcomes) == 1)
    assert coordinator.upload_size("site-1") is None
    assert world.job.history[0].survivors == ALL


def test_a_masked_frame_without_its_upload_is_an_offence(world: World) -> None:
    original = world.take

    def forget(name: str, event: Any) -> None:
        if name != "site-4" or not isinstance(event, Upload):
            original(name, event)

    world.take = forget  # type: ignore[method-assign]
    world.run(lambda: len(world.job.outcomes) == 1)
    assert world.job.history[0].survivors == HONEST
    assert world.job.history[0].mask_keys_opened == ("site-4",)


def test_uploads_resume_and_are_bounded(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads")
    data = bytes(range(256)) * 8192
    size = len(data)
    blob = blob_hash(data)
    first, second = iter_chunks(data)
    assert (len(first.data), size) == (CHUNK_BYTES, 2 * CHUNK_BYTES)
    assert not uploads.add("a", first, size)
    again = Uploads(tmp_path / "uploads")
    assert again.held("a", blob, size) == m.UploadReceipt(blob, CHUNK_BYTES, False)
    assert not again.add("a", first, size), "what is held already is ignored"
    assert again.held("a", blob, size).held == CHUNK_BYTES
    assert again.add("a", second, size)
    assert again.held("a", blob, size) == m.UploadReceipt(blob, size, True)
    assert again.add("a", second, size), "a repeat after the last chunk is no error"
    assert again.get("a", blob) == data
    with pytest.raises(InputError):
        again.get("b", blob)
    # One unfinished upload at a time, two finished ones at most.
    other = bytes(size)
    assert not again.add("a", next(iter(iter_chunks(other))), size)
    third = b"\x01" * size
    assert not again.add("a", next(iter(iter_chunks(third))), size)
    assert again.held("a", blob_hash(other), size).held == 0
    assert again.add("a", list(iter_chunks(third))[1], size)
    with pytest.raises(MalformedError, match="more masked inputs"):
        again.add("a", next(iter(iter_chunks(other))), size)


def test_blobs_of_one_kind_are_not_reached_by_another(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    blob = blobs.put(SUMS, b"sum")
    with pytest.raises(InputError):
        blobs.get("trunks", blob)
    with pytest.raises(MalformedError):
        blobs.get("../uploads", blob)
    blobs.path(SUMS, blob).write_bytes(b"other")
    with pytest.raises(VerificationError, match="damaged"):
        blobs.get(SUMS, blob)
