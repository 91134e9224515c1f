"""Which announcements are sound. t is the plan's and never shrinks with the cohort."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secagg_harness import Federation

from secagg.errors import SecaggError, UnsoundError
from secagg.session import MAXIMUM_WORDS32, MAXIMUM_WORDS64


@pytest.mark.parametrize(
    ("size", "threshold", "largest"), [(3, 3, 1), (4, 3, 1), (5, 4, 2), (6, 5, 3), (10, 7, 3), (100, 67, 33)]
)
def test_the_largest_number_of_colluders(size: int, threshold: int, largest: int) -> None:
    """The table of design section 3."""
    federation = Federation(size=size, threshold=threshold)
    federation.announcement(colluders=largest)
    for wrong in (0, largest + 1):
        with pytest.raises(UnsoundError, match="colluders"):
            federation.announcement(colluders=wrong)


@given(st.integers(3, 100), st.integers(0, 101), st.integers(0, 101), st.integers(0, 101))
def test_two_agreements_never_both_find_t_signers(size: int, threshold: int, minimum: int, colluders: int) -> None:
    """What the rules are for: of `size` silos, c sign both values and each honest one signs one."""
    federation = Federation(size=3, threshold=3)
    cohort = tuple(f"s{index}" for index in range(size))
    try:
        federation.announcement(cohort=cohort, threshold=threshold, minimum_cohort=minimum, colluders=colluders)
    except UnsoundError:
        return
    honest = size - colluders
    assert all(left + colluders < threshold or honest - left + colluders < threshold for left in range(honest + 1))
    assert threshold - colluders >= 2
    assert size >= max(threshold, minimum)


def test_a_smaller_cohort_keeps_the_threshold_and_is_refused_below_it() -> None:
    federation = Federation(size=10, threshold=7, colluders=3)
    for size in (9, 8, 7):
        assert federation.announcement(cohort=federation.names[:size]).quorum == 7
    with pytest.raises(UnsoundError, match="below"):
        federation.announcement(cohort=federation.names[:6])


def test_a_cohort_below_the_minimum_is_refused_though_it_has_t() -> None:
    federation = Federation(size=10, threshold=7, minimum_cohort=9)
    assert federation.announcement(cohort=federation.names[:9]).quorum == 9
    with pytest.raises(UnsoundError, match="below"):
        federation.announcement(cohort=federation.names[:8])


def test_a_lowered_threshold_must_still_withstand_the_colluders() -> None:
    """Silos compare t with the plan; here t = 4 of 6 is refused on its own, since c = 3 <= 2t - K' - 1 fails."""
    federation = Federation(size=10, threshold=7, colluders=3)
    with pytest.raises(UnsoundError, match="colluders"):
        federation.announcement(cohort=federation.names[:6], threshold=4)


@pytest.mark.parametrize(
    "change",
    [
        {"minimum_cohort": 2},
        {"cohort": ("silo-0", "silo-1", "silo-2", "silo-3", "silo-3")},
        {"cohort": ()},
        {"cohort": tuple(f"s{index}" for index in range(101)), "threshold": 80},
        {"threshold": 6},
        {"attempt": 0},
        {"stage": 0},
        {"round": -1},
        {"plan": b"short"},
        {"nonce": bytes(31)},
        {"previous": b""},
        {"words32": 0, "words64": 0},
        {"words32": -1},
        {"words32": MAXIMUM_WORDS32 + 1},
        {"words64": MAXIMUM_WORDS64 + 1},
        {"value_bound": -1},
        {"federation": "Fed"},
        {"cohort": ("silo-0", "silo-1", "silo-2", "silo-3", "Silo")},
    ],
    ids=repr,
)
def test_unsound_announcements(change: dict[str, Any]) -> None:
    with pytest.raises(SecaggError):
        Federation().announcement(**change)


def test_the_ring_bound_is_exact() -> None:
    """K * (bound + 1) < 2^30."""
    federation = Federation(size=4, threshold=3)
    federation.announcement(value_bound=(1 << 28) - 2)
    with pytest.raises(UnsoundError, match="2\\*\\*30"):
        federation.announcement(value_bound=(1 << 28) - 1)


@pytest.mark.parametrize(
    "change", [{"stage": 256}, {"round": 1 << 32}, {"attempt": 1 << 32}, {"deadline_ms": -1}, {"deadline_ms": 1 << 64}]
)
def test_numbers_that_do_not_fit_the_wire_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SecaggError):
        Federation().announcement(**change).encode()
