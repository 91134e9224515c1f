"""The mask streams and how they are added."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secagg import masks
from secagg.masks import Keystream


@given(st.binary(min_size=32, max_size=32), st.integers(0, 100))
def test_a_stream_is_aes_of_the_counter_from_2(key: bytes, words: int) -> None:
    blocks = b"".join((2 + index).to_bytes(16) for index in range(words // 4 + 1))
    ecb = Cipher(algorithms.AES256(key), modes.ECB())  # noqa: S305  the bare block function, as a reference
    expected = ecb.encryptor().update(blocks)[: 4 * words]
    assert Keystream(key).words(words, "<u4").tobytes() == expected


def test_a_stream_is_what_gcm_with_a_zero_nonce_uses() -> None:
    gcm = Cipher(algorithms.AES256(b"k" * 32), modes.GCM(bytes(12))).encryptor()
    assert gcm.update(bytes(4000)) == Keystream(b"k" * 32).words(1000, "<u4").tobytes()


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
        expected += Keystream(key).words(count, dtype)
    for key in subtract:
        expected -= Keystream(key).words(count, dtype)
    masks.apply(target, add, subtract)
    np.testing.assert_array_equal(target, expected)
