"""What a vector of a million entries costs a silo in memory, beyond the vector itself and what it gets or gives."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest
from secagg_harness import Federation

from secagg.vector import Segments, decode_sum
from secagg.wire import Step

T = TypeVar("T")
COUNT = 1_000_000
MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    """numpy and bytes objects report what they allocate; ciphers hold a kilobyte a stream and do not."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def peak(call: Callable[[], T]) -> tuple[T, int]:
    """What a call returns, and the most bytes that it held at once, its result included."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    result = call()
    return result, tracemalloc.get_traced_memory()[1] - before


@pytest.mark.parametrize(("size", "dtype"), [(4, np.int64), (4, np.int32), (12, np.int64)])
def test_a_silo_works_in_less_than_a_mebibyte_whatever_the_cohort(
    size: int, dtype: type[np.signedinteger[Any]]
) -> None:
    federation = Federation(size=size, threshold=size - 1, words32=COUNT, words64=2)
    session = federation.start().run(Step.SHARES)
    words32, words64 = federation.words("silo-0")
    words32 = words32.astype(dtype)
    ready = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    (session.clients["silo-0"], frame), used = peak(lambda: ready.mask(words32, words64))
    assert used - len(frame.attachment) < MEBIBYTE
    session.sent[Step.MASKED]["silo-0"] = frame
    session.server.receive(frame)
    for name in federation.names[1:]:
        session.server.receive(session.respond(Step.MASKED, name))
    session.server = session.server.close()
    session.advance(Step.CONSISTENCY)
    session.advance(Step.UNMASK)

    waiting, publish = session.clients["silo-0"], session.published.frame
    verified, used = peak(lambda: waiting.receive(publish))
    assert used < MEBIBYTE, "the sum is verified where it lies"
    np.testing.assert_array_equal(verified.words32, federation.total(federation.names)[0])

    lifted, used = peak(lambda: decode_sum(publish.attachment, COUNT, 2))
    assert used - sum(part.nbytes for part in lifted) < MEBIBYTE // 16


def test_what_was_computed_in_is_what_is_sent() -> None:
    def compute() -> bytes:
        segments = Segments(COUNT, 0)
        segments.words32[:] = 7
        return segments.take()

    data, used = peak(compute)
    assert data[: 4 * COUNT] == b"\7\0\0\0" * COUNT
    assert used - len(data) < MEBIBYTE // 16


@pytest.mark.parametrize("kind", ["<i4", "<i8"])
def test_a_vector_is_copied_once_from_integers_of_either_width(kind: str) -> None:
    values = np.arange(-COUNT, COUNT, 2, dtype=kind)[::-1]
    large = np.array([-1, 1 << 40])

    def copy() -> bytes:
        return Segments.of(values, large).take()

    data, used = peak(copy)
    assert data == values.astype("<i4").tobytes() + large.tobytes() + bytes(16)
    assert used - len(data) < 4 * COUNT + MEBIBYTE // 16


def test_what_was_sent_never_changes_although_somebody_kept_a_view() -> None:
    segments = Segments(1000, 1)
    kept = segments.words32
    data = segments.take()
    kept[:] = 1
    assert data == bytes(len(data))
    with pytest.raises(AttributeError):
        segments.words32[:] = 1
