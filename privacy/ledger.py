"""The hospital's ledger: an append-only log in SQLite whose every state has a signed tree head.

What a file alone cannot show is that it was put back to an older copy of itself: peers' witnessed heads show that
(`privacy.witness`, `privacy.verify`).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.errors import LedgerCorrupt, LedgerError, LedgerLocked, MalformedError
from privacy.leaves import Key, Leaf, Record, coarse_time
from privacy.merkle import Tree
from privacy.note import Head, check_origin, open_head, sign_head

_SCHEMA: Final = """
CREATE TABLE leaves (number INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE heads (size INTEGER PRIMARY KEY, note BLOB NOT NULL) STRICT;
CREATE TRIGGER leaves_in_order BEFORE INSERT ON leaves
  WHEN NEW.number IS NOT (SELECT COALESCE(MAX(number) + 1, 0) FROM leaves)
  BEGIN SELECT RAISE(ABORT, 'leaves are appended in order'); END;
CREATE TRIGGER heads_in_order BEFORE INSERT ON heads
  WHEN NEW.size IS NOT (SELECT COALESCE(MAX(size) + 1, 1) FROM heads)
  BEGIN SELECT RAISE(ABORT, 'heads are appended in order'); END;
CREATE TRIGGER leaves_stay BEFORE DELETE ON leaves BEGIN SELECT RAISE(ABORT, 'leaves are never deleted'); END;
CREATE TRIGGER leaves_keep BEFORE UPDATE ON leaves BEGIN SELECT RAISE(ABORT, 'leaves are never changed'); END;
CREATE TRIGGER heads_stay BEFORE DELETE ON heads BEGIN SELECT RAISE(ABORT, 'heads are never deleted'); END;
CREATE TRIGGER heads_keep BEFORE UPDATE ON heads BEGIN SELECT RAISE(ABORT, 'heads are never changed'); END;
PRAGMA user_version = 1;
"""
_VERSION: Final = 1
_Content = tuple[list[bytes], list[Record], Head]


class Ledger:
    """One log. Get one by `Ledger.open` (the agent; exclusive) or `Ledger.read` (anybody on the machine; a snapshot).

    A leaf is durable when `append` returns. Safe to call from several threads.
    """

    def __init__(self, path: Path, origin: str, bodies: list[bytes], records: list[Record], head: Head) -> None:
        self.path = path
        self.origin = origin
        self._bodies = bodies
        self._records = records
        self._tree = Tree(bodies)
        self._head = head
        self._guard = threading.RLock()
        self._database: sqlite3.Connection | None = None
        self._signer: Ed25519PrivateKey | None = None
        self._lock: int | None = None

    @classmethod
    def open(cls, path: str | Path, origin: str, signer: Ed25519PrivateKey, *, now_ms: int) -> Self:
        """Open the ledger for writing, or begin it with a KEY leaf when the file does not exist.

        Args:
            path: the database; a lock file of the same name plus ".lock" stands beside it.
            origin: feddrm/<federation>/<silo>.
            signer: the silo's identity key; signs the heads.
            now_ms: milliseconds since the epoch, for the first leaf.

        Raises:
            LedgerLocked: another process has it open for writing.
            LedgerCorrupt: its bytes do not match its last signed head, or it is of another silo or key.
            LedgerError: it cannot be opened at all.
        """
        path = Path(path)
        check_origin(origin)
        lock = _exclusive(path.with_name(path.name + ".lock"))
        try:
            if not path.exists():
                _create(path, origin, signer, now_ms)
            database = _connect(path)
            try:
                ledger = cls(path, origin, *_load(database, path, origin, signer.public_key().public_bytes_raw()))
            except BaseException:
                database.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        ledger._database, ledger._signer, ledger._lock = database, signer, lock
        return ledger

    @classmethod
    def read(cls, path: str | Path, origin: str, key: bytes) -> Self:
        """A read-only snapshot, verified like `open` does; works while an agent writes.

        Args:
            path: the database.
            origin: feddrm/<federation>/<silo>.
            key: the silo's Ed25519 public key (32 bytes).

        Raises:
            LedgerCorrupt: as `open`.
            LedgerError: there is no ledger at `path`, or it cannot be opened.
        """
        path = Path(path)
        if not path.is_file():
            raise LedgerError(f"there is no ledger at {path}")
        with closing(_connect(path)) as database:
            return cls(path, origin, *_load(database, path, origin, key))

    def close(self) -> None:
        """Let go of the file and the lock. Appending ends here; reading goes on."""
        with self._guard:
            if self._database is not None:
                self._database.close()
            if self._lock is not None:
                os.close(self._lock)
            self._database = self._signer = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Number of leaves."""
        return len(self._bodies)

    def append(self, leaf: Leaf, *, now_ms: int) -> int:
        """Add a leaf and sign the new head, both durable together; return the leaf's number.

        The recorded hour never falls behind that of the leaf before, whatever the clock does.

        Raises:
            LedgerError: the ledger is closed or read-only, or the disk refused.
            LedgerCorrupt: the file is not what this process left there.
        """
        with self._guard:
            if self._database is None or self._signer is None:
                raise LedgerError(f"the ledger {self.path} is not open for writing")
            record = Record(max(coarse_time(now_ms), self._records[-1].time), leaf)
            body = record.encode()
            # What cannot be read back must not enter a log that can never be changed.
            if Record.decode(body) != record:
                raise MalformedError("a leaf does not survive its own encoding")
            root = self._tree.root_with(body)
            note = sign_head(self.origin, self.size + 1, root, self._signer)
            self._write(body, note)
            self._tree.append(body)
            self._bodies.append(body)
            self._records.append(record)
            self._head = Head(self.origin, self.size, root, note)
            return self.size - 1

    def leaves(self) -> tuple[Record, ...]:
        """All leaves in order."""
        return tuple(self._records)

    def bodies(self) -> tuple[bytes, ...]:
        """The bytes of all leaves in order."""
        return tuple(self._bodies)

    def head(self) -> bytes:
        """The newest tree head as a signed note."""
        return self._head.note

    def prove_inclusion(self, index: int) -> tuple[bytes, ...]:
        """The audit path of a leaf in the newest head.

        Raises:
            ValueError: there is no such leaf.
        """
        return self._tree.inclusion(index)

    def prove_consistency(self, old: int) -> tuple[bytes, ...]:
        """The proof that the newest head extends the one of size `old`.

        Raises:
            ValueError: not 1 <= old <= size.
        """
        return self._tree.consistency(old)

    def _write(self, body: bytes, note: bytes) -> None:
        assert self._database is not None  # noqa: S101 - checked by append
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                stored = database.execute("SELECT note FROM heads ORDER BY size DESC LIMIT 1").fetchone()
                if stored is None or bytes(stored[0]) != self._head.note:
                    raise LedgerCorrupt(f"somebody else has written to the ledger {self.path}")
                database.execute("INSERT INTO leaves VALUES (?, ?)", (self.size, body))
                database.execute("INSERT INTO heads VALUES (?, ?)", (self.size + 1, note))
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
        except (sqlite3.Error, LedgerCorrupt) as error:
            # Whether the commit reached the disk is unknown now. Nothing more is written until a fresh open has
            # read what is there.
            self.close()
            if isinstance(error, LedgerCorrupt):
                raise
            raise LedgerError(f"the ledger {self.path} cannot be written: {error}") from error


def _exclusive(path: Path) -> int:
    # Here and not on top: the auditor reads bundles on Windows too, where there is no fcntl.
    import fcntl

    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(f"the lock {path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise LedgerLocked(f"another process holds the ledger's lock {path}") from error
    return lock


def _create(path: Path, origin: str, signer: Ed25519PrivateKey, now_ms: int) -> None:
    """Make the whole database under another name first, so that a crash never leaves half of one."""
    key = signer.public_key().public_bytes_raw()
    body = Record(coarse_time(now_ms), Key(origin, key)).encode()
    note = sign_head(origin, 1, Tree([body]).root(), signer)
    unfinished = path.with_name(path.name + ".new")
    try:
        unfinished.unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as database:
            database.executescript("PRAGMA synchronous = FULL; PRAGMA fullfsync = 1;" + _SCHEMA)
            database.execute("BEGIN")
            database.execute("INSERT INTO leaves VALUES (0, ?)", (body,))
            database.execute("INSERT INTO heads VALUES (1, ?)", (note,))
            database.execute("COMMIT")
        unfinished.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"the ledger {path} cannot be made: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=10
        )
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            # Does nothing but on macOS, where a plain fsync leaves data in the drive's cache.
            database.execute("PRAGMA fullfsync = 1")
            database.execute("PRAGMA checkpoint_fullfsync = 1")
            database.execute("PRAGMA trusted_schema = 0")
        except BaseException:
            database.close()
            raise
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error
    return database


def _load(database: sqlite3.Connection, path: Path, origin: str, key: bytes) -> _Content:
    try:
        database.execute("BEGIN")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version != _VERSION:
            raise LedgerCorrupt(f"{path} is not a ledger of format {_VERSION}")
        if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise LedgerCorrupt(f"the database {path} is damaged")
        leaves = database.execute("SELECT number, body FROM leaves ORDER BY number").fetchall()
        heads = database.execute("SELECT size, note FROM heads ORDER BY size").fetchall()
        database.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error
    if [number for number, _ in leaves] != list(range(len(leaves))) or not leaves:
        raise LedgerCorrupt(f"the ledger {path} lacks a leaf")
    if [size for size, _ in heads] != list(range(1, len(leaves) + 1)):
        raise LedgerCorrupt(f"the ledger {path} holds {len(leaves)} leaves and the heads of another number")
    bodies = [bytes(body) for _, body in leaves]
    return _check(path, origin, key, bodies, [bytes(note) for _, note in heads])


def _check(path: Path, origin: str, key: bytes, bodies: list[bytes], notes: list[bytes]) -> _Content:
    tree = Tree(bodies)
    for size, note in enumerate(notes, start=1):
        try:
            head = open_head(note, origin, key)
        except MalformedError as error:
            raise LedgerCorrupt(f"the ledger {path}: {error} (head {size})") from error
        if head.size != size or head.root != tree.root(size):
            raise LedgerCorrupt(f"the ledger {path} does not match its own signed head of {size} leaves")
    records = []
    for number, body in enumerate(bodies):
        try:
            records.append(Record.decode(body))
        except MalformedError as error:
            raise LedgerCorrupt(f"the ledger {path}: leaf {number}: {error}") from error
    if records[0].leaf != Key(origin, key):
        raise LedgerCorrupt(f"the ledger {path} does not begin with the key of {origin}")
    return bodies, records, head


def _unreadable(path: Path, error: sqlite3.DatabaseError) -> LedgerError:
    # OperationalError: not the file's content but the machine (permissions, a full disk, a lock).
    if isinstance(error, sqlite3.OperationalError):
        return LedgerError(f"the ledger {path} cannot be opened: {error}")
    return LedgerCorrupt(f"the database {path} is damaged: {error}")
