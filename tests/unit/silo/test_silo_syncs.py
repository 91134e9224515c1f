"""What shares a write to the disk in a round, and what a crash between two writes leaves (design 6 and 9)."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from silo_harness import FEDERATION, Desk, House

from feddrm.contract.messages import AbortRequest, OutcomeEvent, Ready
from privacy.leaves import Abort, AbortReason, Release, Reserve
from privacy.ledger import Ledger
from secagg.wire import Step
from silo.books import origin_of
from silo.effects import ForgetDeleted
from silo.peers import Heads
from silo.sessions import Entered
from silo.state import State


class Stopped(BaseException):
    """Stands for a kill: no handler of errors sees it."""


def full_round(desk: Desk) -> None:
    desk.open()
    for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY):
        desk.advance(step)
    desk.publish()


def leaves(house: House) -> list[object]:
    return [record.leaf for record in house.ledger.leaves()]


def commits(house: House, work: Callable[[], None]) -> tuple[list[str], list[str]]:
    """What either database is told to do while `work` runs, where that reaches the disk."""
    seen: tuple[list[str], list[str]] = ([], [])
    database = house.ledger._database
    assert database is not None
    for connection, statements in ((house.state.rows, seen[0]), (database, seen[1])):
        connection.set_trace_callback(lambda text, kept=statements: kept.append(text))  # type: ignore[misc]
    try:
        work()
    finally:
        house.state.rows.set_trace_callback(None)
        database.set_trace_callback(None)
    return seen


def test_an_announcement_costs_one_write_of_leaves_and_one_of_marks(desk: Desk) -> None:
    """The release of the round before, its certificate, the entry, and the charge of this round."""
    full_round(desk)
    alpha = desk.houses["alpha"]
    before = len(leaves(alpha))
    marks, charged = commits(alpha, desk.open)
    added = leaves(alpha)[before:]
    assert [type(leaf) for leaf in added[:2]] == [Release, Reserve]
    # COMMIT of the update that follows at once is the second.
    assert charged.count("COMMIT") == 2
    entered = next(index for index, text in enumerate(marks) if text.startswith("INSERT INTO sessions"))
    certified = next(index for index, text in enumerate(marks) if "SET certified=1" in text)
    assert "COMMIT" not in marks[certified:entered]


def test_a_kill_before_the_marks_loses_no_leaf(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    full_round(desk)
    alpha = desk.houses["alpha"]
    before = len(leaves(alpha))

    def killed(_state: State, *_: object) -> None:
        raise Stopped

    original = State.enter
    monkeypatch.setattr(State, "enter", killed)
    with pytest.raises(Stopped):
        desk.open()
    monkeypatch.setattr(State, "enter", original)
    # The release was certified by then, so its leaf is there, and whoever reads the file sees it.
    path, key = alpha.ledger.path, desk.trial.keys["alpha"].identity.public_key().public_bytes_raw()
    seen = Ledger.read(path, origin_of(FEDERATION, "alpha"), key)
    assert [type(record.leaf) for record in seen.leaves()[before:]] == [Release]


def test_nobody_reads_leaves_of_a_write_that_is_not_over(desk: Desk) -> None:
    """A head that was exported and then lost with the power would make an honest silo fork."""
    alpha = desk.houses["alpha"]
    desk.open()
    path, key = alpha.ledger.path, desk.trial.keys["alpha"].identity.public_key().public_bytes_raw()
    with alpha.ledger.together():
        size = alpha.ledger.size
        alpha.context.gate.abort(desk.trial.plan_hash, 1, 1, AbortReason.FAILED, now_ms=0)
        assert alpha.ledger.size == size + 1
        assert Ledger.read(path, origin_of(FEDERATION, "alpha"), key).size == size
    assert Ledger.read(path, origin_of(FEDERATION, "alpha"), key).size == size + 1
    assert isinstance(alpha.ledger.leaf(size), Abort)


def test_heads_seen_are_durable_before_the_masked_input_leaves(desk: Desk) -> None:
    """With the mark that precedes R3, by one write, which is synced."""
    alpha = desk.houses["alpha"]
    desk.open()

    def as_far_as_the_masks() -> None:
        desk.advance(Step.KEYS)
        desk.advance(Step.SHARES)

    marks, _ = commits(alpha, as_far_as_the_masks)
    heads = [index for index, text in enumerate(marks) if "INTO heads" in text]
    spent = next(index for index, text in enumerate(marks) if "SET masked=1" in text)
    written = marks.index("COMMIT")
    assert len(heads) == len(desk.houses) - 1
    assert max(*heads, spent) < written
    assert "PRAGMA synchronous=NORMAL" not in marks


def test_heads_seen_are_kept_when_a_session_ends_before_the_masked_input(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    desk.open()
    desk.advance(Step.KEYS)
    assert Heads(alpha.state).heads() == {}
    alpha.handle(AbortRequest(hashlib.sha256(desk.announce.body).digest(), "nothing comes of it"))
    assert set(Heads(alpha.state).heads()) == set(desk.houses) - {"alpha"}


def test_a_step_that_fails_inside_one_write_leaves_nothing_and_the_others_stay(tmp_path: Path) -> None:
    state = State.open(tmp_path / "agent.db")
    entered = Entered(1, b"a", b"s", b"b")

    def enter_twice() -> None:
        with state.transaction():
            state.enter(b"p", 1, 1, entered)
            state.enter(b"p", 1, 1, entered)

    def work() -> None:
        with state.one_write():
            state.set_fact("first", b"1")
            enter_twice()

    with pytest.raises(sqlite3.IntegrityError):
        work()
    assert state.fact("first") == b"1"
    assert state.entered(b"p", 1, 1) == ()
    state.close()


def test_a_model_that_is_kept_in_memory_is_the_stored_one_and_nobody_s_to_change(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    full_round(desk)
    job = alpha.state.active_job()
    assert job is not None
    kept = alpha.state.model(job.plan, job.round)
    assert kept is not None
    assert kept is alpha.state.model(job.plan, job.round)
    with pytest.raises(ValueError, match="read-only"):
        kept += 1
    row = alpha.state.rows.execute("SELECT model FROM models WHERE round=?", (job.round,)).fetchone()
    assert row[0] == kept.astype("<i8").tobytes()
    earlier = alpha.state.model(job.plan, job.round - 1)
    assert earlier is not None
    assert earlier.tobytes() != kept.tobytes()


def test_what_was_deleted_is_cut_after_the_ack_and_asked_for_until_it_is(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    alpha.hold = ForgetDeleted
    full_round(desk)
    assert alpha.state.remains
    assert isinstance(alpha.effects[-1], ForgetDeleted), "nothing may wait for it"
    reader = sqlite3.connect(alpha.directory / "agent.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM jobs").fetchone()
    alpha.state.rows.execute("INSERT OR REPLACE INTO facts VALUES ('x', x'00')")
    alpha.state.forget_deleted()
    assert alpha.state.remains, "a reader is in the way"
    reader.close()
    alpha.hold = None
    alpha.handle(OutcomeEvent(desk.outcomes[1]))
    assert not alpha.state.remains
    assert isinstance(alpha.ready, Ready)
