"""The coordinator's durable state: a log of events, checkpoints of the state they lead to, and the operator's journal.

SQLite in WAL mode: an event that was appended survives a kill at once, and the loss of power before anything that it
led to leaves this machine (`settle`). The state machine is a pure function of the log, so a coordinator that is killed
at any instant continues where it was (design section 9).
"""

from __future__ import annotations

import fcntl
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Self

from aggregator.blobs import Blobs
from aggregator.events import Stamp
from aggregator.uploads import Uploads
from feddrm.contract.disk import refuse_network
from feddrm.contract.errors import AlreadyRunningError, InputError
from feddrm.transport.status import BusyError

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS event (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, now_ms INTEGER NOT NULL, seed BLOB NOT NULL, kind TEXT NOT NULL,
  body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoint (
  id INTEGER PRIMARY KEY CHECK (id = 0), seq INTEGER NOT NULL, state BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS journal (
  seq INTEGER NOT NULL, line INTEGER NOT NULL, now_ms INTEGER NOT NULL, text TEXT NOT NULL, PRIMARY KEY (seq, line));
CREATE TABLE IF NOT EXISTS settled (id INTEGER PRIMARY KEY CHECK (id = 0), seq INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS queries (
  querier TEXT NOT NULL, day INTEGER NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (querier, day));
"""

Line = tuple[int, int, int, str]
"""A line of the journal: event, place among its lines, milliseconds since the epoch, text."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One event as stored; aggregator.eventlog knows its encoding."""

    seq: int
    stamp: Stamp
    kind: str
    body: bytes = field(repr=False)


class Store:
    """One open server directory. Only one process, and in it only one thread at a time, uses it."""

    def __init__(self, directory: Path, lock: IO[bytes], database: sqlite3.Connection) -> None:
        self.directory: Final = directory
        self._lock = lock
        self._database = database
        self.blobs = Blobs(directory / "blobs")
        self.uploads = Uploads(directory / "uploads")

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Lock the directory and open its state.

        Raises:
            InputError: it does not exist, or lies on a network file system, whose locks and fsync do not hold.
            AlreadyRunningError: another coordinator has it.
        """
        if not directory.is_dir():
            raise InputError(f"There is no server directory {directory}.", remedy="Run: feddrm-aggregator init")
        refuse_network(directory)
        lock = (directory / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise AlreadyRunningError(f"Another coordinator already runs on {directory}.") from error
        path = directory / "state.sqlite"
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        path.chmod(0o600)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        if sys.platform == "darwin":
            database.execute("PRAGMA fullfsync=ON")
        database.executescript(_SCHEMA)
        return cls(directory, lock, database)

    def close(self) -> None:
        """Close the files and give the lock back."""
        self.uploads.close()
        self._database.close()
        self._lock.close()

    def append(self, entries: Sequence[tuple[Stamp, str, bytes]], *, synced: bool = True) -> tuple[int, ...]:
        """Log events (stamp, kind, body), all or none of them; returns their sequence numbers, in order.

        Args:
            synced: they survive the loss of power when this returns. Else they do with the next synced write.

        Raises:
            BusyError: the disk refuses it; nothing was changed.
        """
        numbers = []
        with self._transaction(synced=synced):
            for stamp, kind, body in entries:
                cursor = self._database.execute(
                    "INSERT INTO event (now_ms, seed, kind, body) VALUES (?, ?, ?, ?)",
                    (stamp.now_ms, stamp.seed, kind, body),
                )
                numbers.append(int(cursor.lastrowid or 0))
        return tuple(numbers)

    def events(self, after: int) -> Iterator[Logged]:
        """Events with a sequence number above `after`, in order."""
        query = "SELECT seq, now_ms, seed, kind, body FROM event WHERE seq > ? ORDER BY seq"
        rows = self._database.execute(query, (after,)).fetchall()
        for seq, now_ms, seed, kind, body in rows:
            yield Logged(seq, Stamp(now_ms, seed), kind, body)

    def checkpoint(self, seq: int, state: bytes) -> None:
        """Replace the checkpoint by the state after event `seq`, and forget the events it stands for."""
        with self._transaction():
            self._database.execute("INSERT OR REPLACE INTO checkpoint (id, seq, state) VALUES (0, ?, ?)", (seq, state))
            self._database.execute("DELETE FROM event WHERE seq <= ?", (seq,))

    def latest_checkpoint(self) -> tuple[int, bytes] | None:
        """The newest checkpoint's sequence number and state."""
        row = self._database.execute("SELECT seq, state FROM checkpoint").fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    def charge_queries(self, querier: str, day: int, count: int, limit: int) -> bool:
        """Count `count` routes of a querier on a day, durably, if at most `limit` are used then; else nothing."""
        cursor = self._database.execute(
            "INSERT INTO queries (querier, day, used) SELECT ?, ?, ? WHERE ? <= ? "
            "ON CONFLICT (querier, day) DO UPDATE SET used = used + excluded.used WHERE used + excluded.used <= ?",
            (querier, day, count, count, limit, limit),
        )
        return cursor.rowcount == 1

    def settle(self, seq: int, lines: Sequence[Line], *, synced: bool) -> None:
        """Write lines of the journal. The same line of the same event is written
        once.

        Args:
            seq: the newest event that was acted upon.
            synced: it, and all before it, survive the loss of power when this returns: something that they led to is
                about to leave. Else the lines are durable with the next synced write only; until then the events that
                they follow from are in the log, and a replay writes them again.

        Raises:
            BusyError: the disk refuses it.
        """
        if not lines and not synced:
            return
        with self._transaction(synced=synced):
            self._database.executemany(
                "INSERT OR IGNORE INTO journal (seq, line, now_ms, text) VALUES (?, ?, ?, ?)",
                [(event, line, now_ms, text) for event, line, now_ms, text in lines],
            )
            if synced:
                self._database.execute("INSERT OR REPLACE INTO settled (id, seq) VALUES (0, ?)", (seq,))

    @contextmanager
    def _transaction(self, *, synced: bool = True) -> Iterator[None]:
        try:
            # WAL is one file and synced as a whole: a synced commit makes all commits before it durable, too.
            self._database.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except BaseException as error:
            # A COMMIT that the disk refused may leave the transaction open or have ended it.
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise BusyError(f"{self.directory / 'state.sqlite'} cannot be written: {error}") from error
            raise
        finally:
            self._database.execute("PRAGMA synchronous=FULL")


def read_journal(directory: Path, last: int) -> list[tuple[int, str]]:
    """The last lines of a server directory's journal as (milliseconds since the epoch, text), oldest first.

    It works while a coordinator runs.

    Raises:
        InputError: there is no journal.
    """
    path = directory / "state.sqlite"
    if not path.exists():
        raise InputError(f"{directory} has no journal yet.", remedy="Run: feddrm-aggregator serve")
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        query = "SELECT now_ms, text FROM journal ORDER BY seq DESC, line DESC LIMIT ?"
        rows = database.execute(query, (last,)).fetchall()
    finally:
        database.close()
    return [(int(now_ms), str(text)) for now_ms, text in reversed(rows)]
