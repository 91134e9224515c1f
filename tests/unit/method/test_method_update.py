from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from feddrm.contract.errors import MalformedError
from feddrm.contract.plan import Plan
from feddrm.method.layout import initial_model, layout_of
from feddrm.method.update import (
    MODEL_LIMIT,
    apply,
    from_float,
    head_hash,
    head_tensors,
    model_hash,
    part_hash,
    to_float,
    trunk_hash,
    trunk_tensors,
)

MakePlan = Callable[..., Plan]
FROZEN_MODEL_HASH = "c9f4a1fa266c1b8dc2ee18c92fda3ded1d1fa63136a05d502f78c09d61132ac9"
INT64_MIN = np.iinfo(np.int64).min


def vector(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def exactly(weight: int, total: int, count: int, bits: int, rate: float) -> int:
    """The documented rule in rational numbers: half away from zero, then saturate."""
    step = Fraction(total) * round(Fraction(rate) * 2**24) / (count * 2**bits)
    rounded: int = math.floor(abs(step) + Fraction(1, 2)) * (1 if step >= 0 else -1)
    return max(-MODEL_LIMIT, min(MODEL_LIMIT, weight + rounded))


@given(
    weight=st.integers(-MODEL_LIMIT, MODEL_LIMIT),
    total=st.integers(-(2**31) + 1, 2**31 - 1),
    count=st.integers(1, 100),
    bits=st.integers(1, 29),
    rate=st.floats(2.0**-24, 127.99),
)
def test_apply_is_exact(weight: int, total: int, count: int, bits: int, rate: float) -> None:
    result = apply(vector(weight), vector(total), count, bits, rate)
    assert result.dtype == np.int64
    assert result.tolist() == [exactly(weight, total, count, bits, rate)]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [1, 29])
@pytest.mark.parametrize("count", [1, 128])
def test_apply_does_not_overflow_at_its_extremes(sign: int, bits: int, count: int) -> None:
    total, rate = sign * (2**31 - 1), 128 - 2**-24
    assert apply(vector(0), vector(total), count, bits, rate).tolist() == [exactly(0, total, count, bits, rate)]


def test_apply_rounds_halves_away_from_zero() -> None:
    # With 24 + 1 bits and one silo a sum of 1 is exactly half a unit of the model.
    assert apply(vector(0, 0, 0, 0), vector(1, -1, 3, -3), 1, 25, 1.0).tolist() == [1, -1, 2, -2]


def test_apply_saturates_instead_of_wrapping() -> None:
    model = vector(MODEL_LIMIT, -MODEL_LIMIT)
    assert apply(model, vector(2**30, -(2**30)), 1, 1, 100.0).tolist() == model.tolist()


@pytest.mark.parametrize(
    ("model", "total", "count", "bits", "rate"),
    [
        (vector(INT64_MIN), vector(0), 3, 20, 1.0),
        (vector(MODEL_LIMIT + 1), vector(0), 3, 20, 1.0),
        (vector(0), vector(INT64_MIN), 3, 20, 1.0),
        (vector(0), vector(2**31), 3, 20, 1.0),
        (vector(0), vector(0, 0), 3, 20, 1.0),
        (vector(0), np.zeros(1, dtype=np.uint32), 3, 20, 1.0),
        (np.zeros(1), vector(0), 3, 20, 1.0),
        (np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1), dtype=np.int64), 3, 20, 1.0),
        (vector(0), vector(0), 0, 20, 1.0),
        (vector(0), vector(0), -3, 20, 1.0),
        (vector(0), vector(0), 129, 20, 1.0),
        (vector(0), vector(0), 3, 0, 1.0),
        (vector(0), vector(0), 3, 30, 1.0),
        (vector(0), vector(0), 3, 20, 0.0),
        (vector(0), vector(0), 3, 20, -1.0),
        (vector(0), vector(0), 3, 20, 128.0),
        (vector(0), vector(0), 3, 20, math.nan),
        (vector(0), vector(0), 3, 20, math.inf),
        (vector(0), vector(0), 3, 20, 1e-9),
    ],
)
def test_apply_refuses_what_is_out_of_range(
    model: np.ndarray, total: np.ndarray, count: int, bits: int, rate: float
) -> None:
    with pytest.raises(MalformedError):
        apply(model, total, count, bits, rate)


