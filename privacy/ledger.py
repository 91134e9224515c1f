"""The hospital's ledger: an append-only log in SQLite whose every state has a signed tree head.

What a file alone cannot show is that it was put back to an older copy of itself: peers' witnessed heads show that
(`privacy.witness`, `privacy.verify`).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy import store
from privacy.errors import LedgerCorrupt, LedgerError, MalformedError
from privacy.handover import Carry, Recovered, Successor, hand_over
from privacy.leaves import Leaf, Record, coarse_time
from privacy.merkle import Tree
from privacy.note import Head, check_origin, sign_head


class Ledger:
    """One log. Get one by `Ledger.open` (the agent; exclusive) or `Ledger.read` (anybody on the machine; a snapshot).

    A leaf is durable when `append` returns, or inside `together` when that ends. Safe to call from several threads.
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
        self._together = False
        self._signer: Ed25519PrivateKey | None = None
        self._lock: int | None = None

    @classmethod
    def open(cls, path: str | Path, origin: str, signer: Ed25519PrivateKey, *, now_ms: int) -> Self:
        """Open the ledger for writing, or begin it with a KEY leaf when the file does not exist.

        Args:
            path: the database; a lock file of the same name plus ".lock" stands beside it and remembers that there
                is one, so that a deleted ledger is an error and not a fresh budget.
            origin: feddrm/<federation>/<silo>.
            signer: the silo's identity key; signs the heads.
            now_ms: milliseconds since the epoch, for the first leaf.

        Raises:
            LedgerLocked: another process has it open for writing.
            LedgerCorrupt: its bytes do not match its last signed head, it is of another silo or key, or it is gone.
            LedgerError: it cannot be opened at all.
        """
        path = Path(path)
        check_origin(origin)
        lock = store.exclusive(path.with_name(path.name + ".lock"))
        try:
            if not path.exists():
                store.refuse_vanished(lock, path)
                store.create(path, origin, signer, now_ms)
            store.mark(lock)
            database = store.connect(path)
            try:
                ledger = cls(path, origin, *store.load(database, path, origin, signer.public_key().public_bytes_raw()))
            except BaseException:
                database.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        ledger._database, ledger._signer, ledger._lock = database, signer, lock
        return ledger

    @classmethod
    def begin_again(
        cls, path: str | Path, origin: str, signer: Ed25519PrivateKey, leaves: Sequence[Leaf], *, now_ms: int
    ) -> Self:
        """Begin a log in the place of one that is gone, with what it answers for: all of it or nothing.

        Args:
            path, origin, now_ms: as `open` takes them. The lock file may remember the lost log.
            signer: another key than the lost log's.
            leaves: RECOVERED and CARRY leaves.

        Raises:
            LedgerLocked, LedgerError: as `open`; or a ledger is there.
        """
        path = Path(path)
        check_origin(origin)
        lock = store.exclusive(path.with_name(path.name + ".lock"))
        try:
            if path.exists():
                raise LedgerError(f"there is a ledger at {path}")
            store.create(path, origin, signer, now_ms, leaves)
        finally:
            os.close(lock)
        return cls.open(path, origin, signer, now_ms=now_ms)

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
        with closing(store.connect(path)) as database:
            return cls(path, origin, *store.load(database, path, origin, key))

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
            return self._append(leaf, now_ms, self._signer)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make the leaves that are appended inside durable by one write at the end, all or none; until then nobody who
        reads the file sees any of them.

        They are written when an exception ends it as well: leaves say what has happened.

        Raises:
            LedgerError, LedgerCorrupt: as `append`, which may show here only.
        """
        with self._guard:
            if self._together:
                yield
                return
            self._together = True
            try:
                yield
            finally:
                self._together = False
                if self._database is not None and self._database.in_transaction:
                    self._commit(self._database)

    def hand_over(self, signer: Ed25519PrivateKey, *, now_ms: int) -> int:
        """Let another key sign from here on; returns the number of the SUCCESSOR leaf, which both keys sign.

        Raises:
            ValueError: it is the key that signs already.
            LedgerError, LedgerCorrupt: as `append`.
        """
        with self._guard:
            if self._signer is None:
                raise LedgerError(f"the ledger {self.path} is not open for writing")
            leaf = hand_over(self.origin, self.size, self._tree.root(), self._signer, signer)
            number = self._append(leaf, now_ms, signer)
            self._signer = signer
            return number

    def succession(self) -> tuple[int, ...]:
        """Numbers of the leaves that say why this log may be under its key: CARRY, then SUCCESSOR and RECOVERED."""
        leaves = [record.leaf for record in self._records]
        carried = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Carry)]
        return (*carried, *(number for number, leaf in enumerate(leaves) if isinstance(leaf, Successor | Recovered)))

    def _append(self, leaf: Leaf, now_ms: int, signer: Ed25519PrivateKey | None) -> int:
        if self._database is None or signer is None:
            raise LedgerError(f"the ledger {self.path} is not open for writing")
        record = Record(max(coarse_time(now_ms), self._records[-1].time), leaf)
        body = record.encode()
        # What cannot be read back must not enter a log that can never be changed.
        if Record.decode(body) != record:
            raise MalformedError("a leaf does not survive its own encoding")
        root = self._tree.root_with(body)
        note = sign_head(self.origin, self.size + 1, root, signer)
        self._write(body, note)
        self._tree.append(body)
        self._bodies.append(body)
        self._records.append(record)
        self._head = Head(self.origin, self.size, root, note)
        return self.size - 1

    def leaves(self) -> tuple[Record, ...]:
        """All leaves in order."""
        return tuple(self._records)

    def leaf(self, number: int) -> Leaf:
        """One leaf.

        Raises:
            IndexError: there is no such leaf.
        """
        return self._records[number].leaf

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
            if not database.in_transaction:
                database.execute("BEGIN IMMEDIATE")
            stored = database.execute("SELECT note FROM heads ORDER BY size DESC LIMIT 1").fetchone()
            if stored is None or bytes(stored[0]) != self._head.note:
                raise LedgerCorrupt(f"somebody else has written to the ledger {self.path}")
            database.execute("INSERT INTO leaves VALUES (?, ?)", (self.size, body))
            database.execute("INSERT INTO heads VALUES (?, ?)", (self.size + 1, note))
        except BaseException as error:
            self._give_up(database, error)
            raise
        if not self._together:
            self._commit(database)

    def _commit(self, database: sqlite3.Connection) -> None:
        try:
            database.execute("COMMIT")
        except BaseException as error:
            self._give_up(database, error)
            raise

    def _give_up(self, database: sqlite3.Connection, error: BaseException) -> None:
        """Whether a commit reached the disk is unknown now. Nothing more is written until a fresh open has read what is
        there."""
        if database.in_transaction:
            database.execute("ROLLBACK")
        self.close()
        if isinstance(error, sqlite3.Error):
            raise LedgerError(f"the ledger {self.path} cannot be written: {error}") from error
