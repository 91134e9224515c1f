"""One mask against its physical limit: AES-256 keystream over the same bytes, and one addition over the same bytes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from os import urandom
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from numpy.typing import NDArray

from secagg.masks import apply

_CHUNKS: Final = tuple(size << 10 for size in (32, 64, 128, 256, 512))
_SAMPLES: Final = 25
# What a sample lasts at least, in words, so that the clock's own cost does not show.
_WORDS_A_SAMPLE: Final = 1_000_000


def limit(target: NDArray[np.uint32], key: bytes, mode: CTR | GCM, chunk: int) -> Callable[[], None]:
    """Add the key's stream to `target` in chunks of `chunk` bytes: the least that any implementation has to do.

    All buffers and views are made before, and nothing is checked.
    """
    words = len(target)
    zeros, buffer = bytes(chunk), bytearray(chunk)
    stream = np.frombuffer(buffer, dtype="<u4")
    pieces = [
        (target[start : start + len(stream)], stream[: min(len(stream), words - start)])
        for start in range(0, words, len(stream))
    ]
    views = [(memoryview(zeros)[: part.nbytes], memoryview(buffer)[: part.nbytes]) for part, _ in pieces]

    def run() -> None:
        cipher = Cipher(AES256(key), mode).encryptor()
        for (source, output), (part, masks) in zip(views, pieces, strict=True):
            cipher.update_into(source, output)
            np.add(part, masks, out=part)

    return run


def _seconds(work: Callable[[], None], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times


def mask_and_limit(words: int) -> tuple[float, float]:
    """Median CPU seconds of one mask of `words` u32, and of the fastest way to do its keystream and addition alone.

    All are sampled in turn, so that other load hits them alike. The limit is the best of AES-256 in counter mode and
    in GCM, whose keystream is the same, over chunks of several sizes.
    """
    target, key = np.zeros(words, dtype="<u4"), urandom(32)
    limits = [limit(target, key, mode, chunk) for mode in (CTR(bytes(16)), GCM(bytes(12))) for chunk in _CHUNKS]
    works: list[Callable[[], None]] = [lambda: apply(target, [key], []), *limits]
    times = max(1, _WORDS_A_SAMPLE // words)
    samples: list[list[float]] = [[] for _ in works]
    for number in range(_SAMPLES + 1):
        for work, sample in zip(works, samples, strict=True):
            seconds = _seconds(work, times)
            if number > 0:
                sample.append(seconds)
    ours, *others = (statistics.median(sample) for sample in samples)
    return ours, min(others)
