"""The mask streams, in which way ever they are computed, and how they are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secagg import masks
from secagg.errors import MisuseError
from secagg.masks import CHUNK_BYTES, MAXIMUM_BYTES, Keystream, Start, choose, ctr, gcm

KEY = b"k" * 32
both = pytest.mark.parametrize("start", [ctr, gcm])


@both
@settings(max_examples=50)
@given(key=st.binary(min_size=32, max_size=32), words=st.integers(0, 100))
def test_a_stream_is_aes_of_the_counter_from_2(start: Start, key: bytes, words: int) -> None:
    blocks = b"".join((2 + index).to_bytes(16) for index in range(words // 4 + 1))
    ecb = Cipher(algorithms.AES256(key), modes.ECB())  # noqa: S305  the bare block function, as a reference
    expected = ecb.encryptor().update(blocks)[: 4 * words]
    assert Keystream(key, start).words(words, "<u4").tobytes() == expected
    assert Keystream(key).words(words, "<u4").tobytes() == expected


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0, 4, 8, 12, 16, 68, 4092, 65536, CHUNK_BYTES - 4, CHUNK_BYTES]), max_size=8))
def test_both_ways_write_the_same_bytes_in_chunks_of_any_size(sizes: list[int]) -> None:
    one, other = bytearray(CHUNK_BYTES), bytearray(CHUNK_BYTES)
    fast, reference = Keystream(KEY, gcm), Keystream(KEY, ctr)
    for size in sizes:
        fast.into(one, size)
        reference.into(other, size)
        assert one == other


def test_the_faster_way_is_taken_where_it_passes_its_test() -> None:
    assert choose(gcm, ctr) is gcm


class Broken:
    """A context whose output goes wrong in the way of some kernel."""

    def __init__(self, inner: CipherContext, spoil: Callable[[int, Any, int], int]) -> None:
        self._inner = inner
        self._spoil = spoil
        self._calls = 0

    def update_into(self, data: bytes, buffer: Any) -> int:
        self._calls += 1
        return self._spoil(self._calls, buffer, self._inner.update_into(data, buffer))


def flip_the_last_byte_of_a_whole_chunk(_calls: int, buffer: Any, written: int) -> int:
    if written == CHUNK_BYTES:
        buffer[-1] ^= 1
    return written


def go_wrong_after_a_broken_block(calls: int, buffer: Any, written: int) -> int:
    if calls > 5:
        buffer[0] ^= 1
    return written


class LosesACarry:
    """Counts blocks in two bytes, as if the third did not exist: right for the first mebibyte."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._inner = gcm(key)
        self._left = ((1 << 16) - 2) * 16

    def update_into(self, data: bytes, buffer: Any) -> int:
        written = self._inner.update_into(data, buffer)
        self._left -= written
        if self._left < 0:
            buffer[:16] = Cipher(algorithms.AES256(self._key), modes.ECB()).encryptor().update(bytes(16))  # noqa: S305
        return written


def test_the_reference_is_taken_where_a_carry_is_lost() -> None:
    broken: Any = LosesACarry
    assert choose(broken, ctr) is ctr


def write_less_than_was_asked(_calls: int, _buffer: Any, written: int) -> int:
    return written - 16


@pytest.mark.parametrize(
    "spoil", [flip_the_last_byte_of_a_whole_chunk, go_wrong_after_a_broken_block, write_less_than_was_asked]
)
def test_the_reference_is_taken_where_the_faster_way_is_wrong(spoil: Callable[[int, Any, int], int]) -> None:
    def broken(key: bytes) -> Any:
        return Broken(gcm(key), spoil)

    assert choose(broken, ctr) is ctr


def test_the_reference_is_taken_where_the_faster_way_starts_elsewhere_or_is_not_there() -> None:
    def other_nonce(key: bytes) -> CipherContext:
        return Cipher(algorithms.AES256(key), modes.GCM(bytes(11) + b"\1")).encryptor()

    def refuses(_key: bytes) -> CipherContext:
        raise UnsupportedAlgorithm("no GCM in this library")

    assert choose(other_nonce, ctr) is ctr
    assert choose(refuses, ctr) is ctr


@both
def test_a_key_gives_no_more_than_gcm_can_count(start: Start) -> None:
    """The limit is on the stream and not on the library: in counter mode OpenSSL would go on."""
    stream = Keystream(KEY, start)
    stream._left = 40
    stream.into(bytearray(CHUNK_BYTES), 16)
    stream.words(6, "<u4")
    for ask in (lambda: stream.into(bytearray(CHUNK_BYTES), 4), lambda: stream.words(1, "<u4")):
        with pytest.raises(MisuseError, match="64 GiB"):
            ask()
    assert Keystream(KEY, start)._left == MAXIMUM_BYTES == 2**36 - 32


def test_a_chunk_is_never_written_in_part() -> None:
    """A stream that wrote less than was asked would leave the chunk before as a mask for the second time."""
    with pytest.raises(MisuseError, match="chunks"):
        Keystream(KEY).into(bytearray(2 * CHUNK_BYTES), CHUNK_BYTES + 4)


@settings(max_examples=20)
@given(
    st.sampled_from(["<u4", "<u8"]),
    st.sampled_from([0, 1, 3, 16384, 16385, 32767, 32768, 32769, 70001]),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_masks_in_chunks_are_masks_at_once(dtype: str, count: int, plus: int, minus: int) -> None:
    add, subtract = [bytes([index]) * 32 for index in range(plus)], [bytes([99 - index]) * 32 for index in range(minus)]
    target: NDArray[Any] = (np.arange(count) * 2654435761).astype(dtype)
    expected = target.copy()
    for key in add:
        expected += Keystream(key, ctr).words(count, dtype)
    for key in subtract:
        expected -= Keystream(key, ctr).words(count, dtype)
    masks.apply(target, add, subtract)
    np.testing.assert_array_equal(target, expected)
