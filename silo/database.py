"""The silo's durable memory: one SQLite file with WAL and synchronous=FULL (design 6 and 9).

Every method that writes has committed, durably, when it returns, so that the caller may act on it; but for what its
caller puts into `one_write` or `soon`. Protocol keys, shares, masks and seeds are never here: a session of another
process is dead.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from feddrm.contract.errors import InputError
from feddrm.contract.files import file_error

_VERSION: Final = 4
# A reader that stays away from the log's end for longer than this only postpones the log's truncation.
_CHECKPOINT_WAIT_MS: Final = 200
_WAIT_MS: Final = 5000
_SCHEMA: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE jobs (
  serial INTEGER PRIMARY KEY AUTOINCREMENT, plan BLOB NOT NULL UNIQUE, signed TEXT NOT NULL, round INTEGER NOT NULL,
  ended TEXT
) STRICT;
CREATE TABLE models (plan BLOB, round INTEGER, model BLOB NOT NULL, PRIMARY KEY (plan, round)) STRICT;
CREATE TABLE personal (plan BLOB PRIMARY KEY, round INTEGER NOT NULL, head BLOB NOT NULL) STRICT;
CREATE TABLE updates (
  plan BLOB, stage INTEGER, round INTEGER, q BLOB NOT NULL, PRIMARY KEY (plan, stage, round)
) STRICT;
CREATE TABLE sessions (
  plan BLOB, stage INTEGER, round INTEGER, attempt INTEGER, announcement BLOB NOT NULL, session BLOB NOT NULL,
  boot BLOB NOT NULL, members TEXT NOT NULL DEFAULT '', masked INTEGER NOT NULL DEFAULT 0,
  released INTEGER NOT NULL DEFAULT 0, certified INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (plan, stage, round, attempt)
) STRICT;
CREATE UNIQUE INDEX sessions_by_name ON sessions (session);
CREATE TABLE refused (session BLOB PRIMARY KEY) STRICT;
CREATE TABLE outcomes (
  plan BLOB, round INTEGER, outcome TEXT NOT NULL, record BLOB NOT NULL, certified INTEGER NOT NULL,
  PRIMARY KEY (plan, round)
) STRICT;
CREATE TABLE releases (
  serial INTEGER PRIMARY KEY, release BLOB NOT NULL UNIQUE, plan BLOB NOT NULL UNIQUE, model BLOB NOT NULL,
  personal BLOB NOT NULL
) STRICT;
CREATE TABLE evidence (serial INTEGER PRIMARY KEY, plan BLOB, round INTEGER, text TEXT NOT NULL) STRICT;
CREATE TABLE cases (serial INTEGER PRIMARY KEY, plan BLOB, round INTEGER, text TEXT NOT NULL) STRICT;
CREATE TABLE heads (silo TEXT PRIMARY KEY, size INTEGER NOT NULL, note BLOB NOT NULL, key BLOB NOT NULL) STRICT;
CREATE TABLE sightings (silo TEXT, plan BLOB, sighting BLOB NOT NULL, PRIMARY KEY (silo, plan)) STRICT;
CREATE TABLE answers (
  query BLOB PRIMARY KEY, querier TEXT NOT NULL, day INTEGER NOT NULL, records INTEGER NOT NULL, answer BLOB NOT NULL
) STRICT;
CREATE INDEX answers_of_a_day ON answers (querier, day);
CREATE TABLE tickets (nonce BLOB PRIMARY KEY, query BLOB NOT NULL) STRICT;
"""


NO_RESTORE: Final = (
    "Do not put back a copy of state/: an older agent.db or ledger.db repeats what was already sent, and peers exclude"
    " a ledger that goes back. Keep the directory as it is and ask the federation's operator."
)

WRITE_REMEDY: Final = "Free some space or mend the disk, then start the agent again; nothing is lost."

_UNREADABLE: Final = (
    "Run this as the agent's user, where its directory can be written: SQLite keeps an index beside what it reads."
)

LEDGER_REMEDY: Final = (
    "Do not put back a copy of it: to the peers that is a rollback, and they exclude this silo. Do not delete it"
    " either: what was spent stays spent. Keep state/ as it is and ask the federation's operator for the other"
    " hospitals' exports. This silo takes part again under new keys, with a new ledger that is charged in full for all"
    " jobs of the lost one: feddrm-silo keys new and keys take --lost, then feddrm-silo ledger recover."
)


