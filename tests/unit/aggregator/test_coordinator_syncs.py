"""The loss of power takes events that were not synced: exactly those that nobody was told anything of (design 9)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from coordinator_harness import Identities, World
from coordinator_small import send_along

from aggregator import checkpoint
from aggregator.blobs import SUMS
from aggregator.events import JobStopped, Send


def settled(world: World) -> int:
    """The newest event that survives the loss of power."""
    with closing(sqlite3.connect(world.directory / "state.sqlite")) as database:
        row = database.execute("SELECT MAX(seq) FROM (SELECT seq FROM settled UNION ALL SELECT seq FROM checkpoint)")
        return int(row.fetchone()[0])


def lose_power(world: World) -> int:
    """Take from the disk what no sync put there, and start again; returns how many events that were."""
    unsynced = tuple(world.engine.store.blobs._unsynced)
    last = settled(world)
    world.engine.store.close()
    with closing(sqlite3.connect(world.directory / "state.sqlite", isolation_level=None)) as database:
        lost = database.execute("DELETE FROM event WHERE seq > ?", (last,)).rowcount
        database.execute("DELETE FROM journal WHERE seq > ?", (last,))
    for path in unsynced:
        path.write_bytes(path.read_bytes()[:7])
    world.restart_coordinator()
    return lost


@pytest.mark.parametrize("small", [True, False], ids=["with their frames", "uploaded"])
def test_power_lost_again_and_again_costs_no_sum(tmp_path: Path, identities: Identities, small: bool) -> None:
    world = World(tmp_path / "server", identities=identities)
    if small:
        send_along(world)
    world.connect()
    world.start()
    lost, steps, gap = 0, 0, 2
    while world.step():
        steps += 1
        if steps == gap:
            lost += lose_power(world)
            steps, gap = 0, gap + 3
    assert lost, "a disk that syncs everything proves nothing"
    assert [summary.outcome for summary in world.job.history] == ["published"] * world.job.rounds
    world.check()


def test_what_is_sent_rests_on_what_is_synced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_all, seen = type(world.engine).submit_all, []

    def watched(engine: object, events: tuple[object, ...]) -> tuple[Send, ...]:
        told: list[str] = []
        database = world.engine.store._database
        database.set_trace_callback(told.append)
        sends = submit_all(world.engine, events)  # type: ignore[arg-type]
        database.set_trace_callback(None)
        for index, text in enumerate(told):
            if "INTO settled" in text:
                # What the row says is worth what SQLite was told to do with it.
                assert [line for line in told[:index] if "synchronous=" in line][-1:] == ["PRAGMA synchronous=FULL"]
        seen.append((bool(sends), settled(world) == world.engine._sequence))
        return sends

    monkeypatch.setattr(type(world.engine), "submit_all", watched)
    world.run()
    assert all(synced for sent, synced in seen if sent)
    assert sum(synced for _, synced in seen) < len(seen) / 2, "most events wait for others"


def test_an_order_is_synced_before_its_operator_is_answered(world: World) -> None:
    world.run(lambda: len(world.job.outcomes) == 1)
    for silo in list(world.silos):
        world.disconnect(silo)
    world.submit(JobStopped(world.job.hash, "enough"))
    lose_power(world)
    assert world.phase == "Ended"


def test_rounds_without_a_checkpoint_replay_to_the_same_state(tmp_path: Path, identities: Identities) -> None:
    """Small rounds share a checkpoint, so a restart replays several of them, sums included."""
    world = World(tmp_path / "server", identities=identities, training__rounds=4)
    send_along(world)
    world.connect()
    world.start()
    first = world.engine.store.latest_checkpoint()
    world.run(lambda: len(world.job.outcomes) == 3 and world.phase == "Gathering")
    assert world.engine.store.latest_checkpoint() == first
    sums = [outcome.sum for outcome in world.job.outcomes]
    for name in sums:
        world.engine.store.blobs.path(SUMS, name).unlink()
    world.engine.store.close()
    log = world.engine.coordinator
    world.engine = world.open()
    for presence in log.presences.values():
        presence.detach(world.now)
    assert checkpoint.encode(world.engine.coordinator) == checkpoint.encode(log)
    assert all(world.engine.store.blobs.has(SUMS, name) for name in sums)
