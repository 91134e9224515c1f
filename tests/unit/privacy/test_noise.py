from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest

from privacy.noise import GaussianSource, box_muller, grid_for, snap


def fixed(seed: bytes) -> Callable[[int], bytes]:
    """Entropy that is the same in every run: an endless SHAKE-256 stream of `seed`."""
    state = {"calls": 0}

    def entropy(count: int) -> bytes:
        state["calls"] += 1
        return hashlib.shake_256(seed + state["calls"].to_bytes(8)).digest(count)

    return entropy


def no_more(count: int) -> np.ndarray:
    raise AssertionError("no further words were expected")


def test_keys_that_agree_modulo_2_to_32_give_different_noise() -> None:
    low = bytes(28) + b"\1\2\3\4"
    high = b"\1" + bytes(27) + b"\1\2\3\4"
    first = GaussianSource(lambda _: low).sample(1000, 1.0, 2.0**-20)
    second = GaussianSource(lambda _: high).sample(1000, 1.0, 2.0**-20)
    assert not (first == second).any()


def test_every_call_takes_a_fresh_key() -> None:
    source = GaussianSource(fixed(b"fresh"))
    assert not (source.sample(1000, 1.0, 2.0**-20) == source.sample(1000, 1.0, 2.0**-20)).any()


def test_equal_entropy_gives_equal_noise_in_any_chunking() -> None:
    long = GaussianSource(fixed(b"same")).sample(100_001, 1.0, 2.0**-20)
    again = GaussianSource(fixed(b"same")).sample(100_001, 1.0, 2.0**-20)
    assert (long == again).all()


@pytest.mark.parametrize("returned", [b"", bytes(31), bytes(33)])
def test_short_entropy_is_refused(returned: bytes) -> None:
    with pytest.raises(ValueError, match="entropy"):
        GaussianSource(lambda _: returned).sample(1, 1.0, 2.0**-20)


def test_variance_passes_a_chi_square_test() -> None:
    count, std = 1_000_000, 3.0
    sample = GaussianSource(fixed(b"variance")).sample(count, std, 2.0**-20)
    statistic = float((sample**2).sum()) / std**2
    # Wilson-Hilferty: the cube root of chi-square / n is nearly normal.
    z = ((statistic / count) ** (1 / 3) - (1 - 2 / (9 * count))) / math.sqrt(2 / (9 * count))
    assert abs(z) < 4


def test_moments_and_tails_are_those_of_a_gaussian() -> None:
    count = 2_000_000
    sample = GaussianSource(fixed(b"moments")).sample(count, 1.0, 2.0**-20)
    assert abs(sample.mean()) < 4 / math.sqrt(count)
    assert abs((sample**3).mean()) < 4 * math.sqrt(15 / count)
    assert abs((sample**4).mean() - 3) < 4 * math.sqrt(96 / count)
    for bound in (1.0, 2.0, 3.0, 4.0):
        expected = count * math.erfc(bound / math.sqrt(2))
        assert abs((abs(sample) > bound).sum() - expected) < 5 * math.sqrt(expected)


def test_neighbours_are_uncorrelated() -> None:
    sample = GaussianSource(fixed(b"neighbours")).sample(1_000_000, 1.0, 2.0**-20)
    half = 1 << 13
    for lag in (1, 2, half):
        assert abs((sample[:-lag] * sample[lag:]).mean()) < 5 / math.sqrt(sample.size)


def test_the_tail_reaches_beyond_13_sigma() -> None:
    def zeros(count: int) -> np.ndarray:
        return np.zeros(count, np.uint64)

    extreme = box_muller(np.zeros(1, np.uint64), np.zeros(1, np.uint64), zeros)
    assert 13.3 < extreme[0] < 13.5
    assert extreme[1] == 0


def test_small_uniforms_keep_their_precision() -> None:
    # Among words below 2**32 a plain float has few bits left: the words that continue them must matter.
    words = np.full(4, 5, np.uint64)
    further = np.array([0, 1 << 62, 1 << 63, (1 << 64) - 1], np.uint64)
    radii = box_muller(words, np.zeros(4, np.uint64), lambda _: further)[:4]
    assert (np.diff(radii) < 0).all()
    assert radii[0] == pytest.approx(math.sqrt(-2 * math.log(5 * 2.0**-64)), rel=1e-12)


def test_the_radius_falls_with_every_bit_of_a_uniform() -> None:
    words = np.array([1 << bit for bit in range(32, 64)], np.uint64)
    radii = box_muller(words, np.zeros(32, np.uint64), no_more)[:32]
    assert (np.diff(radii) < 0).all()
    assert radii[0] == pytest.approx(math.sqrt(2 * 32 * math.log(2)), rel=1e-9)


def test_further_words_are_drawn_only_for_small_ones() -> None:
    words = np.array([1 << 32, (1 << 64) - 1], np.uint64)
    result = box_muller(words, np.zeros(2, np.uint64), no_more)
    assert np.isfinite(result).all()
    assert result[1] == 0


def test_results_lie_on_the_grid() -> None:
    std = 0.37
    grid = grid_for(std)
    assert grid <= 2.0**-20 * std < 2 * grid
    noised = GaussianSource(fixed(b"grid")).add(np.linspace(-1, 1, 10_001), std, grid)
    quotient = noised / grid
    assert (quotient == np.rint(quotient)).all()


def test_noise_is_added_before_rounding() -> None:
    # Rounding first and adding after would keep the low bits of an input between two grid points.
    grid = 2.0**-20
    plain = GaussianSource(fixed(b"order")).add(np.zeros(10_000), 1.0, grid)
    moved = GaussianSource(fixed(b"order")).add(np.full(10_000, 0.5 * grid), 1.0, grid)
    differences = (moved - plain) / grid
    assert set(differences.tolist()) == {0.0, 1.0}
    assert 0.45 < differences.mean() < 0.55


@pytest.mark.parametrize(
    ("std", "grid"),
    [(0.0, 1e-9), (-1.0, 1e-9), (math.nan, 1e-9), (math.inf, 1e-9), (1.0, 0.0), (1.0, -1e-9), (1.0, 2.0**-19)],
)
def test_unsound_scales_are_refused(std: float, grid: float) -> None:
    with pytest.raises(ValueError):
        GaussianSource(fixed(b"scales")).sample(3, std, grid)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        GaussianSource(fixed(b"finite")).add(np.array([0.0, value]), 1.0, 2.0**-20)


@pytest.mark.parametrize("count", [0, 1, 2, 16_383, 16_384, 16_385, 32_769])
def test_counts_around_a_chunk(count: int) -> None:
    sample = GaussianSource(fixed(b"counts")).sample(count, 1.0, 2.0**-20)
    assert sample.shape == (count,)
    assert sample.dtype == np.float64
    assert np.unique(sample).size >= 0.99 * count


def test_snap_rounds_to_the_nearest() -> None:
    assert snap(np.array([0.24, 0.26, -0.26]), 0.5).tolist() == [0.0, 0.5, -0.5]
