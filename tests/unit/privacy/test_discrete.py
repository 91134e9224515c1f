from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.discrete import (
    DISTANCE,
    LARGEST_SCALE,
    Digits,
    DiscreteGaussianSource,
    _digit_variance,
    _largest_base,
    _table,
    digits_of,
    masses,
)

WHOLE = 1 << 128


def fixed(seed: bytes) -> Callable[[int], bytes]:
    calls = 0

    def entropy(count: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_256(seed + calls.to_bytes(8)).digest(count)

    return entropy


def exact(variance: Fraction, reach: int) -> dict[int, Fraction]:
    """N_Z(0, variance) on -reach..reach to 90 digits, by other means than the sampler's."""
    with localcontext() as context:
        context.prec = 90
        half = Decimal(variance.denominator) / Decimal(2 * variance.numerator)
        side = [(-half * x * x).exp() for x in range(reach + 1)]
        total = side[0] + 2 * sum(side[1:])
        return {x: Fraction(side[abs(x)] / total) for x in range(-reach, reach + 1)}


def distance(law: dict[int, int], variance: Fraction) -> float:
    """Total variation distance of a law in masses of 2**-128 to the exact one."""
    reach = max(max(law), math.isqrt(int(variance) * 400) + 1)
    right = exact(variance, reach)
    whole = sum(law.values())
    return float(sum(abs(Fraction(law.get(x, 0), whole) - p) for x, p in right.items()) / 2)


def law_of(digits: Digits) -> dict[int, int]:
    """What look_up gives for a uniform word: the mass of every value in 2**-128."""
    table = digits.table
    law: Counter[int] = Counter()
    full = 1 << 117
    for value, high, low, alias in zip(
        table.values.tolist(), table.threshold.tolist(), table.remainder.tolist(), table.alias.tolist(), strict=True
    ):
        own = (high << 64) + low
        assert 0 <= own <= full
        law[value] += own
        law[alias] += full - own
    return {value: mass for value, mass in law.items() if mass}


@pytest.mark.parametrize("scale", [1, 2, 3, 17, 81])
def test_a_table_holds_the_exact_law(scale: int) -> None:
    digits = digits_of(scale)
    law = law_of(digits)
    assert digits.length == 1
    assert sum(law.values()) == WHOLE
    assert distance(law, Fraction(scale**2)) < 2.0**-110


@pytest.mark.parametrize(("scale", "length"), [(82, 2), (130, 3), (200, 3)])
def test_joined_digits_have_the_exact_law_up_to_the_stated_distance(scale: int, length: int) -> None:
    base, variance = _largest_base(scale, length)
    table = _table(variance)
    digit = law_of(Digits(base, length, table))
    law = digit
    for _ in range(length - 1):
        joined: Counter[int] = Counter()
        for y, mass in law.items():
            for d, other in digit.items():
                joined[base * y + d] += mass * other
        law = joined
    assert distance(law, Fraction(scale**2)) < 2.0**-107 < DISTANCE


def test_a_base_that_is_too_large_would_be_seen() -> None:
    # What the joins' condition is for: with s**2 = 1 + a**2 instead of 4 (1 + a**2) the law is off by more.
    base, scale = 8, 65
    variance = _digit_variance(scale, base, 2)
    assert variance < 2 * (1 + base**2)
    side = len(masses(variance)) // 2
    digit = {value - side: mass for value, mass in enumerate(masses(variance))}
    joined: Counter[int] = Counter()
    for y, mass in digit.items():
        for d, other in digit.items():
            joined[base * y + d] += mass * other
    assert distance(joined, Fraction(scale**2)) > DISTANCE


@given(st.integers(82, LARGEST_SCALE))
def test_every_scale_keeps_the_conditions_of_the_proof(scale: int) -> None:
    length, base, variance = 1, 1, Fraction(scale**2)
    while 2 * math.isqrt(int(156 * variance)) + 1 > 2048:
        length += 1
        base, variance = _largest_base(scale, length)
    last = math.isqrt(int(156 * variance))
    assert length <= 8
    assert variance >= 4 * (1 + base**2)
    assert variance * sum(base ** (2 * place) for place in range(length)) == scale**2
    assert Fraction((last + 1) ** 2) > 156 * variance
    # The largest sample fits int64 by far.
    assert last * sum(base**place for place in range(length)) <= 16 * (scale + 1) < 1 << 62


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """Standard normal, nearly, if the law is right (Wilson and Hilferty)."""
    freedom = len(expected) - 1
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


@pytest.mark.parametrize("scale", [1, 2, 7, 81, 82, 200])
def test_samples_pass_a_chi_square_test(scale: int) -> None:
    count = 400_000
    sample = DiscreteGaussianSource(fixed(b"chi square")).sample(count, scale)
    law = exact(Fraction(scale**2), 20 * scale)
    reach = max(x for x, p in law.items() if float(p) * count >= 20)
    inner = np.array([float(law[x]) * count for x in range(-reach, reach + 1)])
    observed = np.bincount(np.clip(sample, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    tail = (count - inner.sum()) / 2
    assert abs(chi_square(observed, np.array([tail, *inner, tail]))) < 4


@pytest.mark.parametrize("scale", [1 << 16, 1 << 24, LARGEST_SCALE])
def test_moments_and_tails_of_wide_noise(scale: int) -> None:
    count = 1_000_000
    sample = DiscreteGaussianSource(fixed(b"moments")).sample(count, scale) / scale
    assert abs(sample.mean()) < 4 / math.sqrt(count)
    assert abs((sample**2).mean() - 1) < 4 * math.sqrt(2 / count)
    assert abs((sample**3).mean()) < 4 * math.sqrt(15 / count)
    assert abs((sample**4).mean() - 3) < 4 * math.sqrt(96 / count)
    for bound in (1.0, 2.0, 3.0, 4.0):
        expected = count * math.erfc(bound / math.sqrt(2))
        assert abs((abs(sample) > bound).sum() - expected) < 5 * math.sqrt(expected)
    # Even the lowest digit is spread: noise that were a multiple of something would not hide a single one.
    lowest = np.bincount(DiscreteGaussianSource(fixed(b"low")).sample(100_000, scale) % 8, minlength=8)
    assert abs(chi_square(lowest, np.full(8, 12_500.0))) < 4


def no_more(count: int) -> np.ndarray:
    raise AssertionError("no further words were expected")


def test_a_tie_is_decided_by_a_further_word() -> None:
    table = digits_of(30).table
    column = int(np.flatnonzero((table.threshold > 0) & (table.remainder > 0) & (table.alias != table.values))[0])
    words = np.array([(column << 53) + int(table.threshold[column])], dtype=np.uint64)
    below = np.array([int(table.remainder[column]) - 1], dtype=np.uint64)
    assert table.look_up(words, lambda _: below).tolist() == [table.values[column]]
    assert table.look_up(words, lambda _: below + np.uint64(1)).tolist() == [table.alias[column]]
    assert table.look_up(words - np.uint64(1), no_more).tolist() == [table.values[column]]
    assert table.look_up(words + np.uint64(1), no_more).tolist() == [table.alias[column]]


def test_extreme_words_give_values_of_the_table() -> None:
    digits = digits_of(1 << 24)
    side = (len(masses(_digit_variance(1 << 24, digits.base, digits.length))) - 1) // 2
    for word in (0, (1 << 64) - 1):
        words = np.full(3, word, dtype=np.uint64)
        values = digits.table.look_up(words, lambda count: np.full(count, (1 << 64) - 1, dtype=np.uint64))
        assert (np.abs(values) <= side).all()


def test_a_value_outside_the_table_is_never_drawn() -> None:
    # Columns beyond the law's end carry no mass of their own.
    for scale in (1, 81, 1 << 24):
        assert sum(law_of(digits_of(scale)).values()) == WHOLE
        assert set(law_of(digits_of(scale))) <= set(range(-1023, 1024))


@pytest.mark.parametrize("key", [bytes(32), b"\xff" * 32])
def test_extreme_keys_are_keys(key: bytes) -> None:
    sample = DiscreteGaussianSource(lambda _: key).sample(100_000, 1000)
    assert abs(sample.std() / 1000 - 1) < 0.02
    assert len(np.unique(sample)) > 3000


def test_equal_entropy_gives_equal_noise_and_every_call_takes_a_fresh_key() -> None:
    first = DiscreteGaussianSource(fixed(b"same"))
    second = DiscreteGaussianSource(fixed(b"same"))
    drawn = first.sample(50_000, 12345)
    assert (drawn == second.sample(50_000, 12345)).all()
    assert (drawn != first.sample(50_000, 12345)).mean() > 0.99
    assert drawn.dtype == np.int64
    assert first.sample(0, 5).shape == (0,)


def test_neighbours_are_uncorrelated() -> None:
    sample = DiscreteGaussianSource(fixed(b"neighbours")).sample(500_000, 1 << 20) / (1 << 20)
    for lag in (1, 2, 1 << 14):
        assert abs((sample[:-lag] * sample[lag:]).mean()) < 5 / math.sqrt(sample.size)


@pytest.mark.parametrize(("count", "scale"), [(-1, 5), (1, 0), (1, -3), (1, LARGEST_SCALE + 1)])
def test_out_of_range_is_refused(count: int, scale: int) -> None:
    with pytest.raises(ValueError, match=r"count|scale"):
        DiscreteGaussianSource(fixed(b"range")).sample(count, scale)


@pytest.mark.parametrize("returned", [b"", bytes(31), bytes(33)])
def test_short_entropy_is_refused(returned: bytes) -> None:
    with pytest.raises(ValueError, match="entropy"):
        DiscreteGaussianSource(lambda _: returned).sample(1, 10)
