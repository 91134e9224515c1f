"""Blobs in hashed pieces: how masked vectors, sums and trunks travel, resumable and bounded.

A blob is named by its BLAKE3 (secagg.hashing). Every chunk carries a digest of its own, so that a receiver
drops a damaged piece at once instead of a whole vector at the end; the name is checked over the whole before anybody
gets it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.messages import Chunk
from secagg.hashing import BlobHash, blob_hash

__all__ = ["CHUNK_BYTES", "ChunkAssembler", "blob_hash", "iter_chunks"]

CHUNK_BYTES: Final = 1 << 20


def iter_chunks(data: bytes, offset: int = 0, size: int = CHUNK_BYTES, *, blob: bytes | None = None) -> Iterator[Chunk]:
    """The chunks of a blob from `offset` on, in order; none if `offset` is its end.

    Args:
        blob: its name, where that is known already.

    Raises:
        MalformedError: `offset` lies outside the blob (a peer asked for it).
    """
    if not 0 <= offset <= len(data):
        raise MalformedError(f"Offset {offset} lies outside a blob of {len(data)} bytes.")
    name = blob_hash(data) if blob is None else blob
    for start in range(offset, len(data), size):
        part = data[start : start + size]
        yield Chunk(name, len(data), start, part, blob_hash(part))


class ChunkAssembler:
    """Receives the chunks of one blob in order; with a `path` what has come survives a restart.

    Args:
        blob: the name of the whole.
        limit: most bytes the whole may have; with `exact` it must have just as many.
        path: where the whole will lie. Until it is complete, what has come is kept beside it as `<name>.part`.

    A resumed part is hashed again but for its last CHUNK_BYTES, which are asked for once more.
    """

    def __init__(self, blob: bytes, *, limit: int, exact: bool = False, path: Path | None = None) -> None:
        self.blob = blob
        self._limit = limit
        self._exact = exact
        self._path = path
        self._size: int | None = None
        self._hash = BlobHash()
        self._memory = io.BytesIO()
        self._held = 0
        self._complete = False
        if path is not None:
            self._resume(path)

    def _resume(self, path: Path) -> None:
        source = path if path.exists() else self._part(path)
        if not source.exists():
            return
        before, last = self._hash.copy(), 0
        with source.open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                before, last = self._hash.copy(), len(piece)
                self._hash.update(piece)
                self._held += last
        if self._hash.digest() == self.blob and self._held <= self._limit:
            self._finish()
        elif source == path or self._held > self._limit:
            self.discard()
        else:
            # The last piece is fetched again. Otherwise a damaged part of full length would leave nothing to be sent,
            # and the check of the whole, which finds the damage, would never run.
            self._hash, self._held = before, self._held - last
            with source.open("r+b") as file:
                file.truncate(self._held)

    @staticmethod
    def _part(path: Path) -> Path:
        return path.with_name(path.name + ".part")

    @property
    def held(self) -> int:
        """Bytes received so far: where the sender resumes."""
        return self._held

    @property
    def complete(self) -> bool:
        """Whether the whole is here and its hash is the blob's name."""
        return self._complete

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk; one that is already held is ignored.

        Raises:
            MalformedError: another blob's, a gap, or beyond the limit.
            VerificationError: the chunk's digest, or at the end the whole's hash, is wrong; in the latter case all
                that was held is dropped.
        """
        if chunk.blob != self.blob:
            raise MalformedError("This chunk belongs to another blob.")
        if chunk.size > self._limit or (self._exact and chunk.size != self._limit):
            raise MalformedError(f"A blob of {chunk.size} bytes is not the one expected, of {self._limit}.")
        if self._size not in (None, chunk.size):
            raise MalformedError("Two chunks of one blob disagree about its size.")
        if blob_hash(chunk.data) != chunk.digest:
            raise VerificationError("A chunk's digest does not match its data.")
        self._size = chunk.size
        if self._complete or chunk.offset + len(chunk.data) <= self._held:
            return
        if chunk.offset != self._held or chunk.offset + len(chunk.data) > chunk.size:
            raise MalformedError(f"A chunk at {chunk.offset} does not follow the {self._held} bytes held.")
        self._write(chunk.data)
        if self._held == chunk.size:
            if self._hash.digest() != self.blob:
                self.discard()
                raise VerificationError("The bytes received do not have the hash that names them.")
            self._finish()

    def data(self) -> bytes:
        """The whole.

        Raises:
            VerificationError: it is not complete, or (with a path) no longer what it was.
        """
        if not self._complete:
            raise VerificationError("The blob is not complete yet.")
        if self._path is None:
            # The buffer's own bytes, no copy of them, as long as nobody else holds them.
            return self._memory.getvalue()
        data = self._path.read_bytes()
        if blob_hash(data) != self.blob:
            raise VerificationError(f"{self._path} was changed after it had been received.")
        return data

    def _write(self, data: bytes) -> None:
        if self._path is None:
            self._memory.write(data)
        else:
            with self._part(self._path).open("ab") as part:
                part.write(data)
                part.flush()
                os.fsync(part.fileno())
        self._hash.update(data)
        self._held += len(data)

    def _finish(self) -> None:
        self._complete = True
        if self._path is not None and not self._path.exists():
            self._part(self._path).replace(self._path)
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def discard(self) -> None:
        """Forget all that is held and start over."""
        self._hash = BlobHash()
        self._memory = io.BytesIO()
        self._held = 0
        self._size = None
        self._complete = False
        if self._path is not None:
            self._part(self._path).unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
