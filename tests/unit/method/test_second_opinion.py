"""Who is named beside the nearest silo, and what that does not tell."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from feddrm.contract.errors import MalformedError
from feddrm.method.routing import Router

SILOS = ("delta", "alpha", "echo", "bravo", "charlie")
numbers = st.floats(-4, 4, width=16)


@st.composite
def heads(draw: st.DrawFn) -> Router:
    rows = draw(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=5, max_size=5))
    values = np.array(rows, dtype=np.float32)
    return Router(values[:, :2], values[:, 2], SILOS)


points = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6).map(lambda rows: np.array(rows, np.float32))
ties = st.floats(0.05, 1)
groups = st.lists(st.integers(0, 1), min_size=5, max_size=5)
somebody = st.sets(st.sampled_from(SILOS), min_size=1)


def by_hand(
    router: Router, row: np.ndarray, eligible: Collection[str], tie: float, fitted: bool, questions: list[int]
) -> tuple[str, ...]:
    """One row by the rule in words, silo by silo."""
    norm = math.sqrt(1 + sum(float(x) ** 2 for x in row)) if fitted else 1.0
    ratio = {
        name: (sum(float(w) * float(x) for w, x in zip(weights, row, strict=True)) + float(bias)) / norm
        for name, weights, bias in zip(SILOS, router.weights, router.bias, strict=True)
    }
    first, second, third = sorted(SILOS, key=lambda name: -ratio[name])[:3]
    gaps = (ratio[first] - ratio[second], ratio[second] - ratio[third])
    # Where rounding decides who is second, or whether it is a tie, both answers are right.
    assume(min(gaps) > 1e-9 and abs(gaps[0] + math.log(tie)) > 1e-9)
    same = questions[SILOS.index(first)] == questions[SILOS.index(second)]
    if gaps[0] < -math.log(tie) and same and {first, second} <= set(eligible):
        return tuple(sorted((first, second), key=SILOS.index))
    return (max((name for name in SILOS if name in eligible), key=lambda name: ratio[name]),)


@given(heads(), points, somebody, ties, st.booleans(), groups)
def test_names_are_those_of_the_rule_in_the_plans_order(
    router: Router, phi: np.ndarray, eligible: set[str], tie: float, fitted: bool, questions: list[int]
) -> None:
    named = router.route(phi, eligible, tie, fitted=fitted, questions=questions)
    assert named == tuple(by_hand(router, row, eligible, tie, fitted, questions) for row in phi)
    places = router.nearest(phi, eligible, tie, fitted=fitted, questions=questions)
    for names, row in zip(named, places.tolist(), strict=True):
        assert set(names) == {SILOS[place] for place in row if place >= 0}
        assert list(names) == sorted(names, key=SILOS.index)


@given(heads(), points, somebody, ties, st.booleans(), groups)
def test_an_absence_takes_names_away_and_brings_no_third_silo_beside_a_first(
    router: Router, phi: np.ndarray, eligible: set[str], tie: float, fitted: bool, questions: list[int]
) -> None:
    """Whoever can wait for absences, or cause them by load, sees no pair but the one that all silos give."""
    everybody = router.route(phi, SILOS, tie, fitted=fitted, questions=questions)
    alone = router.route(phi, eligible, 1.0, fitted=fitted)
    for before, now, best in zip(
        everybody, router.route(phi, eligible, tie, fitted=fitted, questions=questions), alone, strict=True
    ):
        left = tuple(name for name in before if name in eligible)
        # As without second opinions: the best of those who are left.
        assert now == (left or best)


@given(heads(), points, ties, st.booleans(), groups)
def test_hospitals_that_answer_different_questions_are_never_named_together(
    router: Router, phi: np.ndarray, tie: float, fitted: bool, questions: list[int]
) -> None:
    for names in router.route(phi, SILOS, tie, fitted=fitted, questions=questions):
        assert len({questions[SILOS.index(name)] for name in names}) == 1


def test_both_sides_of_a_boundary_look_alike() -> None:
    router = Router(np.eye(3, dtype=np.float32), np.zeros(3, dtype=np.float32), ("a", "b", "c"))
    phi = np.log(np.array([[1.0, 0.8, 0.1], [0.8, 1.0, 0.1]], dtype=np.float32))
    assert router.route(phi, "abc") == (("a",), ("b",))
    assert router.route(phi, "abc", 0.7) == (("a", "b"), ("a", "b"))


def test_a_third_silo_within_the_factor_stays_unnamed_when_the_first_or_second_is_away() -> None:
    router = Router(np.eye(3, dtype=np.float32), np.zeros(3, dtype=np.float32), ("a", "b", "c"))
    phi = np.log(np.array([[1.0, 0.9, 0.85]], dtype=np.float32))
    assert router.route(phi, "abc", 0.7) == (("a", "b"),)
    assert router.route(phi, "ac", 0.7) == (("a",),)
    assert router.route(phi, "bc", 0.7) == (("b",),)
    assert router.route(phi, "c", 0.7) == (("c",),)
    # Nor does one that answers the same question come in for a second-best that does not.
    assert router.route(phi, "abc", 0.7, questions=[0, 1, 0]) == (("a",),)


def test_a_tie_shows_the_scale_that_the_best_alone_hides() -> None:
    """Written down, not prevented: twice the log ratios give the same boundaries, but narrower ties."""
    generator = np.random.default_rng(5)
    weights, bias = generator.normal(size=(3, 2)).astype(np.float32), generator.normal(size=3).astype(np.float32)
    phi = generator.normal(size=(500, 2)).astype(np.float32)
    flat, steep = Router(weights, bias, ("a", "b", "c")), Router(2 * weights, 2 * bias, ("a", "b", "c"))
    assert flat.route(phi, "abc") == steep.route(phi, "abc")
    # exp(-2 gap) > .7 ** 2 exactly where exp(-gap) > .7.
    assert flat.route(phi, "abc", 0.7) == steep.route(phi, "abc", 0.49)
    assert flat.route(phi, "abc", 0.7) != steep.route(phi, "abc", 0.7)


def test_a_router_chooses_between_several_and_of_each_the_question_is_known() -> None:
    one = np.zeros((1, 2), dtype=np.float32)
    with pytest.raises(MalformedError):
        Router(one, np.zeros(1, dtype=np.float32), ("a",))
    router = Router(np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32), ("a", "b"))
    with pytest.raises(ValueError, match="one question"):
        router.route(one, "ab", 0.7, questions=[0])
