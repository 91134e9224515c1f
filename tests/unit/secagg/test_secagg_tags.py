"""The tags on the sum: what they are, that they add up, and how strong they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from secagg_harness import Federation

from secagg import labels, masks, tags
from secagg.keys import derive
from secagg.masks import Keystream
from secagg.session import MAXIMUM_WORDS32, MAXIMUM_WORDS64, RING_BOUND, TAGS, WORD64_BOUND
from secagg.vector import decode_sum
from secagg.wire import MAXIMUM_SILOS, Step

SID = b"S" * 32
GROUP = b"G" * 32
NONE = np.zeros(0, dtype=np.int64)
P = 2**56 - 5
LARGEST64 = MAXIMUM_SILOS * WORD64_BOUND


def int64s(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def weights(group: bytes, session: bytes, lengths: tuple[int, int]) -> list[list[int]]:
    """The weight of every entry in each tag, in integers of unlimited size."""
    short = Keystream(derive(group, labels.TAG_WEIGHTS, session, b"\0")).words(1024 * 8, "<u2").tolist()
    found = []
    for tag in range(TAGS):
        stream = Keystream(derive(group, labels.TAG_WEIGHTS, session, bytes([1 + tag])))
        weight = []
        for length in lengths:
            for start in range(0, length, 1024):
                long = [word >> 8 for word in stream.words(8, "<u8").tolist()]
                for row in range(min(1024, length - start)):
                    signed = [word % 2**14 - 2**13 for word in short[8 * row : 8 * row + 8]]
                    weight.append(sum(a * r for a, r in zip(long, signed, strict=True)) % P)
        found.append(weight)
    return found


def tags_by_hand(group: bytes, silo: str, words32: list[int], words64: list[int]) -> list[int]:
    offsets = Keystream(derive(group, labels.TAG_OFFSET, SID, silo.encode())).words(TAGS, "<u8").tolist()
    each = weights(group, SID, (len(words32), len(words64)))
    return [
        (sum(w * q for w, q in zip(weight, words32 + words64, strict=True)) + (offset >> 8)) % P
        for weight, offset in zip(each, offsets, strict=True)
    ]


small = st.integers(-(RING_BOUND - 1), RING_BOUND - 1)
large = st.integers(-LARGEST64, LARGEST64)


@given(st.lists(small, max_size=20), st.lists(large, max_size=5))
@example([RING_BOUND - 1, 1 - RING_BOUND], [LARGEST64, -LARGEST64, -1])
def test_a_tag_is_the_linear_function_and_the_offset(words32: list[int], words64: list[int]) -> None:
    computed = tags.tags(GROUP, SID, int64s(words32), int64s(words64), ["a"])
    assert computed.dtype == np.uint64
    assert computed.tolist() == tags_by_hand(GROUP, "a", words32, words64)


def test_the_prime_is_a_prime_beyond_every_entry_and_below_what_a_sum_of_tags_holds() -> None:
    assert tags.TAG_PRIME == P
    assert all(pow(base, P - 1, P) == 1 for base in range(2, 50))
    assert P > 2 * LARGEST64
    assert P > RING_BOUND * 2 ** (tags.SHORT_BITS - 1) * tags.LENGTH


@given(
    st.lists(st.lists(st.integers(-(2**23), 2**23), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(0, 4)
)
def test_tags_add_up(vectors: list[list[int]], cut: int) -> None:
    silos = [f"s{index}" for index in range(len(vectors))]
    total = np.zeros(TAGS, dtype=np.uint64)
    for silo, vector in zip(silos, vectors, strict=True):
        total = (total + tags.tags(GROUP, SID, int64s(vector[:cut]), int64s(vector[cut:]), [silo])) % np.uint64(P)
    summed = np.sum(np.array(vectors, dtype=np.int64), axis=0)
    np.testing.assert_array_equal(tags.tags(GROUP, SID, summed[:cut], summed[cut:], silos), total)
    assert (tags.tags(GROUP, SID, summed[:cut], summed[cut:], silos[1:]) != total).all()


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**20))
def test_published_tags_tell_nothing_that_the_sum_does_not(seed: int, shift: int) -> None:
    """Summed as integers, tags would carry how often they wrapped modulo p, which single vectors decide: who knows G
    could tell vectors apart that have the same sum. So what is published must follow from sum, survivors and G alone.
    """
    federation = Federation(size=3, threshold=3)
    n, m = federation.words32, federation.words64
    drawn = np.random.default_rng(seed)
    first = {name: (drawn.integers(-999, 999, n), drawn.integers(-999, 999, m)) for name in federation.names}
    second = {name: (small.copy(), large.copy()) for name, (small, large) in first.items()}
    second["silo-0"][0][0] += shift % 1000
    second["silo-1"][0][0] -= shift % 1000
    opened = []
    for vectors in (first, second):
        session = federation.start().run(Step.SHARES)
        groups = {}
        for name in federation.names:
            ready = session.clients[name].receive(session.server.outgoing[name])
            groups[name] = (ready._data.group, ready.session)  # type: ignore[union-attr]
            session.clients[name], frame = ready.mask(*vectors[name])
            session.server.receive(frame)
        session.server = session.server.close()
        session.advance(Step.CONSISTENCY)
        session.advance(Step.UNMASK)
        small, large, published = decode_sum(session.published.frame.attachment, n, m)
        (known,) = set(groups.values())
        np.testing.assert_array_equal(published, tags.tags(*known, small, large, federation.names))
        assert (published < P).all()
        opened.append((small.tolist(), large.tolist()))
    assert opened[0] == opened[1]


def test_masks_of_tags_are_residues_that_use_their_words_once() -> None:
    """Tag masks come first in the stream of the 64-bit segment and share no word with its entries."""
    words, marks = np.zeros(3, dtype="<u8"), np.zeros(TAGS, dtype="<u8")
    masks.apply(words, [b"k" * 32], [], marks)
    stream = Keystream(b"k" * 32).words(2 * TAGS + 3, "<u8").tolist()
    assert marks.tolist() == [(stream[2 * i] + (stream[2 * i + 1] << 64)) % P for i in range(TAGS)]
    assert words.tolist() == stream[2 * TAGS :]
    masks.apply(words, [], [b"k" * 32], marks)
    assert words.tolist() == [0, 0, 0]
    assert marks.tolist() == [0] * TAGS


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 35 * 1024 + 7])
def test_a_tag_does_not_depend_on_blocks_or_type(count: int) -> None:
    vector = (np.arange(count, dtype=np.int64) * 7919) % 2**20 - 2**19
    expected = tags.tags(GROUP, SID, vector, vector, ["a"])
    np.testing.assert_array_equal(tags.tags(GROUP, SID, vector.astype("<i4"), vector, ["a"]), expected)
    assert expected.tolist() == tags_by_hand(GROUP, "a", vector.tolist(), vector.tolist())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_are_exact(sign: int) -> None:
    """Every entry at its bound against weights of any size: no product of float64 may have rounded."""
    count = 1024 + 3
    words32, words64 = [sign * (RING_BOUND - 1)] * count, [sign * LARGEST64] * count
    computed = tags.tags(GROUP, SID, np.array(words32, dtype="<i4"), int64s(words64), ["a"])
    assert computed.tolist() == tags_by_hand(GROUP, "a", words32, words64)
    least = -(2 ** (tags.SHORT_BITS - 1))
    full = np.full((tags.LENGTH, tags.COLUMNS), least, dtype=np.float64)
    values = np.full(tags.LENGTH, sign * (RING_BOUND - 1), dtype="<i4")
    exact = sign * (RING_BOUND - 1) * least * tags.LENGTH
    assert abs(exact) < 2**53
    assert tags._inner(values, full).tolist() == [exact] * tags.COLUMNS
    assert tags._inner(values[:-1], full).tolist() == [exact // tags.LENGTH * (tags.LENGTH - 1)] * tags.COLUMNS


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("extreme", [None, -(2**53), 2**53 - 1, 1 - 2**53])
def test_the_second_level_is_exact(count: int, extreme: int | None) -> None:
    drawn = np.random.default_rng(count)
    weights = [drawn.integers(0, 2**56, count, dtype=np.uint64) for _ in range(TAGS)]
    values = drawn.integers(-(2**53), 2**53, count, endpoint=True).astype(np.float64)
    if extreme is not None:
        weights, values = [np.full(count, 2**56 - 1, dtype=np.uint64)] * TAGS, np.full(count, float(extreme))
    integers = [int(value) for value in values]
    exact = [sum(w * v for w, v in zip(row.tolist(), integers, strict=True)) for row in weights]
    assert tags._dots(weights, values) == exact


def test_zero_and_multiples_do_not_verify_without_knowing_g() -> None:
    """What the offset is for: without it tag(0) = 0 and tag(2q) = 2 tag(q)."""
    vector = np.arange(5, dtype=np.int64)
    one = [int(tag) for tag in tags.tags(GROUP, SID, vector, vector, ["a"])]
    for factor in (0, -1, 2, 3, 2**20):
        scaled = tags.tags(GROUP, SID, vector * factor, vector * factor, ["a"]).tolist()
        assert all(tag != factor * before % P for tag, before in zip(scaled, one, strict=True))


def test_weights_and_offsets_are_all_different() -> None:
    """Two tags with the same weights would be as strong as one; an offset of two silos would cancel."""
    unit = int64s([1])
    own = [*tags.products(GROUP, SID, unit, NONE), *tags.products(GROUP, SID, NONE, int64s([0, 1]))]
    offsets = [*tags.offsets(GROUP, SID, ["a"]), *tags.offsets(GROUP, SID, ["b"])]
    others = [*tags.products(b"H" * 32, SID, NONE, unit), *tags.products(GROUP, b"T" * 32, NONE, unit)]
    assert len({*own, *offsets, *others}) == 2 + 2 + 4 + 4


def unchanged(words32: list[int], words64: list[int], trials: int) -> int:
    """Over how many G a change of the sum leaves a tag as it was."""
    return sum(0 in tags.products(trial.to_bytes(32), SID, int64s(words32), int64s(words64)) for trial in range(trials))


@pytest.mark.parametrize(
    ("words32", "words64"),
    [
        ([2**29], []),
        ([2**30 - 1, 1 - 2**30], []),
        ([-(2**30), 0, 2**29], []),
        ([], [2**47]),
        ([], [2**47, -(2**47), 2**46]),
        ([2**29], [2**46]),
        ([5, 10, 15, 20], [25]),
    ],
)
def test_no_change_is_a_weak_one(words32: list[int], words64: list[int]) -> None:
    """Powers of two were the weak changes of tags in Z_2^64; modulo a prime there are none."""
    assert unchanged(words32, words64, 500) == 0


def test_a_column_of_the_short_weights_vanishes_as_rarely_as_claimed() -> None:
    """A difference of two entries cancels in a column where two weights agree: 2^-14. All eight must at once."""
    keys, rows = 40, 1024
    pairs = keys * rows // 2 * tags.COLUMNS
    hits = 0
    for key in range(keys):
        short = tags._short_weights(key.to_bytes(32), rows)
        hits += int(np.sum(short[0::2] == short[1::2]))
        assert (tags._inner(int64s([0] * 6 + [1, -1]), short[:8]) == short[6] - short[7]).all()
    expected = pairs / 2**tags.SHORT_BITS
    # Ten are expected; weights of 13 bits would give twenty, of 11 bits eighty.
    assert abs(hits - expected) < 3 * expected**0.5, (hits, expected)
    assert tags.SHORT_BITS * tags.COLUMNS == 112


def test_the_long_weights_use_all_their_bits() -> None:
    drawn = tags._long_weights(Keystream(b"k" * 32), 4096)
    ones = [int(np.sum((drawn >> np.uint64(bit)) & np.uint64(1))) for bit in range(64)]
    assert all(abs(count - 2048) < 5 * 32 for count in ones[:56])
    assert ones[56:] == [0] * 8


def test_weights_of_the_longest_vector_fit_one_keystream() -> None:
    blocks = -(-MAXIMUM_WORDS32 // tags.LENGTH) + -(-MAXIMUM_WORDS64 // tags.LENGTH)
    assert 8 * blocks * tags.COLUMNS < (2**32 - 2) * 16


def test_the_group_secret_depends_on_everything() -> None:
    values: set[Any] = {
        tags.group_secret(sid, transcript, secrets)
        for sid in (b"1" * 32, b"2" * 32)
        for transcript in (b"3" * 32, b"4" * 32)
        for secrets in ([b"a" * 32, b"b" * 32], [b"b" * 32, b"a" * 32], [b"a" * 32])
    }
    assert len(values) == 12
