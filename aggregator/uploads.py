"""Masked inputs on their way in: one at a time for each silo, in order, resumable after a cut or a restart.

What comes is hashed as it is written and never read again to check it, but for a part that another process left.
Safe to call from several threads; two calls about one silo follow each other.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from feddrm.contract.errors import InputError, MalformedError
from feddrm.contract.files import sync_directory
from feddrm.contract.messages import Chunk, UploadReceipt
from feddrm.transport.status import BusyError
from secagg.hashing import BlobHash, blob_hash

log = logging.getLogger(__name__)

_COMPLETE_UPLOADS: Final = 2
_PIECE: Final = 1 << 20
# So much is written before it is made durable: the last sync of a large vector then has little left to do.
_UNSYNCED: Final = 16 << 20


@dataclass(slots=True)
class _Part:
    """A blob that is not complete: an open file, what it holds, and the hash of that."""

    blob: bytes
    path: Path
    descriptor: int
    held: int
    unsynced: int
    digest: BlobHash = field(repr=False)


@dataclass(slots=True)
class _Shelf:
    """One silo's folder."""

    folder: Path
    guard: threading.RLock = field(default_factory=threading.RLock)
    part: _Part | None = None


class Uploads:
    """All silos' masked inputs below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shelves: dict[str, _Shelf] = {}
        self._guard = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)

    def held(self, silo: str, blob: bytes, size: int) -> UploadReceipt:
        """How much of a silo's blob of `size` bytes is held, durably."""
        shelf = self._shelf(silo)
        with shelf.guard:
            if (shelf.folder / blob.hex()).exists():
                return UploadReceipt(blob, size, True)
            part = self._resume(shelf, blob, create=False)
            if part is None:
                return UploadReceipt(blob, 0, False)
            if part.held >= size:
                # Left by a process that ended before it could finish; or damaged, and then it is begun anew.
                complete = part.held == size and part.digest.digest() == blob
                (self._finish if complete else self._drop)(shelf, part)
                return UploadReceipt(blob, size if complete else 0, complete)
            self._sync(part)
            return UploadReceipt(blob, part.held, False)

    def add(self, silo: str, chunk: Chunk, limit: int) -> bool:
        """Take one chunk; returns whether the blob is complete, which then is durable. What is held already is ignored.

        Args:
            silo: the sender, as its certificate names it.
            chunk: must not leave a gap after what is held.
            limit: the one size that a blob of this session has, in bytes.

        Raises:
            MalformedError: another size, a gap, a wrong hash.
            BusyError: the disk refuses it; what was held before stays.
        """
        if chunk.size != limit:
            raise MalformedError(f"An upload of this session has {limit} bytes, not {chunk.size}.")
        if blob_hash(chunk.data) != chunk.digest:
            raise MalformedError("An uploaded chunk does not have the hash it names.")
        if not chunk.data or chunk.offset + len(chunk.data) > limit:
            raise MalformedError("An uploaded chunk is empty, or exceeds its blob.")
        shelf = self._shelf(silo)
        with shelf.guard:
            if (shelf.folder / chunk.blob.hex()).exists():
                return True
            try:
                return self._append(shelf, chunk)
            except OSError as error:
                # What the file holds is looked at anew before it is relied on.
                self._close(shelf)
                log.error("The masked input of %s cannot be kept: %s", silo, error.strerror or error)
                raise BusyError(f"The coordinator's disk does not take the masked input of {silo}.") from error

    def sync(self, silo: str, blob: bytes) -> None:
        """Make what is held durable."""
        shelf = self._shelf(silo)
        with shelf.guard:
            if shelf.part is not None and shelf.part.blob == blob:
                self._sync(shelf.part)

    def get(self, silo: str, blob: bytes) -> bytes:
        """A complete masked input.

        Raises:
            InputError: it is not there, or not complete.
        """
        try:
            return (self._directory / silo / blob.hex()).read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"The masked input of {silo} was not uploaded.") from error

    def empty(self) -> bool:
        """Whether no masked input is held, nor a part of one."""
        return not any(any(path.iterdir()) for path in self._directory.iterdir() if path.is_dir())

    def clear(self) -> None:
        """Remove every masked input."""
        for folder in sorted(path for path in self._directory.iterdir() if path.is_dir()):
            shelf = self._shelf(folder.name)
            with shelf.guard:
                self._close(shelf)
                for path in folder.iterdir():
                    path.unlink()

    def close(self) -> None:
        """Close all files; nothing that is held is lost."""
        for shelf in self._shelves.values():
            with shelf.guard:
                if shelf.part is not None:
                    self._sync(shelf.part)
                self._close(shelf)

    def _shelf(self, silo: str) -> _Shelf:
        with self._guard:
            return self._shelves.setdefault(silo, _Shelf(self._directory / silo))

    def _append(self, shelf: _Shelf, chunk: Chunk) -> bool:
        part = self._resume(shelf, chunk.blob, create=True)
        assert part is not None  # noqa: S101 - it was created
        if chunk.offset > part.held:
            raise MalformedError(f"The upload goes on at byte {part.held}, not {chunk.offset}.")
        fresh = memoryview(chunk.data)[part.held - chunk.offset :]
        if fresh:
            self._write(part, fresh)
        if part.held < chunk.size:
            return False
        if part.digest.digest() != part.blob:
            self._drop(shelf, part)
            raise MalformedError("An upload does not have the hash it is named by.")
        self._finish(shelf, part)
        return True

    def _finish(self, shelf: _Shelf, part: _Part) -> None:
        os.fsync(part.descriptor)
        self._close(shelf)
        part.path.rename(part.path.with_suffix(""))
        sync_directory(shelf.folder)

    def _drop(self, shelf: _Shelf, part: _Part) -> None:
        self._close(shelf)
        part.path.unlink()

    def _write(self, part: _Part, data: memoryview) -> None:
        written = 0
        try:
            while written < len(data):
                count = os.pwrite(part.descriptor, data[written:], part.held + written)
                if not count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += count
        except OSError:
            # A torn chunk is no part of what is held.
            with contextlib.suppress(OSError):
                os.ftruncate(part.descriptor, part.held)
            raise
        part.digest.update(data)
        part.held += len(data)
        part.unsynced += len(data)
        if part.unsynced >= _UNSYNCED:
            self._sync(part)

    def _resume(self, shelf: _Shelf, blob: bytes, *, create: bool) -> _Part | None:
        """The open part of a blob; another blob's is given up when this one is begun."""
        part = shelf.part
        if part is not None and part.blob == blob:
            return part
        path = shelf.folder / f"{blob.hex()}.part"
        if not path.exists():
            if not create:
                return None
            self._make_room(shelf)
        self._close(shelf)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        digest, held = BlobHash(), 0
        while piece := os.pread(descriptor, _PIECE, held):
            digest.update(piece)
            held += len(piece)
        shelf.part = _Part(blob, path, descriptor, held, held, digest)
        return shelf.part

    def _make_room(self, shelf: _Shelf) -> None:
        # No silo fills the disk: one upload at a time, and never more complete ones than a session and its retry
        # need. Complete ones stay, since the log of events refers to them until the next checkpoint.
        if not shelf.folder.exists():
            shelf.folder.mkdir()
            sync_directory(self._directory)
        files = sorted(shelf.folder.iterdir())
        if len([path for path in files if path.suffix != ".part"]) >= _COMPLETE_UPLOADS:
            raise MalformedError("This silo has uploaded more masked inputs than its sessions ask for.")
        self._close(shelf)
        for path in files:
            if path.suffix == ".part":
                path.unlink()

    @staticmethod
    def _sync(part: _Part) -> None:
        if part.unsynced:
            os.fsync(part.descriptor)
            sync_directory(part.path.parent)
            part.unsynced = 0

    @staticmethod
    def _close(shelf: _Shelf) -> None:
        if shelf.part is not None:
            os.close(shelf.part.descriptor)
            shelf.part = None
