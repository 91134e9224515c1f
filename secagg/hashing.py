"""The hash of bytes in bulk: what attachments are bound by and blobs are named by.

BLAKE3 (256 bits, unkeyed, its specification of 2020, one thread). A vector has megabytes and is hashed by everybody
who touches it; where processors have wide registers BLAKE3 takes a third of the time of SHA-256. Everything small,
and everything that is signed, chained or derived, stays with SHA-256 (secagg.keys).
"""

from __future__ import annotations

from blake3 import blake3

BlobHash = blake3
"""The same piece by piece: `BlobHash()`, `update`, `digest`."""


def blob_hash(data: bytes) -> bytes:
    """BLAKE3 of `data` (32 bytes)."""
    return blake3(data).digest()
