"""Known answers for the hash of blobs, and BLAKE3 a second time, plain and slow, from its specification.

"BLAKE3: one function, fast everywhere" (O'Connor, Aumasson, Neves, Wilcox-O'Hearn), section 2. The project's own input
is its official one: byte i is i mod 251.
"""

from __future__ import annotations

import struct
from typing import Final

import pytest

from secagg.hashing import BlobHash, blob_hash

WORD: Final = (1 << 32) - 1
# Table 1 and 2: those of SHA-256, and the order of the message words from one round to the next.
IV: Final = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION: Final = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS_AND_DIAGONALS: Final = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
EMPTY = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def official(size: int) -> bytes:
    return bytes(i % 251 for i in range(size))


def compress(chain: tuple[int, ...], block: bytes, counter: int, flags: int) -> tuple[int, ...]:
    """Section 2.2, the first eight words of the output."""
    words = struct.unpack("<16I", block.ljust(64, b"\0"))
    v = [*chain, *IV[:4], counter & WORD, counter >> 32, len(block), flags]
    for _ in range(7):
        for index, (a, b, c, d) in enumerate(COLUMNS_AND_DIAGONALS):
            for word, first, second in ((words[2 * index], 16, 12), (words[2 * index + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & WORD
                v[d] = rotated(v[d] ^ v[a], first)
                v[c] = (v[c] + v[d]) & WORD
                v[b] = rotated(v[b] ^ v[c], second)
        words = tuple(words[index] for index in PERMUTATION)
    return tuple(v[index] ^ v[index + 8] for index in range(8))


def rotated(word: int, by: int) -> int:
    return (word >> by | word << (32 - by)) & WORD


def tree(data: bytes, first_chunk: int, root: int) -> tuple[int, ...]:
    """Sections 2.4 and 2.5: the left subtree is the largest complete one that leaves at least a byte to the right."""
    if len(data) > 1024:
        left = 1024
        while 2 * left < len(data):
            left *= 2
        children = tree(data[:left], first_chunk, 0) + tree(data[left:], first_chunk + left // 1024, 0)
        return compress(IV, struct.pack("<16I", *children), 0, PARENT | root)
    chain = IV
    blocks = [data[at : at + 64] for at in range(0, len(data), 64)] or [b""]
    for index, block in enumerate(blocks):
        last = index == len(blocks) - 1
        flags = (CHUNK_START if index == 0 else 0) | (CHUNK_END | root if last else 0)
        chain = compress(chain, block, first_chunk, flags)
    return chain


def test_the_empty_input_has_the_published_digest() -> None:
    assert blob_hash(b"").hex() == EMPTY
    assert struct.pack("<8I", *tree(b"", 0, ROOT)).hex() == EMPTY


# The sizes of the official test vectors around every border of block, chunk and subtree.
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1023, 1024, 1025, 2048, 2049, 3072, 3073, 4097, 8193, 31744, 102400])
def test_a_second_implementation_agrees(size: int) -> None:
    data = official(size)
    assert blob_hash(data) == struct.pack("<8I", *tree(data, 0, ROOT))


def test_piece_by_piece_is_the_same_hash() -> None:
    data = official(102400)
    digest = BlobHash()
    for start, end in ((0, 1), (1, 1025), (1025, 65536), (65536, 102400)):
        digest.update(data[start:end])
    assert digest.digest() == blob_hash(data)
