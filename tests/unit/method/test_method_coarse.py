"""The grid of coarse embeddings: its bounds hold for every record of the schema, its codes carry no more bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.contract.errors import MalformedError
from feddrm.contract.plan import Plan
from feddrm.contract.schema import Binned, Categorical, Column, Numeric, Schema, Threshold
from feddrm.features import Table, encode
from feddrm.method.coarse import Grid, query_bits, record_bits, unit_bounds
from feddrm.method.layout import layout_of

MakePlan = Callable[..., Plan]

COLUMNS: dict[str, Column] = {
    "numeric": Numeric(kind="numeric", name="numeric", lower=0, upper=10),
    "bare": Numeric(kind="numeric", name="bare", lower=-1, upper=1, missing_indicator=False),
    "never": Numeric(kind="numeric", name="never", lower=0, upper=1, missing=(), missing_indicator=True),
    "binned": Binned(kind="binned", name="binned", edges=(1.0, 2.0), missing_indicator=False),
    "word": Categorical(kind="categorical", name="word", categories=("a", "b", "c")),
    "full": Categorical(kind="categorical", name="full", categories=("x", "y"), missing=(), missing_indicator=False),
}
# All that moves W x to an extreme: both ends of a number, every category, and nothing where nothing may stand.
EXTREMES = {
    "numeric": ["0", "10", "-7", "5", ""],
    "bare": ["-1", "1", "0.25", ""],
    "never": ["0", "1"],
    "binned": ["0", "1.5", "9", ""],
    "word": ["a", "b", "c", ""],
    "full": ["x", "y"],
}


def plan_over(make_plan: MakePlan, hidden: tuple[int, ...], bits: int = 2) -> Plan:
    target = Threshold(kind="threshold", column="t", operator=">", value=0, labels=("no", "yes"))
    schema = Schema(patient="id", target=target, columns=tuple(COLUMNS.values()))
    plan = make_plan(hidden=hidden).model_copy(update={"schema_": schema})
    return plan.model_copy(update={"queries": plan.queries.model_copy(update={"embedding_bits": bits})})


def trunk_of(plan: Plan, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in layout_of(plan).part("trunk")}


def every_record(plan: Plan) -> np.ndarray[Any, Any]:
    cells = list(zip(*itertools.product(*EXTREMES.values()), strict=True))
    table = Table(
        "all", {name: list(column) for name, column in zip(EXTREMES, cells, strict=True)}, [1] * len(cells[0])
    )
    return encode(table, plan.schema_, targets=False).features


def embed(trunk: dict[str, np.ndarray[Any, Any]], features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    for layer in range(len(trunk) // 2):
        features = np.maximum(features @ trunk[f"trunk.{layer}.weight"].T + trunk[f"trunk.{layer}.bias"], 0)
    return features.astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_of_one_layer_are_reached_and_never_passed(make_plan: MakePlan, seed: int) -> None:
    plan = plan_over(make_plan, (9,))
    trunk = trunk_of(plan, seed)
    phi = embed(trunk, every_record(plan))
    assert np.allclose(phi.max(axis=0), unit_bounds(plan, trunk), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_of_deep_trunks_hold(make_plan: MakePlan, seed: int) -> None:
    plan = plan_over(make_plan, (9, 7, 5))
    trunk = trunk_of(plan, seed)
    phi, bounds = embed(trunk, every_record(plan)), unit_bounds(plan, trunk)
    assert (phi <= bounds * (1 + 1e-5) + 1e-6).all()
    assert phi.max() > 0


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_features_without_a_trunk_keep_the_ends_of_their_ranges(make_plan: MakePlan, bits: int) -> None:
    plan = plan_over(make_plan, (), bits)
    grid, records = Grid.of(plan, {}), every_record(plan)
    assert grid.width == plan.schema_.width
    seen = grid.decode(grid.encode(records))
    lower = np.concatenate(
        [[-1.0 if kind.kind == "numeric" else 0.0, *[0.0] * (kind.width - 1)] for kind in COLUMNS.values()]
    )
    ends = (records == lower) | (records == 1.0)
    assert ends.mean() > 0.8
    assert np.allclose(seen[ends], records[ends], atol=1e-6)
    assert (np.abs(seen - records) <= (1.0 - lower) / (2**bits - 1) / 2 + 1e-6).all()
    with pytest.raises(MalformedError):
        Grid.of(plan, {"trunk.0.bias": np.zeros(3, dtype=np.float32)})


def test_bounds_survive_the_largest_weights(make_plan: MakePlan) -> None:
    plan = plan_over(make_plan, (9, 9, 9, 9, 9))
    trunk = {name: np.full_like(values, 2.0**29) for name, values in trunk_of(plan, 0).items()}
    grid = Grid.of(plan, trunk)
    assert np.isfinite(grid.decode([b"\xff" * 2 + b"\xc0"])).all()


def test_another_trunk_is_refused(make_plan: MakePlan) -> None:
    plan = plan_over(make_plan, (9,))
    trunk = trunk_of(plan, 0)
    with pytest.raises(MalformedError):
        unit_bounds(plan, {**trunk, "trunk.0.bias": np.full(9, np.nan, dtype=np.float32)})
    with pytest.raises(MalformedError):
        unit_bounds(plan_over(make_plan, (8,)), trunk)


def test_a_code_is_what_this_says() -> None:
    grid = Grid(np.array([4.0, 8.0, 1.0]), 3)
    # Cells 0, 5 and 7: 000 101 11|1 and seven zeros.
    phi = np.array([[0.4, 5.5, 1.0]], dtype=np.float32)
    assert grid.encode(phi) == (bytes([0b00010111, 0b10000000]),)
    assert grid.decode(grid.encode(phi)).tolist() == [[0.25, 5.5, 0.9375]]


@given(st.data(), st.integers(1, 16), st.integers(1, 9))
def test_an_embedding_comes_back_within_half_a_cell(data: st.DataObject, bits: int, width: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    grid = Grid(rng.uniform(0, 50, width), bits)
    phi = (rng.uniform(0, 1, (5, width)) * grid.bounds).astype(np.float32)
    codes = grid.encode(phi)
    assert {len(code) for code in codes} == {grid.code_bytes} == {(width * bits + 7) // 8}
    centres = grid.decode(codes)
    assert (np.abs(centres - phi) <= grid.bounds / 2**bits * 0.5001 + 1e-5).all()
    assert grid.encode(centres) == codes


def test_all_records_together_have_no_more_codes_than_the_bits_allow(make_plan: MakePlan) -> None:
    plan = plan_over(make_plan, (2,), bits=3)
    trunk = trunk_of(plan, 1)
    phi = embed(trunk, every_record(plan))
    assert query_bits(plan) == 6
    assert len(np.unique(phi, axis=0)) > 300
    assert 8 < len(set(Grid.of(plan, trunk).encode(phi))) <= 2**6


def test_what_lies_outside_is_cut_and_what_cannot_move_says_nothing() -> None:
    grid = Grid(np.array([1.0, 0.0]), 2)
    assert grid.encode(np.array([[7.0, 0.0], [1.0, 0.0]], dtype=np.float32)) == (b"\xc0", b"\xc0")
    assert grid.decode([b"\xc0"]).tolist() == [[0.875, 0.0]]


@pytest.mark.parametrize(
    "codes", [[b""], [b"\xff"], [bytes(3)], [bytes(2), bytes(1)], [b"\x00\x01"], [b"\x00\x40"], [bytes(2), b"\x00\x3f"]]
)
def test_codes_that_are_longer_or_carry_more_are_refused(codes: list[bytes]) -> None:
    grid = Grid(np.ones(3), 3)
    assert grid.decode([b"\xff\x80"]).shape == (1, 3)
    with pytest.raises(MalformedError):
        grid.decode(codes)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_embedding_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(MalformedError):
        Grid(np.ones(2), 4).encode(np.array([[0.0, value]], dtype=np.float32))


@pytest.mark.parametrize("phi", [np.zeros((1, 3), np.float32), np.zeros((1, 2)), np.zeros(2, np.float32)])
def test_an_embedding_of_another_form_is_refused(phi: np.ndarray[Any, Any]) -> None:
    with pytest.raises(MalformedError):
        Grid(np.ones(2), 4).encode(phi)


def test_records_are_counted_with_their_gaps(make_plan: MakePlan) -> None:
    schema = plan_over(make_plan, (9,)).schema_
    assert record_bits(schema) == math.inf
    counted = ("binned", "word", "full")
    discrete = schema.model_copy(update={"columns": tuple(COLUMNS[name] for name in counted)})
    cells = math.prod(len(EXTREMES[name]) for name in counted)
    assert cells == 4 * 4 * 2
    assert record_bits(discrete) == pytest.approx(math.log2(cells))


@pytest.mark.parametrize(("bounds", "bits"), [([], 2), ([-1.0], 2), ([np.inf], 2), ([1.0], 0), ([1.0], 17)])
def test_a_grid_must_be_sound(bounds: list[float], bits: int) -> None:
    with pytest.raises(ValueError, match="grid"):
        Grid(np.array(bounds), bits)
    assert replace(Grid(np.ones(1), 2), bits=16).code_bytes == 2
    for lower in (np.ones(1), np.zeros(2), np.full(1, -np.inf)):
        with pytest.raises(ValueError, match="lower"):
            Grid(np.ones(1), 2, lower)
