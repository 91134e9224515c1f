"""The quantiser."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import MisuseError
from secagg.quantise import quantise, value_bound


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=50),
    st.floats(2**-10, 2**6),
    st.integers(0, 20),
)
def test_quantised_values_keep_bound_and_order(values: list[float], clip: float, bits: int) -> None:
    result = quantise(np.array(values, dtype=np.float64), clip, bits)
    assert result.dtype == np.int64
    for value, q in zip(values, result.tolist(), strict=True):
        clipped = 0.0 if math.isnan(value) else min(max(value, -clip), clip)
        assert abs(q) <= value_bound(clip, bits)
        assert abs(q - math.ldexp(clipped, bits)) <= 0.5


def test_nan_infinity_and_ties() -> None:
    values = np.array([math.nan, math.inf, -math.inf, 0.5, 1.5, -0.5, 1e300, -0.0])
    kept = values.copy()
    assert quantise(values, 3.0, 0).tolist() == [0, 3, -3, 0, 2, 0, 3, 0]
    np.testing.assert_array_equal(values, kept)


@pytest.mark.parametrize(
    ("clip", "bits"), [(0.0, 8), (-1.0, 8), (math.nan, 8), (math.inf, 8), (1.0, 53), (2.0**20, 50)]
)
def test_quantisers_that_are_refused(clip: float, bits: int) -> None:
    with pytest.raises(MisuseError):
        quantise(np.zeros(1), clip, bits)
