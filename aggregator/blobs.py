"""Content-addressed files: sums, models, trunks and masked inputs, durable before they are spoken of.

A blob is named by the SHA-256 of its bytes and lives in one folder per kind, so that a caller who may read sums cannot
reach another silo's masked input by guessing or learning its hash.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.files import atomic_write
from feddrm.contract.messages import Chunk, UploadReceipt

SUMS: Final = "sums"
MODELS: Final = "models"
TRUNKS: Final = "trunks"
HEADS: Final = "heads"
EVIDENCE: Final = "evidence"
_COMPLETE_UPLOADS: Final = 2
_KINDS: Final = frozenset({SUMS, MODELS, TRUNKS, HEADS, EVIDENCE})


def hash_of(data: bytes) -> bytes:
    """The SHA-256 that names a blob (32 bytes)."""
    return hashlib.sha256(data).digest()


class Blobs:
    """Whole blobs below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for kind in sorted(_KINDS):
            (directory / kind).mkdir(parents=True, exist_ok=True)

    def path(self, kind: str, blob: bytes) -> Path:
        """Where a blob is or would be."""
        if kind not in _KINDS or len(blob) != 32:
            raise MalformedError("A blob is named by its kind and 32 bytes.")
        return self._directory / kind / blob.hex()

    def put(self, kind: str, data: bytes) -> bytes:
        """Keep `data`, fsynced, and return its SHA-256. A blob that is there already is left alone."""
        blob = hashlib.sha256(data).digest()
        path = self.path(kind, blob)
        if not path.exists():
            atomic_write(path, data)
        return blob

    def get(self, kind: str, blob: bytes) -> bytes:
        """Read a blob.

        Raises:
            InputError: no such blob.
            VerificationError: the file no longer has the hash it is named by.
        """
        try:
            data = self.path(kind, blob).read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"There is no {kind} blob {blob.hex()[:16]}.") from error
        if hashlib.sha256(data).digest() != blob:
            raise VerificationError(f"The stored {kind} blob {blob.hex()[:16]} is damaged.")
        return data

    def has(self, kind: str, blob: bytes) -> bool:
        """Whether a blob is there."""
        return self.path(kind, blob).exists()

    def keep_only(self, kind: str, blobs: frozenset[bytes]) -> None:
        """Remove all blobs of a kind but these."""
        kept = {blob.hex() for blob in blobs}
        for path in sorted((self._directory / kind).iterdir()):
            if path.name not in kept:
                path.unlink(missing_ok=True)


class Uploads:
    """Masked inputs on their way in: one at a time for each silo, in order, resumable after a cut or a restart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def held(self, silo: str, blob: bytes, size: int) -> UploadReceipt:
        """How much of a silo's blob is held, durably."""
        if (self._directory / silo / blob.hex()).exists():
            return UploadReceipt(blob, size, True)
        part = self._part(silo, blob)
        return UploadReceipt(blob, part.stat().st_size if part.exists() else 0, False)

    def add(self, silo: str, chunk: Chunk, limit: int) -> bool:
        """Append one chunk; returns whether the blob is complete. Call `sync` before a receipt is given.

        Args:
            silo: the sender, as its certificate names it.
            chunk: must start where the held part ends.
            limit: the one size that a blob of this session has, in bytes.

        Raises:
            MalformedError: another size, a gap, a wrong hash.
        """
        if chunk.size != limit:
            raise MalformedError(f"An upload of this session has {limit} bytes, not {chunk.size}.")
        if hashlib.sha256(chunk.data).digest() != chunk.digest:
            raise MalformedError("An uploaded chunk does not have the hash it names.")
        receipt = self.held(silo, chunk.blob, chunk.size)
        if receipt.complete:
            return True
        if chunk.offset != receipt.held or not chunk.data:
            raise MalformedError(f"The upload goes on at byte {receipt.held}, not {chunk.offset}.")
        if receipt.held + len(chunk.data) > limit:
            raise MalformedError("An upload exceeds its own size.")
        part = self._part(silo, chunk.blob)
        part.parent.mkdir(exist_ok=True)
        if not receipt.held:
            self._make_room(part)
        with part.open("ab") as file:
            file.write(chunk.data)
        if receipt.held + len(chunk.data) < limit:
            return False
        self.sync(silo, chunk.blob)
        if hashlib.sha256(part.read_bytes()).digest() != chunk.blob:
            part.unlink()
            raise MalformedError("An upload does not have the hash it is named by.")
        part.rename(part.with_suffix(""))
        _sync_directory(part.parent)
        return True

    def sync(self, silo: str, blob: bytes) -> None:
        """Make what is held durable."""
        part = self._part(silo, blob)
        if part.exists():
            with part.open("rb") as file:
                os.fsync(file.fileno())
            _sync_directory(part.parent)

    def get(self, silo: str, blob: bytes) -> bytes:
        """A complete masked input.

        Raises:
            InputError: it is not there, or not complete.
        """
        try:
            return (self._directory / silo / blob.hex()).read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"The masked input of {silo} was not uploaded.") from error

    def clear(self) -> None:
        """Remove every masked input."""
        for path in sorted(self._directory.iterdir()):
            shutil.rmtree(path)

    @staticmethod
    def _make_room(part: Path) -> None:
        # No silo fills the disk: one upload at a time, and never more complete ones than a session and its retry
        # need. Complete ones stay, since the log of events refers to them until the next checkpoint.
        files = sorted(part.parent.iterdir())
        if len([path for path in files if path.suffix != ".part"]) >= _COMPLETE_UPLOADS:
            raise MalformedError("This silo has uploaded more masked inputs than its sessions ask for.")
        for path in files:
            if path.suffix == ".part" and path != part:
                path.unlink()

    def _part(self, silo: str, blob: bytes) -> Path:
        return self._directory / silo / f"{blob.hex()}.part"


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
