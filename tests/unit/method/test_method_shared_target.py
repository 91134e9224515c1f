"""A target head for all silos, fitted in the routing fit's own sums: what a patient adds, and what the head learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feddrm.contract.errors import MalformedError
from feddrm.contract.stages import LONGEST_RESIDUAL, residual_limit
from feddrm.method.patient_rows import patient_labels, patient_phi
from feddrm.method.probabilities import P_BITS, shortened
from feddrm.method.routing_fit import Terms, advance, contribution, head, initial_state, target_head

Integers = np.ndarray


def terms(silos: int, width: int, classes: int, fraction_bits: int = 16, clip_norm: float = LONGEST_RESIDUAL) -> Terms:
    sizes = tuple(100 * (k + 1) for k in range(silos))
    return Terms(silos, width, fraction_bits, 6.0, 0.9, 1, sizes, classes, clip_norm)


def with_head(of: Terms, weights: np.ndarray) -> Integers:
    state = initial_state(of)
    state[1 : 1 + of.words] = weights.reshape(-1)
    return state


def norm_squared(vector: Integers) -> int:
    return sum(int(entry) ** 2 for entry in vector.reshape(-1))


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 9), st.integers(2, 5), st.integers(0, 34), st.data())
def test_without_any_patient_the_joint_sum_is_less_by_at_most_the_sensitivity(
    seed: int, silos: int, width: int, classes: int, size: int, data: st.DataObject
) -> None:
    """Whatever the head is, with several records a patient, labels that contradict one another or are none of the
    classes, and embeddings that are huge or not finite."""
    clip_norm = data.draw(st.sampled_from([2**-6, 0.3, 1.0, LONGEST_RESIDUAL]))
    of = terms(silos, width, classes, data.draw(st.sampled_from([8, 16, 24])), clip_norm)
    generator = np.random.default_rng(seed)
    count = data.draw(st.integers(1, 12))
    embeddings = (generator.normal(size=(count, width)) * 10.0 ** data.draw(st.integers(-3, 30))).astype(np.float32)
    odd = data.draw(st.sampled_from([0.0, math.nan, math.inf, -math.inf, 3.4e38]))
    embeddings[generator.random(embeddings.shape) < 0.1] = odd
    patients = [b"%d" % generator.integers(0, 4) for _ in range(count)]
    targets = generator.integers(-1, classes + 1, count)
    state = with_head(of, np.rint(generator.uniform(-(2.0**size), 2.0**size, of.words)).astype(np.int64))
    silo = data.draw(st.integers(0, silos - 1))

    def total(chosen: Integers) -> Integers:
        names = [patient for patient, there in zip(patients, chosen.tolist(), strict=True) if there]
        phi, labels = patient_phi(embeddings[chosen], names), patient_labels(targets[chosen], names, classes)
        return contribution(of, state, phi, silo, labels)

    whole = total(np.ones(count, dtype=np.bool_))
    for patient in set(patients):
        others = np.array([other != patient for other in patients])
        assert (whole - total(others) == total(~others)).all()
        assert norm_squared(whole - total(others)) <= of.sensitivity**2


@pytest.mark.parametrize("clip_norm", [0.4, LONGEST_RESIDUAL])
@pytest.mark.parametrize("fraction_bits", [8, 20, 24])
@pytest.mark.parametrize("width", [1, 30, 500])
def test_the_worst_patient_is_shortened_to_the_sensitivity_and_kept(
    fraction_bits: int, width: int, clip_norm: float
) -> None:
    """A head that is sure of another silo and of another class: unshortened the norm were 2."""
    of = terms(5, width, 3, fraction_bits, clip_norm)
    weights = np.zeros((8, width + 1), dtype=np.int64)
    weights[[4, 7]] = 1 << 30
    phi = patient_phi(np.random.default_rng(width).random((1, width)).astype(np.float32), [b"a"])
    total = contribution(of, with_head(of, weights), phi, 0, patient_labels(np.zeros(1, np.int64), [b"a"], 3))
    assert 0.98 * 2**fraction_bits * clip_norm < math.sqrt(norm_squared(total)) <= of.sensitivity
    rows = total.reshape(8, -1)
    assert norm_squared(rows[:5]) == pytest.approx(norm_squared(rows[5:]), rel=0.04)


def test_the_shared_head_costs_no_more_sensitivity_than_its_rounding() -> None:
    for silos, width, classes, bits in [(3, 4, 2, 20), (8, 512, 10, 16), (100, 16, 100, 16)]:
        alone, both = terms(silos, width, 0, bits), terms(silos, width, classes, bits)
        assert 0 <= both.sensitivity - alone.sensitivity <= math.sqrt(both.words) / 2 - math.sqrt(alone.words) / 2 + 2


@given(st.integers(0, 2**32), st.integers(1, 6), st.floats(0.0, 1.0), st.floats(2**-6, LONGEST_RESIDUAL))
@example(0, 1, 0.5, LONGEST_RESIDUAL)
def test_no_residual_is_longer_than_the_clip_and_shorter_ones_stay(
    seed: int, rows: int, part: float, clip_norm: float
) -> None:
    limit = residual_limit(clip_norm)
    assert limit <= (clip_norm * 2**P_BITS) ** 2 * (1 + 1e-15)
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(rows, 7))
    values *= (
        2.0**P_BITS * generator.choice([part, 2**0.5, 2.0], size=(rows, 1)) / np.linalg.norm(values, axis=1)[:, None]
    )
    residual = np.trunc(values).astype(np.int64)
    found = shortened(residual, limit)
    for before, after in zip(residual, found, strict=True):
        assert norm_squared(after) <= limit
        if norm_squared(before) <= limit:
            assert (before == after).all()
        else:
            factor = math.sqrt(limit / norm_squared(before))
            assert np.abs(after - before * factor).max() < 2
            assert (np.sign(after) * np.sign(before) >= 0).all()


def test_without_classes_nothing_is_ever_shortened() -> None:
    """So that a plan without a shared head has the sums it always had."""
    corner = np.zeros((1, 3), dtype=np.int64)
    corner[0, :2] = 1 << P_BITS, -(1 << P_BITS)
    assert (shortened(corner, residual_limit(LONGEST_RESIDUAL)) == corner).all()


def test_labels_are_the_mean_over_records_that_have_one() -> None:
    patients = [b"a", b"b", b"a", b"a", b"c", b"d", b"d"]
    labels = patient_labels(np.array([0, 2, 1, 1, -1, 3, 2]), patients, 3)
    one = 1 << P_BITS
    assert labels.tolist() == [[one // 3, 2 * one // 3, 0], [0, 0, one], [0, 0, 0], [0, 0, one]]
    with pytest.raises(MalformedError, match="class numbers"):
        patient_labels(np.zeros(2), [b"a", b"b"], 3)  # type: ignore[arg-type]
    with pytest.raises(MalformedError, match="class numbers"):
        patient_labels(np.zeros(3, np.int64), [b"a", b"b"], 3)


def test_a_patient_without_a_label_moves_the_routing_rows_alone() -> None:
    of = terms(3, 4, 2)
    state = with_head(of, np.random.default_rng(0).integers(-(1 << 26), 1 << 26, of.words))
    phi = patient_phi(np.ones((1, 4), dtype=np.float32), [b"a"])
    nothing = patient_labels(np.array([-1]), [b"a"], 2)
    for labels in (None, nothing):
        rows = contribution(of, state, phi, 1, labels).reshape(5, 5)
        assert rows[:3].any()
        assert not rows[3:].any()
    alone = terms(3, 4, 0)
    assert (contribution(alone, with_head(alone, state[1 : 1 + alone.words]), phi, 1).reshape(3, 5) == rows[:3]).all()


def test_labels_that_are_more_than_one_or_do_not_fit_are_refused() -> None:
    of = terms(3, 4, 2)
    phi = patient_phi(np.ones((2, 4), dtype=np.float32), [b"a", b"b"])
    good = patient_labels(np.zeros(2, np.int64), [b"a", b"b"], 2)
    for labels in (good[:1], good[:, :1], good.astype(np.int32), good + 1, good - good - 1, good + (1 << 62)):
        with pytest.raises(MalformedError, match="labels"):
            contribution(of, initial_state(of), phi, 0, labels)
    with pytest.raises(ValueError, match="no target head"):
        target_head(terms(3, 4, 0), initial_state(terms(3, 4, 0)))
    for clip_norm in (0.0, 2**-7, 1.5, math.nan):
        with pytest.raises(ValueError, match="clip_norm"):
            terms(3, 4, 2, clip_norm=clip_norm)
    for classes in (-1, 1, 4097):
        with pytest.raises(ValueError, match="classes"):
            terms(3, 4, classes)


def test_both_heads_are_learnt_beside_each_other() -> None:
    """Two silos of three classes in other proportions, four kinds of patients: the shared head tells the probability of
    a class given the kind over all silos, and the router what it told alone."""
    counts = np.array(
        [[[90, 10, 0, 50], [10, 50, 40, 50], [0, 40, 60, 0]], [[10, 30, 0, 5], [0, 10, 80, 5], [90, 60, 20, 90]]]
    )
    sizes = tuple(int(each.sum()) for each in counts)
    of = Terms(2, 4, 20, 3.0, 0.9, 400, sizes, 3)
    alone = Terms(2, 4, 20, 3.0, 0.9, 400, sizes)
    state, state_alone = initial_state(of), initial_state(alone)
    silos = []
    for table in counts:
        kinds = np.repeat(np.tile(np.arange(4), 3), table.reshape(-1))
        targets = np.repeat(np.repeat(np.arange(3), 4), table.reshape(-1))
        names = [b"%d" % number for number in range(len(kinds))]
        silos.append((patient_phi(np.eye(4, dtype=np.float32)[kinds], names), patient_labels(targets, names, 3)))
    for _ in range(600):
        sums = [contribution(of, state, phi, silo, labels) for silo, (phi, labels) in enumerate(silos)]
        state = advance(of, state, sums[0] + sums[1])
        sums = [contribution(alone, state_alone, phi, silo) for silo, (phi, _) in enumerate(silos)]
        state_alone = advance(alone, state_alone, sums[0] + sums[1])
    weight, bias = target_head(of, state)
    assert np.abs(weight.sum(axis=0)).max() <= 3
    logits = (weight + bias[:, None]) / 2**24 / math.sqrt(2)
    found = np.exp(logits) / np.exp(logits).sum(axis=0)
    truth = counts.sum(axis=0) / counts.sum(axis=(0, 1))
    assert np.abs(found - truth).max() < 0.02
    for ours, theirs in zip(head(of, state), head(alone, state_alone), strict=True):
        assert np.abs(ours - theirs).max() / 2**24 < 0.1
