"""The quantiser, against the same arithmetic in rationals."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secagg.errors import MisuseError
from secagg.quantise import quantise, value_bound

finite = st.floats(allow_nan=False, allow_infinity=False)


def rounded(value: float, clip: float, bits: int) -> int:
    """Half to even, without a float on the way; Python's round of a fraction does just that."""
    clipped = min(max(Fraction(value), -Fraction(clip)), Fraction(clip))
    return round(clipped * 2**bits)


@given(st.lists(finite, max_size=50), st.floats(2**-10, 2**9), st.integers(0, 20))
@example([0.5, 1.5, 2.5, -0.5, -1.5, -0.0, 5e-324, 1e300, -1e300], 2.25, 0)
@example([1.0, -1.0, math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0)], 1.0, 29)
@example([1.0, -1.0, math.nextafter(1.0, 0.0)], 2.0**-23, 52)
@example([511.99999999999994, 512.0, -512.0], 512.0, 20)
def test_quantised_values_are_exact(values: list[float], clip: float, bits: int) -> None:
    result = quantise(np.array(values, dtype=np.float64), clip, bits)
    assert result.dtype == np.int32
    assert result.tolist() == [rounded(value, clip, bits) for value in values]
    assert all(abs(q) <= value_bound(clip, bits) for q in result.tolist())


@given(st.floats(2**-10, 2**9), st.integers(0, 20))
def test_the_bound_is_kept_by_the_largest_reals_and_is_the_least_such_integer_but_one(clip: float, bits: int) -> None:
    bound = value_bound(clip, bits)
    assert bound == math.ceil(Fraction(clip) * 2**bits)
    extremes = np.array([clip, -clip, math.nextafter(clip, math.inf), 1.7e308, -1.7e308])
    largest = int(quantise(extremes, clip, bits)[0])
    assert quantise(extremes, clip, bits).tolist() == [largest, -largest, largest, largest, -largest]
    assert bound - 1 <= largest <= bound


@pytest.mark.parametrize("count", [0, 1, 32767, 32768, 32769, 70001])
def test_chunks_do_not_show(count: int) -> None:
    values = np.linspace(-3, 3, count) if count else np.zeros(0)
    kept = values.copy()
    expected = [rounded(value, 2.5, 10) for value in values.tolist()]
    assert quantise(values, 2.5, 10).tolist() == expected
    np.testing.assert_array_equal(values, kept)
    assert quantise(values[::-1], 2.5, 10).tolist() == expected[::-1]


@settings(max_examples=30)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20),
    st.floats(2**-10, 2**6) | st.floats(2**-10, 2**6, width=32),
)
def test_narrow_reals_are_clipped_as_wide_ones(values: list[float], clip: float) -> None:
    """A clip that float32 does not hold must not be rounded to one that it does."""
    narrow = np.array(values, dtype=np.float32)
    np.testing.assert_array_equal(quantise(narrow, clip, 23), quantise(narrow.astype(np.float64), clip, 23))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 32767, 32768, 39999])
@pytest.mark.parametrize("width", ["f2", "f4", "f8"])
def test_what_is_not_finite_is_refused_wherever_it_is(bad: float, at: int, width: str) -> None:
    """Peers' failure: a number in its place. NaN cast to an integer is whatever the processor makes of it."""
    values = np.zeros(40000, dtype=width)
    values[at] = bad
    with pytest.raises(MisuseError, match="NaN or infinite"):
        quantise(values, 3.0, 8)


@pytest.mark.parametrize("values", [np.zeros((2, 3)), np.zeros(()), np.zeros(3, dtype=complex), np.array(["1"])])
def test_what_is_no_vector_of_reals_is_refused(values: Any) -> None:
    with pytest.raises(MisuseError, match="vector"):
        quantise(values, 3.0, 8)


@pytest.mark.parametrize(
    ("clip", "bits"),
    [(0.0, 8), (-1.0, 8), (math.nan, 8), (math.inf, 8), (1.0, 53), (1.0, -1), (2.0**20, 50), (1.0, 30), (2.0**-23, 53)],
)
def test_quantisers_that_are_refused(clip: float, bits: int) -> None:
    with pytest.raises(MisuseError):
        quantise(np.zeros(1), clip, bits)