def test_apply_leaves_its_arguments_alone() -> None:
    model, total = vector(5), vector(7)
    apply(model, total, 3, 4, 1.0)
    assert (model.tolist(), total.tolist()) == ([5], [7])


@given(st.integers(-MODEL_LIMIT, MODEL_LIMIT))
def test_to_float_rounds_once(weight: int) -> None:
    result = to_float(vector(weight))[0]
    exact = Fraction(weight, 2**24)
    neighbours = (np.nextafter(result, np.float32(-np.inf)), result, np.nextafter(result, np.float32(np.inf)))
    assert min(abs(Fraction(float(n)) - exact) for n in neighbours) == abs(Fraction(float(result)) - exact)


def test_from_float_saturates_and_survives_nan() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e300, 1.5, -(2.0**-24)])
    assert from_float(values).tolist() == [0, MODEL_LIMIT, -MODEL_LIMIT, MODEL_LIMIT, 3 << 23, -1]


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5))
def test_float_weights_survive_the_round_trip_to_the_grid(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    assert np.abs(to_float(from_float(array)).astype(float) - array).max() <= 2.0**-25 + 100 * 2.0**-24


def test_model_hash_is_frozen() -> None:
    assert model_hash(vector(1, -2, 3)).hex() == FROZEN_MODEL_HASH


def test_model_hash_separates_length_and_order() -> None:
    models = [vector(), vector(0), vector(0, 0), vector(1, 2), vector(2, 1), vector(-1, 2)]
    assert len({model_hash(model) for model in models}) == len(models)


def test_released_tensors_hash_like_the_model(make_plan: MakePlan, tmp_path: Path) -> None:
    """A querier has the file only, not the fixed-point model, and must reach the signed hash from it."""
    layout = layout_of(make_plan(hidden=(6, 5)))
    model = initial_model(layout, bytes(32))
    save_file(trunk_tensors(layout, model), tmp_path / "trunk.safetensors")
    save_file(head_tensors(layout, model), tmp_path / "head.safetensors")
    assert part_hash(layout, "trunk", load_file(tmp_path / "trunk.safetensors")) == trunk_hash(layout, model)
    assert part_hash(layout, "routing", load_file(tmp_path / "head.safetensors")) == head_hash(layout, model)


def test_trunk_and_head_hashes_cover_their_own_part_only(make_plan: MakePlan) -> None:
    layout = layout_of(make_plan())
    model = initial_model(layout, bytes(32))
    trunk_size = sum(t.size for t in layout.part("trunk"))
    for index in range(layout.shared_size):
        other = model.copy()
        other[index] += 1 << 10
        assert (trunk_hash(layout, other) != trunk_hash(layout, model)) == (index < trunk_size)
        assert (head_hash(layout, other) != head_hash(layout, model)) == (index >= trunk_size)


def test_released_tensors_are_refused_when_altered(make_plan: MakePlan) -> None:
    layout = layout_of(make_plan())
    good = trunk_tensors(layout, initial_model(layout, bytes(32)))
    weight = good["trunk.0.weight"]
    missing = {name: values for name, values in good.items() if name != "trunk.0.bias"}
    poisoned = weight.copy()
    poisoned[0, 0] = np.nan
    for bad in (
        missing,
        good | {"extra": weight},
        good | {"trunk.0.weight": weight.T.copy()},
        good | {"trunk.0.weight": weight.astype(np.float64)},
        good | {"trunk.0.weight": poisoned},
    ):
        with pytest.raises(MalformedError):
            part_hash(layout, "trunk", bad)
