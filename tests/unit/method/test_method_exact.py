"""Exact clipped sums: held against integers of Python, for shapes and sizes that no step of a test would reach."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the silo extra is not installed")

from feddrm.method.exact import MAXIMUM_ROWS, Clip, ExactSum, Layer, Other  # noqa: E402


def samples(seed: int, rows: int, groups: list[Layer | Other], spread: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp(spread * torch.randn((rows, 1), generator=generator))
    made = []
    for group in groups:
        columns = [scale * torch.randn((rows, width), generator=generator) for width in group.widths]
        if isinstance(group, Layer) and group.bias:
            columns[1][:, -1] = 1.0
        made.append(torch.cat(columns, dim=1))
    return made


def written_out(groups: list[Layer | Other], row: torch.Tensor) -> torch.Tensor:
    """One record's gradient of integers, the long way."""
    found, place = [], 0
    for group in groups:
        parts = row[place : place + sum(group.widths)].split(list(group.widths))
        if isinstance(group, Layer):
            product = torch.outer(*parts)
            found += [product[:, :-1].flatten(), product[:, -1]] if group.bias else [product.flatten()]
        else:
            found.append(parts[0])
        place += sum(group.widths)
    return torch.cat(found)


GROUPS: list[list[Layer | Other]] = [
    [Layer(1, 1, bias=True)],
    [Layer(3, 5, bias=True), Layer(2, 3, bias=False), Other(4)],
    [Other(7)],
    [Layer(1, 3000, bias=True)],
    [Layer(700, 1, bias=False), Layer(2, 700, bias=True)],
    # What is written out at length lies apart.
    [Other(20000), Layer(2, 3, bias=True), Other(3), Other(17000), Other(18000)],
]


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    groups=st.sampled_from(GROUPS),
    clip=st.sampled_from([1e-6, 0.25, 0.7, 1.0, 1e6]),
    spread=st.sampled_from([0.0, 3.0, 15.0]),
)
def test_a_record_contributes_at_most_c_and_the_sum_is_the_records(
    seed: int, groups: list[Layer | Other], clip: float, spread: float
) -> None:
    clipper = Clip(clip, groups)
    pieces = clipper.contributions(samples(seed, 9, groups, spread), 8)
    rows = torch.cat(pieces, dim=1)
    singles = [written_out(groups, row) for row in rows]
    assert all(float(torch.linalg.vector_norm(single)) * clipper.unit <= clip for single in singles)
    assert not singles[8].any()
    assert (rows == rows.round()).all()
    assert (clipper.total(pieces) == sum(singles)).all()
    assert (clipper.total([piece.flip(0) for piece in pieces]) == sum(singles)).all()


def test_the_clip_is_reached() -> None:
    groups: list[Layer | Other] = [Layer(3, 5, bias=True), Other(4)]
    clipper = Clip(0.7, groups)
    (rows,) = clipper.contributions([1e3 * sample for sample in samples(1, 8, groups, 0.0)], 8)
    for row in rows:
        norm = float(torch.linalg.vector_norm(written_out(groups, row))) * clipper.unit
        assert 0.7 * (1 - 3e-4) < norm <= 0.7


def test_below_the_clip_a_contribution_is_the_gradient() -> None:
    groups: list[Layer | Other] = [Layer(3, 5, bias=True), Other(4)]
    clipper = Clip(1000.0, groups)
    given_ = samples(2, 4, groups, 0.0)
    (rows,) = clipper.contributions(given_, 4)
    for row, raw in zip(rows, torch.cat(given_, dim=1), strict=True):
        assert torch.allclose(written_out(groups, row) * clipper.unit, written_out(groups, raw.double()), atol=1e-3)


def test_a_full_block_of_equal_extremes_stays_exact() -> None:
    """All records point the same way, along the axes, where the integers are largest."""
    groups: list[Layer | Other] = [Layer(1, 1, bias=False)]
    # Just below the power of two, so that nothing is lost to it.
    clipper = Clip(1.0 - 2.0**-30, groups)
    (rows,) = clipper.contributions([torch.full((MAXIMUM_ROWS, 2), 1e3)], MAXIMUM_ROWS)
    expected = sum(int(left) * int(right) for left, right in rows.tolist())
    assert expected > 2**52
    assert int(clipper.total([rows])) == expected
    total = ExactSum()
    for _ in range(3000):
        total.add(clipper.total([rows]) - 1, MAXIMUM_ROWS)
    assert total
    assert float(total.take(1.0)) == float(3000 * (expected - 1))
    assert not total
    with pytest.raises(ValueError, match="nothing was added"):
        total.take(1.0)


@pytest.mark.parametrize("rows", [1, 100, MAXIMUM_ROWS])
def test_blocks_of_any_number_of_rows_add_up_exactly(rows: int) -> None:
    """Each entry as large as so many rows can make it: a float64 holds MAXIMUM_ROWS of them, and not one more."""
    total, entry = ExactSum(), float(rows * (2**53 // MAXIMUM_ROWS) - 1)
    count = 2 * MAXIMUM_ROWS // rows + 3
    for _ in range(count):
        total.add(torch.tensor([entry, -entry, 1.0], dtype=torch.float64), rows)
    assert total.take(1.0).tolist() == [float(count * int(entry)), -float(count * int(entry)), float(count)]


def test_sums_beyond_a_float_s_bits_keep_the_last_one() -> None:
    total = ExactSum()
    for _ in range(4):
        total.add(torch.tensor([2.0**53 - 1, -(2.0**53 - 1)], dtype=torch.float64))
    total.add(torch.tensor([4.0 - 2.0**55 + 2.0**53, 2.0**53 - 3], dtype=torch.float64).clamp(-(2.0**53), 2.0**53))
    first = 4 * (2**53 - 1) - 2**53
    second = -4 * (2**53 - 1) + 2**53 - 3
    assert total.take(1.0).tolist() == [float(first), float(second)]


@pytest.mark.parametrize("poison", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("column", [0, 3, 9])
def test_a_row_that_is_not_finite_is_nothing(poison: float, column: int) -> None:
    groups: list[Layer | Other] = [Layer(3, 5, bias=True), Other(4)]
    given_ = samples(3, 4, groups, 0.0)
    (clean,) = Clip(0.7, groups).contributions(given_, 4)
    given_[int(column == 9)][1, column % 9] = poison
    (rows,) = Clip(0.7, groups).contributions(given_, 4)
    assert not rows[1].any()
    assert (rows[[0, 2, 3]] == clean[[0, 2, 3]]).all()


def test_an_input_of_zeros_without_a_bias_is_nothing() -> None:
    groups: list[Layer | Other] = [Layer(2, 3, bias=False)]
    (rows,) = Clip(0.7, groups).contributions([torch.tensor([[1.0, 2.0, 0.0, 0.0, 0.0]])], 1)
    assert rows.isfinite().all()
    assert not Clip(0.7, groups).total([rows]).any()
