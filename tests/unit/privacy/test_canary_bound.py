"""The one-run bound: the paper's own figures, the theorem played against mechanisms that meet it, the rules fixed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from privacy.accounting import claim, epsilon
from privacy.canary import (
    CANARIES,
    CONFIDENCE,
    GUESSED_IN,
    GUESSED_OUT,
    CanaryRun,
    guesses,
    inserted,
    judge,
    lower_bound,
    p_value,
)
from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import MalformedError
from privacy.events import PoissonSubsampledGaussian

EVENT = PoissonSubsampledGaussian(3.0, 0.1, 90)
SEED = b"\x01" * 32
GUESSED = GUESSED_IN + GUESSED_OUT


def run_of(scores: np.ndarray, claimed: float | None = None, seed: bytes = SEED) -> CanaryRun:
    cost = claim(epsilon([EVENT], 1e-6).pld)
    return CanaryRun("retina", "job", "a", seed, EVENT, 1e-6, cost if claimed is None else claimed, scores)


def scores_with(correct: int) -> np.ndarray:
    """Scores under which exactly so many of the guesses of `SEED` are right."""
    coins = np.flatnonzero(inserted(SEED)), np.flatnonzero(~inserted(SEED))
    scores = np.zeros(CANARIES)
    wrong = GUESSED - correct
    scores[coins[0][: GUESSED_IN - wrong]] = 1.0
    scores[coins[1][:wrong]] = 1.0
    scores[coins[1][-GUESSED_OUT:]] = -1.0
    return scores


@pytest.mark.parametrize(
    ("canaries", "guessed", "correct", "delta", "published"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_the_figures_of_the_paper(canaries: int, guessed: int, correct: int, delta: float, published: float) -> None:
    found = lower_bound(delta, canaries=canaries, guessed=guessed, correct=correct, confidence=0.95)
    assert found == pytest.approx(published, abs=1e-3)


@pytest.mark.parametrize("value", [0.0, 0.5, 3.0, 8.0])
@pytest.mark.parametrize("correct", [0, 1, 120, 199, 200])
def test_without_delta_the_bound_is_a_binomial_tail(value: float, correct: int) -> None:
    expected = binom.sf(correct - 1, 200, 1 / (1 + math.exp(-value)))
    assert p_value(value, 0.0, canaries=1000, guessed=200, correct=correct) == pytest.approx(expected, rel=1e-9)


def test_delta_makes_the_bound_weaker_and_more_right_guesses_make_it_stronger() -> None:
    bounds = [lower_bound(1e-6, canaries=1000, guessed=500, correct=correct) for correct in range(250, 501, 25)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0.0
    assert bounds[-1] > 4
    assert lower_bound(1e-5, canaries=1000, guessed=500, correct=500) < bounds[-1]
    assert lower_bound(1e-2, canaries=1000, guessed=500, correct=500) == 0.0


def test_what_the_bound_names_has_been_refuted_itself() -> None:
    found = lower_bound(1e-6, canaries=1000, guessed=500, correct=430)
    assert p_value(found, 1e-6, canaries=1000, guessed=500, correct=430) < 1 - CONFIDENCE
    assert p_value(found + 1e-4, 1e-6, canaries=1000, guessed=500, correct=430) > 1 - CONFIDENCE


@pytest.mark.parametrize("value", [0.0, 1.0, 2.5])
def test_randomised_response_is_refuted_as_seldom_as_the_confidence_says(value: float) -> None:
    """The mechanism for which the bound is tight: each coin is told truly with probability e^eps / (1 + e^eps)."""
    rng = np.random.default_rng(7)
    right = rng.binomial(200, 1 / (1 + math.exp(-value)), size=20_000)
    bounds = {int(v): lower_bound(0.0, canaries=200, guessed=200, correct=int(v)) for v in np.unique(right)}
    refuted = np.mean([bounds[int(v)] > value for v in right])
    assert refuted <= 0.001 + 4 * math.sqrt(0.001 / 20_000)
    # And power: most runs come near.
    if value:
        assert np.median([bounds[int(v)] for v in right]) > value - 0.9


def test_coins_are_fair_and_follow_from_the_seed() -> None:
    coins = [inserted(bytes([number]) * 32) for number in range(64)]
    assert all((inserted(bytes([number]) * 32) == coin).all() for number, coin in enumerate(coins))
    total = sum(int(coin.sum()) for coin in coins)
    assert abs(total - 32 * CANARIES) < 5 * math.sqrt(16 * CANARIES)
    assert all(GUESSED_IN <= coin.sum() <= CANARIES - GUESSED_OUT for coin in coins)
    assert abs(np.mean(coins[0] == coins[1]) - 0.5) < 0.1
    with pytest.raises(ValueError, match="32 bytes"):
        inserted(b"short")


def test_guesses_are_of_a_fixed_number_whatever_the_scores() -> None:
    rng = np.random.default_rng(3)
    for scores in (rng.standard_normal(CANARIES), np.zeros(CANARIES), np.arange(CANARIES) % 2.0):
        made = guesses(scores)
        assert ((made == 1).sum(), (made == -1).sum()) == (GUESSED_IN, GUESSED_OUT)
    assert guesses(np.arange(CANARIES, dtype=np.float64))[-1] == 1
    for bad in (np.zeros(CANARIES - 1), np.full(CANARIES, np.nan)):
        with pytest.raises(ValueError, match="finite scores"):
            guesses(bad)


def test_equal_scores_tell_nothing() -> None:
    """Ties are broken by place, and the coins do not know places: about half is right."""
    verdict = judge(run_of(np.zeros(CANARIES)))
    assert abs(verdict.correct - GUESSED / 2) < 5 * math.sqrt(GUESSED / 4)
    assert verdict.passed
    assert verdict.lower == 0.0


@pytest.mark.parametrize(("correct", "passed"), [(500, False), (440, False), (400, True), (250, True)])
def test_a_claim_is_refuted_by_too_many_right_guesses(correct: int, passed: bool) -> None:
    verdict = judge(run_of(scores_with(correct)))
    assert (verdict.correct, verdict.guessed, verdict.passed) == (correct, GUESSED, passed)
    assert (verdict.chance < 1 - CONFIDENCE) == (not passed)


def test_a_claim_below_what_the_event_costs_fails_whatever_the_guesses() -> None:
    cost = claim(epsilon([EVENT], 1e-6).pld)
    assert judge(run_of(np.zeros(CANARIES), cost)).passed
    assert not judge(run_of(np.zeros(CANARIES), cost - 1e-6)).passed


def test_a_run_survives_its_file() -> None:
    run = run_of(np.random.default_rng(5).standard_normal(CANARIES))
    again = CanaryRun.decode(run.encode())
    assert (again.scores == run.scores).all()
    assert again.encode() == run.encode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "feddrm canary 2"),
        ("seed", "00" * 31),
        ("seed", "AB" * 32),
        ("seed", 7),
        ("delta", 0.0),
        ("delta", True),
        ("claimed", -1.0),
        ("scores", [0.0] * 999),
        ("scores", ["0"] * 1000),
        ("event", {"type": "gaussian"}),
        ("silo", None),
        ("more", 1),
    ],
)
def test_a_file_that_is_anything_else_is_refused(field: str, value: object) -> None:
    raw = parse_canonical(run_of(np.zeros(CANARIES)).encode())
    raw[field] = value
    with pytest.raises((MalformedError, ValueError)):
        CanaryRun.decode(canonical_json(raw))


@pytest.mark.parametrize(
    ("value", "delta", "guessed", "correct"),
    [(-1.0, 0.0, 10, 5), (math.nan, 0.0, 10, 5), (1.0, -0.1, 10, 5), (1.0, 0.0, 10, 11), (1.0, 0.0, 1001, 5)],
)
def test_figures_out_of_range_are_refused(value: float, delta: float, guessed: int, correct: int) -> None:
    with pytest.raises(ValueError, match="no such"):
        p_value(value, delta, canaries=1000, guessed=guessed, correct=correct)
