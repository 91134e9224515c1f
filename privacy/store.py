"""How a ledger lies on the disk: an SQLite database whose triggers refuse change, and the checks of what is read."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.errors import LedgerCorrupt, LedgerError, LedgerLocked, MalformedError
from privacy.leaves import Key, Leaf, Record, coarse_time
from privacy.merkle import Tree
from privacy.note import Head, open_head, sign_head
from privacy.succession import Tenure, key_at, tenures

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
Content = tuple[list[bytes], list[Record], Head]


def exclusive(path: Path) -> int:
    """Take the lock file `path` for this process; returns its descriptor, whose closing lets it go."""
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


def refuse_vanished(lock: int, path: Path) -> None:
    """Refuse to begin a ledger where there has been one."""
    if os.fstat(lock).st_size:
        raise LedgerCorrupt(f"the ledger {path} is gone; a new one in its place would forget what was spent")


def mark(lock: int) -> None:
    """Remember in the lock file that its ledger exists."""
    if not os.fstat(lock).st_size:
        os.write(lock, b"The ledger beside this file exists. Do not delete either.\n")
        os.fsync(lock)


def create(path: Path, origin: str, signer: Ed25519PrivateKey, now_ms: int, leaves: Sequence[Leaf] = ()) -> None:
    """Make the whole database under another name first, so that a crash never leaves half of one.

    Args:
        leaves: what follows the KEY leaf at once.
    """
    first = Key(origin, signer.public_key().public_bytes_raw())
    bodies = [Record(coarse_time(now_ms), leaf).encode() for leaf in (first, *leaves)]
    tree = Tree(bodies)
    notes = [sign_head(origin, size, tree.root(size), signer) for size in range(1, len(bodies) + 1)]
    unfinished = path.with_name(path.name + ".new")
    try:
        unfinished.unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as database:
            # The mode stays with the file; setting it at every opening would write to files that are no ledgers.
            database.executescript(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA fullfsync = 1;" + _SCHEMA
            )
            database.execute("BEGIN")
            database.executemany("INSERT INTO leaves VALUES (?, ?)", enumerate(bodies))
            database.executemany("INSERT INTO heads VALUES (?, ?)", enumerate(notes, start=1))
            database.execute("COMMIT")
        unfinished.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"the ledger {path} cannot be made: {error}") from error


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing database with every write durable when it returns."""
    try:
        database = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=10
        )
        try:
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


def load(database: sqlite3.Connection, path: Path, origin: str, key: bytes) -> Content:
    """Read everything and hold it against the signed heads: leaf bytes, records, newest head."""
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


def _check(path: Path, origin: str, key: bytes, bodies: list[bytes], notes: list[bytes]) -> Content:
    tree = Tree(bodies)
    records, unreadable = _decode(path, bodies)
    found = _tenures(path, origin, key, records, tree) if unreadable is None else (Tenure(key, 0),)
    for size, note in enumerate(notes, start=1):
        try:
            head = open_head(note, origin, key_at(found, size))
        except MalformedError as error:
            raise LedgerCorrupt(f"the ledger {path}: {error} (head {size})") from error
        if head.size != size or head.root != tree.root(size):
            raise LedgerCorrupt(f"the ledger {path} does not match its own signed head of {size} leaves")
    if unreadable is not None:
        raise unreadable
    return bodies, records, head


def _decode(path: Path, bodies: list[bytes]) -> tuple[list[Record], LedgerCorrupt | None]:
    records: list[Record] = []
    for number, body in enumerate(bodies):
        try:
            records.append(Record.decode(body))
        except MalformedError as error:
            # Whether it was signed so is said first: an edited leaf is more than an unreadable one.
            return records, LedgerCorrupt(f"the ledger {path}: leaf {number}: {error}")
    return records, None


def _tenures(path: Path, origin: str, key: bytes, records: list[Record], tree: Tree) -> tuple[Tenure, ...]:
    try:
        found = tenures(origin, [record.leaf for record in records], tree)
    except MalformedError as error:
        raise LedgerCorrupt(f"the ledger {path}: {error}") from error
    if found[-1].key != key:
        raise LedgerCorrupt(f"the ledger {path} is not under the key of {origin} that is in use here")
    return found


def _unreadable(path: Path, error: sqlite3.DatabaseError) -> LedgerError:
    # OperationalError: not the file's content but the machine (permissions, a full disk, a lock).
    if isinstance(error, sqlite3.OperationalError):
        return LedgerError(f"the ledger {path} cannot be opened: {error}")
    return LedgerCorrupt(f"the database {path} is damaged: {error}")
