"""The tags on the sum: what they are, that they add up, and how strong they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secagg import labels, tags
from secagg.keys import derive
from secagg.masks import Keystream
from secagg.session import MAXIMUM_WORDS32, RING_BOUND, TAGS, WORD64_BOUND
from secagg.wire import MAXIMUM_SILOS

SID = b"S" * 32
GROUP = b"G" * 32
NONE = np.zeros(0, dtype=np.int64)
BOTH, ALONE = (0, 1), (2, 3)


def int64s(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def tag_by_hand(group: bytes, silo: str, words32: list[int], words64: list[int]) -> list[int]:
    result = []
    for index in range(4):
        vector = words32 + words64 if index in BOTH else words64
        weights = Keystream(derive(group, labels.TAG_WEIGHTS, SID, bytes([index]))).words(len(vector), "<u8")
        offset = Keystream(derive(group, labels.TAG_OFFSET, SID, silo.encode())).words(4, "<u8")[index]
        result.append((sum(int(r) * q for r, q in zip(weights, vector, strict=True)) + int(offset)) % 2**64)
    return result


small = st.integers(-(2**29), 2**29)
large = st.integers(-(2**40), 2**40)


@given(st.lists(small, max_size=20), st.lists(large, max_size=5))
def test_a_tag_is_the_inner_product_and_the_offset(words32: list[int], words64: list[int]) -> None:
    computed = tags.tags(GROUP, SID, int64s(words32), int64s(words64), ["a"])
    assert computed.dtype == np.uint64
    assert computed.tolist() == tag_by_hand(GROUP, "a", words32, words64)


@given(st.lists(st.lists(small, min_size=4, max_size=4), min_size=1, max_size=5), st.integers(0, 4))
def test_tags_add_up(vectors: list[list[int]], cut: int) -> None:
    silos = [f"s{index}" for index in range(len(vectors))]
    total = np.zeros(TAGS, dtype=np.uint64)
    for silo, vector in zip(silos, vectors, strict=True):
        total += tags.tags(GROUP, SID, int64s(vector[:cut]), int64s(vector[cut:]), [silo])
    summed = np.sum(np.array(vectors, dtype=np.int64), axis=0)
    np.testing.assert_array_equal(tags.tags(GROUP, SID, summed[:cut], summed[cut:], silos), total)
    assert (tags.tags(GROUP, SID, summed[:cut], summed[cut:], silos[1:]) != total).all()


@pytest.mark.parametrize("count", [1, 8191, 8192, 8193, 2 * 8192 + 7])
def test_a_tag_does_not_depend_on_chunks_or_type(count: int) -> None:
    vector = (np.arange(count, dtype=np.int64) * 7919) % 2**20 - 2**19
    expected = tags.tags(GROUP, SID, vector, vector, ["a"])
    np.testing.assert_array_equal(tags.tags(GROUP, SID, vector.astype("<i4"), vector, ["a"]), expected)
    assert expected.tolist() == tag_by_hand(GROUP, "a", vector.tolist(), vector.tolist())


def test_zero_and_multiples_do_not_verify_without_knowing_g() -> None:
    """What the offset is for: without it tag(0) = 0 and tag(2q) = 2 tag(q)."""
    vector = np.arange(5, dtype=np.int64)
    one = tags.tags(GROUP, SID, vector, vector, ["a"])
    for factor in (0, -1, 2, 3, 2**20):
        scaled = tags.tags(GROUP, SID, vector * factor, vector * factor, ["a"])
        assert (scaled != one * np.array(factor).astype(np.uint64)).all()


def test_weights_and_offsets_are_all_different() -> None:
    """Two tags with the same weights would be as strong as one; an offset of two silos would cancel."""
    unit = int64s([1])
    weights = [*tags.products(GROUP, SID, unit, NONE)[list(BOTH)], *tags.products(GROUP, SID, NONE, unit)]
    offsets = [*tags.offsets(GROUP, SID, ["a"]), *tags.offsets(GROUP, SID, ["b"])]
    others = [*tags.products(b"H" * 32, SID, NONE, unit), *tags.products(GROUP, b"T" * 32, NONE, unit)]
    # The first word of a stream of tags 0 and 1 weighs the first entry, of whichever segment that is.
    assert len(set(weights)) == 4
    assert len({*weights, *offsets, *others}) == 4 + 8 + 8


def test_words64_alone_has_two_tags_of_its_own() -> None:
    before, after = int64s([5, 6]), int64s([5, 7])
    base = tags.tags(GROUP, SID, before, before, ["a"])
    changed32 = tags.tags(GROUP, SID, after, before, ["a"])
    changed64 = tags.tags(GROUP, SID, before, after, ["a"])
    assert (changed32 != base).tolist() == [True, True, False, False]
    assert (changed64 != base).all()


def passing(words32: list[int], words64: list[int], trials: int) -> tuple[list[int], int]:
    """How often a change of the sum leaves each tag as it was, and how often all of them, over many G."""
    each, together = np.zeros(TAGS, dtype=np.int64), 0
    for trial in range(trials):
        unchanged = tags.products(trial.to_bytes(32), SID, int64s(words32), int64s(words64)) == 0
        each += unchanged
        together += bool(unchanged.all())
    return each.tolist(), together


@pytest.mark.parametrize("change", [[2**62], [2**62, 0, 2**63 - 2**62], [0, -(2**62), 2**62, -(2**63)]])
def test_a_tag_is_as_strong_as_the_least_power_of_two_in_the_change(change: list[int]) -> None:
    """2^(v-64) a tag, here 1/4, and four tags are independent: 2^-8. Spreading a change gains a forger nothing.

    No range check is in the way here, so that events which must be rare in the protocol can be counted.
    """
    trials = 8192
    each, together = passing([], change, trials)
    assert all(abs(count - trials / 4) < 200 for count in each)
    assert abs(together - trials / 256) < 28


def test_a_change_of_both_segments_is_as_rare_as_its_odder_part() -> None:
    """Tags 0 and 1 see 2^61 (1/8), tags 2 and 3 only 2^62 (1/4)."""
    trials = 8192
    each, together = passing([2**61], [2**62], trials)
    assert all(abs(count - trials / 8) < 160 for count in each[:2])
    assert all(abs(count - trials / 4) < 200 for count in each[2:])
    assert together < 30


def test_the_claimed_strength_follows_from_the_range_checks() -> None:
    """docs/secagg.md claims 2^-68 at worst: v is bounded by how far a sum within its range can be moved."""
    furthest32 = 2 * (RING_BOUND - 1)
    furthest64 = 2 * MAXIMUM_SILOS * WORD64_BOUND
    v32, v64 = furthest32.bit_length() - 1, furthest64.bit_length() - 1
    assert (v32, v64) == (30, 47)
    assert len(BOTH) * (v32 - 64) == TAGS * (v64 - 64) == -68
    assert len(BOTH) * (v32 - 64) + len(ALONE) * (v64 - 64) < -68


def test_weights_of_the_longest_vector_fit_one_keystream() -> None:
    assert 8 * MAXIMUM_WORDS32 < (2**32 - 2) * 16


def test_the_group_secret_depends_on_everything() -> None:
    values: set[Any] = {
        tags.group_secret(sid, transcript, secrets)
        for sid in (b"1" * 32, b"2" * 32)
        for transcript in (b"3" * 32, b"4" * 32)
        for secrets in ([b"a" * 32, b"b" * 32], [b"b" * 32, b"a" * 32], [b"a" * 32])
    }
    assert len(values) == 12
