"""Content-addressed files: sums, models, trunks and heads, durable before they are spoken of.

A blob is named by the BLAKE3 of its bytes (secagg.hashing) and lives in one folder per kind, so that a caller who may
read sums cannot reach another kind by guessing or learning a hash. Masked inputs are not here
at all, but in aggregator.uploads.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from feddrm.contract.chunks import CHUNK_BYTES, blob_hash
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.files import atomic_write, file_error, full_sync, sync_directory
from feddrm.contract.messages import Chunk

SUMS: Final = "sums"
MODELS: Final = "models"
TRUNKS: Final = "trunks"
HEADS: Final = "heads"
EVIDENCE: Final = "evidence"
CASES: Final = "cases"
TRANSCRIPTS: Final = "transcripts"
_KINDS: Final = frozenset({SUMS, MODELS, TRUNKS, HEADS, EVIDENCE, CASES, TRANSCRIPTS})


class Blobs:
    """Whole blobs below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unsynced: set[Path] = set()
        for kind in sorted(_KINDS):
            (directory / kind).mkdir(parents=True, exist_ok=True)

    def path(self, kind: str, blob: bytes) -> Path:
        """Where a blob is or would be."""
        if kind not in _KINDS or len(blob) != 32:
            raise MalformedError("A blob is named by its kind and 32 bytes.")
        return self._directory / kind / blob.hex()

    def put(self, kind: str, data: bytes) -> bytes:
        """Keep `data`, fsynced, and return its name. A blob that is there already is left alone."""
        blob = blob_hash(data)
        path = self.path(kind, blob)
        if not path.exists():
            atomic_write(path, data)
        return blob

    def put_soon(self, kind: str, data: bytes) -> bytes:
        """Keep `data` as `put` does, but durable with the next `sync` only: for what can be made again until then. A
        blob that is there is written again, as the loss of power may have left half of it."""
        blob = blob_hash(data)
        path = self.path(kind, blob)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except OSError as error:
            raise file_error(error, path) from error
        self._unsynced.add(path)
        return blob

    def sync(self) -> None:
        """Make all of `put_soon` durable."""
        for path in self._unsynced:
            with path.open("rb+") as file:
                full_sync(file.fileno())
        for folder in {path.parent for path in self._unsynced}:
            sync_directory(folder)
        self._unsynced.clear()

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
        if blob_hash(data) != blob:
            raise VerificationError(f"The stored {kind} blob {blob.hex()[:16]} is damaged.")
        return data

    def chunk(self, kind: str, blob: bytes, offset: int) -> Chunk | None:
        """The chunk of a blob that starts at `offset`, or None at its end. A large blob is never in memory.

        The whole was checked when it was put there, and whoever receives it checks it again.

        Raises:
            InputError: no such blob.
            MalformedError: `offset` lies outside the blob.
        """
        try:
            with self.path(kind, blob).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = os.pread(file.fileno(), CHUNK_BYTES, offset) if offset < size else b""
        except FileNotFoundError as error:
            raise InputError(f"There is no {kind} blob {blob.hex()[:16]}.") from error
        if offset > size:
            raise MalformedError(f"Offset {offset} lies outside a blob of {size} bytes.")
        return Chunk(blob, size, offset, data, blob_hash(data)) if data else None

    def names(self, kind: str) -> tuple[bytes, ...]:
        """The names of all blobs of a kind, sorted."""
        files = self.path(kind, bytes(32)).parent.iterdir()
        return tuple(sorted(bytes.fromhex(file.name) for file in files if len(file.name) == 64))

    def has(self, kind: str, blob: bytes) -> bool:
        """Whether a blob is there."""
        return self.path(kind, blob).exists()

    def keep_only(self, kind: str, blobs: frozenset[bytes]) -> None:
        """Remove all blobs of a kind but these."""
        kept = {blob.hex() for blob in blobs}
        for path in sorted((self._directory / kind).iterdir()):
            if path.name not in kept:
                path.unlink(missing_ok=True)
