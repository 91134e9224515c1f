"""Properties of every decoder, of secret sharing, of the quantiser in the ring, and of tags in a whole session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from secagg_harness import STEPS, Federation, stream
from secagg_honest_session import frames, mutated, whole

from secagg import keys
from secagg.bodies import Abort, Consistency, Keys, Masked, Publish, Shares, Unmask
from secagg.errors import MisuseError, ProtocolViolation, UnsoundError, WireError
from secagg.exhibits import Loose, decode_exhibit, encode_exhibit
from secagg.hashing import blob_hash
from secagg.quantise import quantise, value_bound
from secagg.session import TAG_PRIME, TAGS, Announcement
from secagg.shamir import PRIME, combine, lagrange_at_zero, parse, split
from secagg.states import Life
from secagg.vector import Segments, decode_sum
from secagg.wire import Frame, Step

DECODERS: dict[Step, Callable[[bytes], Any]] = {
    Step.ANNOUNCE: Announcement.decode,
    Step.KEYS: Keys.decode,
    Step.SHARES: Shares.decode,
    Step.MASKED: Masked.decode,
    Step.CONSISTENCY: Consistency.decode,
    Step.UNMASK: Unmask.decode,
    Step.PUBLISH: Publish.decode,
    Step.ABORT: Abort.decode,
}


@settings(max_examples=400)
@given(st.data(), st.sampled_from(list(Step)))
def test_a_decoder_reads_one_encoding_or_raises_its_own_error(data: st.DataObject, step: Step) -> None:
    valid = data.draw(st.sampled_from([frame.body for frame in frames()]))
    body = data.draw(st.one_of(st.just(valid), mutated(valid)))
    try:
        value = DECODERS[step](body)
    except (WireError, UnsoundError):
        return
    assert value.encode() == body


@given(st.integers(-1, 9), st.text(max_size=40), st.binary(max_size=80), st.binary(min_size=60, max_size=66))
def test_a_frame_is_within_its_limits_or_raises(step: int, sender: str, body: bytes, signature: bytes) -> None:
    try:
        frame = Frame(step, sender, body, signature)
    except WireError:
        return
    assert frame.step in list(Step)
    assert len(frame.signature) == 64
    assert decode_exhibit(encode_exhibit(Loose((frame,)))) == Loose((frame,))


# Shamir

secrets = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32]))


@given(secrets, st.integers(2, 5), st.integers(0, 3))
def test_every_set_of_t_or_more_shares_gives_the_secret(secret: bytes, threshold: int, extra: int) -> None:
    shares = split(secret, threshold, threshold + extra, stream("every", secret))
    for size in range(threshold, len(shares) + 1):
        for chosen in combinations(range(len(shares)), size):
            weights = lagrange_at_zero([index + 1 for index in chosen])
            assert combine(weights, [shares[index] for index in chosen]) == secret


@given(secrets, st.integers(3, 6))
def test_fewer_than_t_shares_never_give_the_secret(secret: bytes, threshold: int) -> None:
    shares = split(secret, threshold, threshold, stream("fewer", secret))
    for size in range(1, threshold):
        for chosen in combinations(range(threshold), size):
            weights = lagrange_at_zero([index + 1 for index in chosen])
            try:
                assert combine(weights, [shares[index] for index in chosen]) != secret
            except WireError:
                continue


@given(secrets, st.integers(2, 6), st.integers(0, 5), st.integers(1, PRIME - 1))
@example(bytes(32), 3, 0, 1 << 520)
def test_shares_that_do_not_belong_together_are_refused(secret: bytes, threshold: int, which: int, shift: int) -> None:
    """A wrong share moves the result uniformly over the field, and only 2^256 of its 2^521 elements are secrets."""
    shares = list(split(secret, threshold, threshold, stream("wrong", secret)))
    which %= threshold
    weights = lagrange_at_zero(range(1, threshold + 1))
    moved = (int.from_bytes(secret) + weights[which] * shift) % PRIME
    shares[which] = ((parse(shares[which]) + shift) % PRIME).to_bytes(66)
    if moved < 1 << 256:
        assert combine(weights, shares) == moved.to_bytes(32) != secret
        return
    with pytest.raises(WireError, match="belong together"):
        combine(weights, shares)


@given(st.lists(st.integers(-3, 8), min_size=1, max_size=6))
def test_points_are_positive_and_distinct_or_refused(points: list[int]) -> None:
    if len(set(points)) == len(points) and min(points) > 0:
        weights = lagrange_at_zero(points)
        # Interpolation of the constant 1: the weights add up to 1.
        assert sum(weights) % PRIME == 1
        return
    with pytest.raises(MisuseError):
        lagrange_at_zero(points)


# Quantiser and ring


@given(
    st.lists(st.lists(st.floats(-100, 100), min_size=3, max_size=3), min_size=3, max_size=8),
    st.floats(2**-8, 8),
    st.integers(0, 20),
)
def test_a_sum_in_the_ring_is_the_sum_of_the_reals(vectors: list[list[float]], clip: float, bits: int) -> None:
    """Never wrapped, and off by at most half a unit for each silo."""
    bound = value_bound(clip, bits)
    assert len(vectors) * (bound + 1) < 1 << 30
    total = Segments(3, 0)
    exact = np.zeros(3)
    for vector in vectors:
        q = quantise(np.array(vector), clip, bits)
        single = Segments(3, 0)
        np.copyto(single.words32, q, casting="unsafe")
        total.add(single.take())
        exact += np.clip(vector, -clip, clip) * 2.0**bits
    words, _, _ = decode_sum(total.take(), 3, 0)
    assert np.abs(words - exact).max() <= 0.5 * len(vectors) + 1e-6
    assert np.abs(words).max() <= len(vectors) * bound


# Tags, in a session


def fresh(state: Any) -> Any:
    """The same state in a session that still lives."""
    return type(state)(replace(state._context, life=Life()), state._data)


def republished(frame: Frame, data: bytes) -> Frame:
    """The coordinator signs whatever it likes, consistently."""
    body = replace(Publish.decode(frame.body), sum=blob_hash(data))
    return keys.sign(Step.PUBLISH, "", body.encode(), whole().federation.round_key, data)


def change_of(kind: str, data: bytes, draw: Callable[[Any], Any]) -> bytes:
    """A change that a coordinator could make to the published bytes without knowing G."""
    session = whole()
    count, large = session.announcement.words32, session.announcement.words64
    segments = Segments(count, large)
    segments.add(data)
    words32, words64, tag = segments.words32, segments.words64, segments.tags
    if kind == "one entry":
        at = draw(st.integers(0, count - 1))
        words32[at : at + 1] += np.uint32(draw(st.integers(1, 100)))
    elif kind == "many entries":
        values = draw(st.lists(st.integers(-50, 50), min_size=count, max_size=count).filter(any))
        words32 += np.array(values, dtype=np.int64).astype(np.uint32)
    elif kind == "a 64-bit entry":
        at = draw(st.integers(0, large - 1))
        words64[at : at + 1] += np.uint64(draw(st.integers(1, 1 << 30)))
    elif kind == "multiple":
        factor = draw(st.integers(2, 9))
        words32 *= np.uint32(factor)
        words64 *= np.uint64(factor)
        tag[:] = [int(value) * factor % TAG_PRIME for value in tag]
    elif kind == "negated":
        np.negative(words32, out=words32)
        np.negative(words64, out=words64)
        tag[:] = [-int(value) % TAG_PRIME for value in tag]
    elif kind == "zero":
        words32[:] = 0
        words64[:] = 0
        if draw(st.booleans()):
            tag[:] = 0
    elif kind == "another survivor":
        name = draw(st.sampled_from(session.federation.names))
        sign = draw(st.sampled_from([1, -1]))
        a, b = session.federation.words(name)
        words32 += (sign * a).astype(np.uint32)
        words64 += (sign * b).astype(np.uint64)
    elif kind == "one tag":
        at = draw(st.integers(0, TAGS - 1))
        tag[at : at + 1] += np.uint64(draw(st.one_of(st.integers(1, (1 << 64) - 1), st.just(TAG_PRIME))))
    elif kind == "tags of each other":
        order = draw(st.permutations(range(TAGS)).filter(lambda p: list(p) != list(range(TAGS))))
        tag[:] = tag[list(order)]
    del words32, words64, tag
    return segments.take()


KINDS = ["one entry", "many entries", "a 64-bit entry", "multiple", "negated", "zero", "another survivor", "one tag",
         "tags of each other"]  # fmt: skip


@settings(max_examples=200)
@given(st.data(), st.sampled_from(KINDS))
def test_no_change_of_a_published_sum_is_accepted(data: st.DataObject, kind: str) -> None:
    session = whole()
    frame = session.published.frame
    changed = change_of(kind, frame.attachment, data.draw)
    assert changed != frame.attachment
    with pytest.raises(ProtocolViolation, match=r"tags|range"):
        fresh(session.clients["silo-0"]).receive(republished(frame, changed))


def test_the_honest_sum_beside_them_is_accepted() -> None:
    session = whole()
    frame = session.published.frame
    for name in session.sent[Step.UNMASK]:
        verified = fresh(session.clients[name]).receive(republished(frame, frame.attachment))
        np.testing.assert_array_equal(verified.words32, session.federation.total(verified.survivors)[0])


@settings(max_examples=25)
@given(st.integers(3, 6), st.data())
def test_whoever_drops_out_wherever_the_sum_is_exactly_that_of_the_survivors(size: int, data: st.DataObject) -> None:
    threshold = (size + 3) // 2
    federation = Federation(size=size, threshold=threshold)
    lost: dict[Step, set[str]] = {}
    left = size - max(threshold, 3)
    for step in STEPS:
        gone = data.draw(st.sets(st.sampled_from(federation.names), max_size=left))
        new = gone - {name for names in lost.values() for name in names}
        lost[step] = new
        left -= len(new)
    session = federation.start().run(lost=lost)
    survivors = tuple(n for n in federation.names if all(n not in lost[step] for step in STEPS[:3]))
    assert session.published.survivors == survivors
    np.testing.assert_array_equal(session.published.words32, federation.total(survivors)[0])
    np.testing.assert_array_equal(session.published.words64, federation.total(survivors)[1])
