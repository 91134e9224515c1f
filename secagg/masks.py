"""The mask streams, and adding them to vectors in cache-sized chunks.

A stream is the AES-256 keystream in counter mode from the block 0^96 || 00000002 (NIST SP 800-38A), read as
little-endian words. GCM with a zero 96-bit nonce (NIST SP 800-38D) encrypts with just these blocks, and where AES has
vector instructions its kernel in OpenSSL is the faster one, although it computes a tag, which nobody reads. The counter
may start alike in every stream because no key is ever used for two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from numpy.typing import NDArray

from secagg.errors import MisuseError
from secagg.session import TAG_PRIME

# Zeros, keystream and target together fit a second-level cache; smaller chunks spend more on calls.
CHUNK_BYTES: Final = 256 << 10
# 2^32 - 2 blocks: GCM's counter has 32 bits and must not come back to its start.
MAXIMUM_BYTES: Final = ((1 << 32) - 2) * 16
_ZEROS: Final = memoryview(bytes(CHUNK_BYTES))

Words = NDArray[Any]
Start = Callable[[bytes], CipherContext]


def ctr(key: bytes) -> CipherContext:
    """The stream of a key (32 bytes), as it is defined."""
    return Cipher(AES256(key), CTR(bytes(15) + b"\x02")).encryptor()


def gcm(key: bytes) -> CipherContext:
    """The same stream, as GCM computes it."""
    return Cipher(AES256(key), GCM(bytes(12))).encryptor()


def choose(fast: Start, reference: Start) -> Start:
    """`fast` if it writes what `reference` writes, else `reference`.

    Compared over whole and broken chunks, since kernels differ in how they go on after an odd number of blocks, and
    past the carry out of two bytes of the counter.
    """
    key = bytes(range(32))
    got, expected = bytearray(CHUNK_BYTES), bytearray(CHUNK_BYTES)
    try:
        one, other = fast(key), reference(key)
        for size in (CHUNK_BYTES, 16, 8, 4, 68, CHUNK_BYTES - 32, 1024, 4096 + 12, *[CHUNK_BYTES] * 7, 255 * 16, 4):
            written = one.update_into(_ZEROS[:size], got)
            other.update_into(_ZEROS[:size], expected)
            if written != size or got != expected:
                return reference
    except UnsupportedAlgorithm:
        return reference
    return fast


@cache
def _chosen() -> Start:
    """What this process uses; tried once, at the first stream."""
    return choose(gcm, ctr)


class Keystream:
    """The words of one key, in order. `dtype` is little-endian u32 or u64.

    Raises:
        MisuseError: from any method, when more than a chunk, or than MAXIMUM_BYTES of one key, is asked for.
    """

    __slots__ = ("_cipher", "_left")

    def __init__(self, key: bytes, start: Start | None = None) -> None:
        self._cipher = (start or _chosen())(key)
        self._left = MAXIMUM_BYTES

    def into(self, buffer: memoryview | bytearray, size: int) -> None:
        """Write the next `size` bytes, at most CHUNK_BYTES, to the start of `buffer`."""
        if size > CHUNK_BYTES:
            raise MisuseError("keystream is written in chunks")
        self._spend(size)
        self._cipher.update_into(_ZEROS if size == CHUNK_BYTES else _ZEROS[:size], buffer)

    def words(self, count: int, dtype: str) -> Words:
        """The next `count` words as a fresh array."""
        size = count * np.dtype(dtype).itemsize
        self._spend(size)
        zeros = _ZEROS[:size] if size <= CHUNK_BYTES else bytes(size)
        return np.frombuffer(self._cipher.update(zeros), dtype=dtype)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise MisuseError("a key must not give more than 64 GiB of keystream")


def residues(stream: Keystream, count: int) -> list[int]:
    """The next `count` words of 128 bits, modulo TAG_PRIME: uniform up to 2^-72."""
    words = stream.words(2 * count, "<u8").tolist()
    return [(low + (high << 64)) % TAG_PRIME for low, high in zip(words[::2], words[1::2], strict=True)]


def apply(target: Words, add: Iterable[bytes], subtract: Iterable[bytes], tags: Words | None = None) -> None:
    """Add and subtract the streams of the given keys to `target` (1-D, `<u4` or `<u8`, writable), modulo its ring.

    With `tags` (<u8[k], below TAG_PRIME) the first 2k words of each stream are theirs, as k residues.

    Chunks outside, streams inside: a chunk of the target stays in cache while all streams pass over it, and one chunk
    of keystream is all the memory that is needed, however many streams there are.
    """
    plus = [Keystream(key) for key in add]
    minus = [Keystream(key) for key in subtract]
    if tags is not None:
        totals = [int(tag) for tag in tags]
        for sign, streams in ((1, plus), (-1, minus)):
            for keystream in streams:
                totals = [t + sign * r for t, r in zip(totals, residues(keystream, len(totals)), strict=True)]
        tags[:] = [total % TAG_PRIME for total in totals]
    works = [(np.add, keystream.into) for keystream in plus] + [(np.subtract, keystream.into) for keystream in minus]
    buffer = bytearray(min(CHUNK_BYTES, target.nbytes))
    stream = np.frombuffer(buffer, dtype=target.dtype)
    step = CHUNK_BYTES // target.itemsize
    for start in range(0, len(target), step):
        part = target[start : start + step]
        masks = stream[: len(part)]
        size = part.nbytes
        for combine, write in works:
            write(buffer, size)
            combine(part, masks, part)
