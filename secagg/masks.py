"""The mask streams, and adding them to vectors in cache-sized chunks.

A stream is the AES-256 keystream in counter mode from the block 0^96 || 00000002 (the counter at which GCM with a zero
nonce starts, so that its faster kernel gives the same bytes), read as little-endian words. The counter may start alike
in every stream because no key is ever used for two of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

CHUNK_BYTES: Final = 128 << 10
_START: Final = bytes(15) + b"\x02"
_ZEROS: Final = bytes(CHUNK_BYTES)

Words = NDArray[Any]


class Keystream:
    """The words of one key, in order. `dtype` is little-endian u32 or u64."""

    def __init__(self, key: bytes) -> None:
        self._cipher: CipherContext = Cipher(AES256(key), CTR(_START)).encryptor()

    def into(self, buffer: memoryview, size: int) -> None:
        """Write the next `size` bytes to the start of `buffer`."""
        self._cipher.update_into(memoryview(_ZEROS)[:size], buffer)

    def words(self, count: int, dtype: str) -> Words:
        """The next `count` words as a fresh array."""
        return np.frombuffer(self._cipher.update(bytes(count * np.dtype(dtype).itemsize)), dtype=dtype)


def apply(target: Words, add: Iterable[bytes], subtract: Iterable[bytes]) -> None:
    """Add and subtract the streams of the given keys to `target` (1-D, `<u4` or `<u8`, writable), modulo its ring.

    Chunks outside, streams inside: a chunk of the target stays in cache while all streams pass over it, and one chunk
    of keystream is all the memory that is needed, however many streams there are.
    """
    plus = [Keystream(key) for key in add]
    minus = [Keystream(key) for key in subtract]
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    stream = np.frombuffer(buffer, dtype=target.dtype)
    step = len(stream)
    for start in range(0, len(target), step):
        part = target[start : start + step]
        masks = stream[: len(part)]
        for keystream in plus:
            keystream.into(view, part.nbytes)
            np.add(part, masks, out=part)
        for keystream in minus:
            keystream.into(view, part.nbytes)
            np.subtract(part, masks, out=part)