class Database:
    """The silo's memory. One process at a time writes (silo.home.exclusive); others may read.

    Attributes:
        remains: whether something was deleted that `forget_deleted` has not cut from the write-ahead log yet.
        sole: whether nobody else writes while this is open, so that what was read may be kept.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self.remains = False
        self.sole = False

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the database, readable by this user only.

        Raises:
            InputError: the file is no state database of this version, or cannot be opened.
        """
        _make_private(path)
        db = sqlite3.connect(path, isolation_level=None, timeout=_WAIT_MS / 1000)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            # What is deleted (updates before masking above all) is overwritten, not only unlinked.
            db.execute("PRAGMA secure_delete=ON")
            if sys.platform == "darwin":
                db.execute("PRAGMA fullfsync=1")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={_VERSION}; COMMIT;")
            elif version != _VERSION:
                raise InputError(
                    f"{path} has format {version}; this software reads format {_VERSION}.",
                    remedy="Use the software version that wrote it.",
                )
            opened = cls(db)
            opened.sole = True
            opened.forget_deleted()
        except sqlite3.OperationalError as error:
            db.close()
            raise InputError(f"{path} cannot be used: {error}.", remedy=WRITE_REMEDY) from error
        except sqlite3.DatabaseError as error:
            db.close()
            raise InputError(f"{path} is not a silo's state database ({error}).", remedy=NO_RESTORE) from error
        return opened

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open for reading only, beside a running agent.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        if not path.exists():
            raise InputError(f"{path} does not exist.", remedy="Start the agent once: feddrm-silo serve DIR.")
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5)
        try:
            db.execute("SELECT COUNT(*) FROM facts")
        except sqlite3.DatabaseError as error:
            db.close()
            raise InputError(f"{path} cannot be read: {error}.", remedy=_UNREADABLE) from error
        return cls(db)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def forget_deleted(self) -> None:
        """Cut the write-ahead log, which keeps what was deleted until then. A reader in the way postpones that."""
        self._db.execute(f"PRAGMA busy_timeout={_CHECKPOINT_WAIT_MS}")
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._db.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
        self.remains = bool(busy)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make several writes one durable step, all or none of them."""
        nested = self._db.in_transaction
        self._db.execute("SAVEPOINT step" if nested else "BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK TO step" if nested else "ROLLBACK")
            raise
        self._db.execute("RELEASE step" if nested else "COMMIT")

    @contextmanager
    def one_write(self) -> Iterator[None]:
        """Let all steps inside share one write to the disk, at the end; also when an exception ends it, for each says
        what had happened by then."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            if self._db.in_transaction:
                self._db.execute("COMMIT")

    @contextmanager
    def soon(self) -> Iterator[None]:
        """Writes inside survive this process at once, but the loss of power only with the next write outside."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("PRAGMA synchronous=NORMAL")
        try:
            yield
        finally:
            self._db.execute("PRAGMA synchronous=FULL")

    # facts: small named values

    def fact(self, name: str) -> bytes | None:
        """The value stored under `name`."""
        row = self._db.execute("SELECT value FROM facts WHERE name=?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def set_fact(self, name: str, value: bytes) -> None:
        """Store a value."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?,?)", (name, value))

    def note(self, name: str, value: object) -> None:
        """Store a JSON value for `status`; nothing decides by it."""
        self.set_fact(f"note:{name}", json.dumps(value).encode())

    def noted(self, name: str) -> object:
        """A JSON value stored by `note`, or None."""
        value = self.fact(f"note:{name}")
        return None if value is None else json.loads(value)

    @property
    def rows(self) -> sqlite3.Connection:
        """The connection, for the classes that own tables."""
        return self._db


def _make_private(path: Path) -> None:
    """SQLite gives the log and the index beside a database the database's own mode: so that must be 0600 before."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for suffix in ("", "-wal", "-shm"):
            file = path.with_name(path.name + suffix)
            if file.exists():
                file.chmod(0o600)
    except OSError as error:
        raise file_error(error, path) from error
