from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.contract.errors import MalformedError
from feddrm.method.evaluation import FRACTION_BITS, SENSITIVITY, Figures, choose, contribution, held_out
from privacy.discrete import DiscreteGaussianSource

ONE = 1 << FRACTION_BITS
KEY = bytes(range(32))

# (patient, its own silo's model is right, routed here, what a querier is told is right)
Record = tuple[bytes, bool, bool, bool]
records = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.booleans(), st.booleans(), st.booleans()),
    min_size=1,
    max_size=12,
)


def parts(rows: list[Record]) -> np.ndarray[Any, Any]:
    correct, routed, answered = (np.array([row[place] for row in rows], bool) for place in (1, 2, 3))
    return contribution([row[0] for row in rows], correct, routed, answered)


@given(records)
def test_without_any_patient_the_vector_is_less_by_at_most_two(rows: list[Record]) -> None:
    for patient in {row[0] for row in rows}:
        alone = parts([row for row in rows if row[0] == patient])
        rest = parts([row for row in rows if row[0] != patient])
        assert (parts(rows) - rest == alone).all()
        assert sum(int(entry) ** 2 for entry in alone) <= SENSITIVITY**2


def test_a_patient_that_is_right_and_routed_always_reaches_the_sensitivity() -> None:
    assert parts([(b"a", True, True, True)] * 5).tolist() == [ONE] * 4
    assert 4 * ONE**2 == SENSITIVITY**2


def test_a_patient_counts_once_with_the_mean_of_its_records() -> None:
    rows = [
        (b"a", True, True, True),
        (b"a", True, False, True),
        (b"a", False, True, False),
        (b"a", False, False, False),
        (b"b", True, False, True),
    ]
    assert parts(rows).tolist() == [2 * ONE, ONE // 2 + ONE, ONE // 2, ONE // 4]
    assert parts([]).tolist() == [0, 0, 0, 0]


def test_what_a_querier_is_told_counts_where_it_is_routed_and_the_own_model_elsewhere() -> None:
    told = [(b"a", False, True, True), (b"b", True, True, False), (b"c", True, False, True)]
    assert parts(told).tolist() == [3 * ONE, 2 * ONE, 2 * ONE, ONE]


def test_who_is_held_out_depends_on_key_patient_and_share_alone() -> None:
    patients = [b"%d" % number for number in range(20_000)]
    held = held_out(KEY, patients, 0.3)
    assert abs(held.mean() - 0.3) < 4 * math.sqrt(0.21 / 20_000)
    assert (held_out(KEY, patients[::-1], 0.3) == held[::-1]).all()
    assert (held_out(KEY, patients[7:], 0.3) == held[7:]).all()
    # All records of a patient go one way, and a smaller share takes of those of a larger one.
    assert (held_out(KEY, [patient for patient in patients for _ in range(2)], 0.3) == held.repeat(2)).all()
    assert not (held_out(KEY, patients, 0.2) & ~held).any()
    other = held_out(KEY[::-1], patients, 0.3)
    assert abs((held & other).mean() - 0.09) < 4 * math.sqrt(0.09 / 20_000)


@pytest.mark.parametrize(("key", "share"), [(KEY[:-1], 0.3), (b"", 0.3), (KEY, 0.0), (KEY, 1.0), (KEY, math.nan)])
def test_a_wrong_key_or_share_is_refused(key: bytes, share: float) -> None:
    with pytest.raises(ValueError, match="held-out"):
        held_out(key, [b"a"], share)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 30))
def test_a_choice_depends_on_its_row_alone(seed: int, width: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    weight, bias, rows = (
        generator.normal(size=shape).astype(np.float32) for shape in ((5, width), (5,), (count, width))
    )
    chosen = choose(weight, bias, rows)
    assert [int(choose(weight, bias, rows[index : index + 1])[0]) for index in range(count)] == chosen.tolist()
    logits = rows.astype(np.float64) @ weight.T.astype(np.float64) + bias
    assert (logits.max(axis=1) - logits[np.arange(count), chosen] < 1e-9).all()


def test_a_head_that_does_not_fit_is_refused() -> None:
    with pytest.raises(MalformedError):
        choose(np.zeros((3, 4), np.float32), np.zeros(3, np.float32), np.zeros((2, 5), np.float32))
    with pytest.raises(MalformedError):
        contribution([b"a"], np.zeros(1, bool), np.zeros(1, bool), np.zeros(2, bool))
    with pytest.raises(MalformedError):
        contribution([b"a"], np.zeros(2, bool), np.zeros(2, bool), np.zeros(2, bool))
    with pytest.raises(MalformedError):
        Figures.of(np.zeros(3, dtype=np.int64), 1.0)


def source(seed: int) -> DiscreteGaussianSource:
    entropy: Callable[[int], bytes] = np.random.default_rng(seed).bytes
    return DiscreteGaussianSource(entropy)


@pytest.mark.parametrize("share", [0.05, 0.7, 1.0])
def test_published_figures_lie_within_their_stated_deviations_of_the_truth(share: float) -> None:
    silos, patients, scale, runs = 3, 80, SENSITIVITY, 150
    generator = np.random.default_rng(5)
    scores: list[list[float]] = []
    for run in range(runs):
        correct = generator.random((silos, patients)) < share
        routed = generator.random((silos, patients)) < share
        names = [b"%d" % number for number in range(patients)]
        noise = source(run)
        total = sum(
            (contribution(names, correct[k], routed[k], correct[k]) + noise.sample(4, scale) for k in range(silos)),
            np.zeros(4, dtype=np.int64),
        )
        figures = Figures.of(total, scale * math.sqrt(silos))
        truth = (correct.mean(), routed.mean(), (correct & routed).mean())
        scores.append([])
        for figure, true in zip((figures.own_correct, figures.routed_to_own, figures.both), truth, strict=True):
            assert figure.value is not None
            assert figure.std is not None
            scores[-1].append((figure.value - float(true)) / figure.std)
    values = np.array(scores)
    assert np.abs(values).max() < 4
    # Neither too wide nor too narrow; where the truth is 1, what lies above is cut off.
    assert share == 1.0 or abs(values.std() - 1) < 0.12
    assert abs(np.median(values[:, 0])) < 0.3


def test_figures_are_withheld_where_noise_outweighs_the_patients() -> None:
    few = Figures.of(np.array([9 * ONE, 5 * ONE, 5 * ONE, 5 * ONE]), 1.0 * ONE)
    assert few.own_correct.value is None
    assert few.own_correct.std is None
    assert few.both.value is None
    for count in (0, -5 * ONE):
        assert Figures.of(np.array([count, 0, 0, 0]), 0.0).own_correct.value is None
    clear = Figures.of(np.array([10 * ONE, 12 * ONE, -ONE, 5 * ONE]), 1.0 * ONE)
    assert (clear.own_correct.value, clear.routed_to_own.value, clear.both.value) == (1.0, 0.0, 0.5)
    assert clear.both.std == pytest.approx(0.1 * math.sqrt(1.25))
