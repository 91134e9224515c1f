"""How far one patient moves a silo's contribution to the routing fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_terms import Integers, terms, with_head

from feddrm.contract.errors import MalformedError
from feddrm.method import routing_fit
from feddrm.method.routing_fit import PHI_BITS, Terms, contribution, initial_state, patient_phi


def norm_squared(vector: Integers) -> int:
    return sum(int(entry) ** 2 for entry in vector.reshape(-1))


@st.composite
def silos_data(draw: st.DrawFn) -> tuple[Terms, Integers, np.ndarray, list[bytes], int]:
    of = terms(draw(st.integers(2, 6)), draw(st.integers(1, 9)), fraction_bits=draw(st.sampled_from([8, 16, 24])))
    count = draw(st.integers(1, 12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    embeddings = (generator.normal(size=(count, of.width)) * 10.0 ** draw(st.integers(-3, 30))).astype(np.float32)
    odd = draw(st.sampled_from([0.0, math.nan, math.inf, -math.inf, 3.4e38]))
    embeddings[generator.random(embeddings.shape) < 0.1] = odd
    patients = [b"%d" % generator.integers(0, 4) for _ in range(count)]
    size = 2.0 ** draw(st.integers(0, 34))
    weights = np.rint(generator.uniform(-size, size, of.words)).astype(np.int64)
    return of, with_head(of, weights), embeddings, patients, draw(st.integers(0, of.silos - 1))


@given(silos_data())
def test_without_any_patient_the_sum_is_less_by_at_most_the_sensitivity(
    data: tuple[Terms, Integers, np.ndarray, list[bytes], int],
) -> None:
    of, state, embeddings, patients, silo = data
    whole = contribution(of, state, patient_phi(embeddings, patients), silo)
    for patient in set(patients):
        others = np.array([other != patient for other in patients])
        rest_of_them = [other for other in patients if other != patient]
        rest = contribution(of, state, patient_phi(embeddings[others], rest_of_them), silo)
        alone = contribution(of, state, patient_phi(embeddings[~others], [patient] * int((~others).sum())), silo)
        assert (whole - rest == alone).all()
        assert norm_squared(whole - rest) <= of.sensitivity**2


@pytest.mark.parametrize("fraction_bits", [8, 20, 24])
@pytest.mark.parametrize("width", [1, 30, 500])
def test_the_worst_patient_comes_near_the_sensitivity_and_is_kept(fraction_bits: int, width: int) -> None:
    of = terms(5, width, fraction_bits=fraction_bits)
    # A head that is sure of another silo than the patient's.
    weights = np.zeros((5, width + 1), dtype=np.int64)
    weights[4] = 1 << 30
    embeddings = np.random.default_rng(width).random((1, width)).astype(np.float32)
    total = contribution(of, with_head(of, weights), patient_phi(embeddings, [b"a"]), 0)
    assert 0.99 * 2**fraction_bits * math.sqrt(2) < math.sqrt(norm_squared(total)) <= of.sensitivity


def test_the_sensitivity_is_what_the_design_says() -> None:
    for words, bits in [((3, 4), 20), ((8, 512), 8), ((100, 16), 24)]:
        of = terms(*words, fraction_bits=bits)
        least = 2**bits * math.sqrt(2) + math.sqrt(of.words) / 2
        assert least <= of.sensitivity <= least + 2.5


def test_a_patient_of_many_records_counts_as_one_of_their_mean() -> None:
    generator = np.random.default_rng(1)
    embeddings = generator.normal(size=(7, 4)).astype(np.float32)
    phi = patient_phi(embeddings, [b"a", b"b", b"a", b"a", b"b", b"a", b"c"])
    assert phi.shape == (3, 5)
    normalised = np.concatenate([embeddings, np.ones((7, 1))], axis=1)
    normalised /= np.linalg.norm(normalised, axis=1, keepdims=True)
    expected = np.stack([normalised[[0, 2, 3, 5]].mean(axis=0), normalised[[1, 4]].mean(axis=0), normalised[6]])
    assert np.abs(phi / 2**PHI_BITS - expected).max() < 2.0 ** (2 - PHI_BITS)
    assert max(norm_squared(row) for row in phi) <= 1 << (2 * PHI_BITS)


def test_features_longer_than_one_are_refused() -> None:
    phi = np.full((1, 5), 1 << PHI_BITS, dtype=np.int64)
    with pytest.raises(MalformedError, match="longer"):
        contribution(terms(), initial_state(terms()), phi, 0)
    with pytest.raises(MalformedError, match="longer"):
        contribution(terms(), initial_state(terms()), np.full((1, 5), -(1 << 62), dtype=np.int64), 0)


def test_no_vector_exceeds_its_bound() -> None:
    of = terms(4, 6)
    phi = patient_phi(np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32), [b"%d" % n for n in range(50)])
    assert np.abs(contribution(of, initial_state(of), phi, 1)).max() <= routing_fit.bound(of, 50, 1) - 32
    assert routing_fit.bound(of, 10**6, 1 << 40) < 1 << 62


def test_an_empty_silo_contributes_zeros() -> None:
    of = terms()
    empty = patient_phi(np.zeros((0, 4), dtype=np.float32), [])
    assert empty.shape == (0, 5)
    assert not contribution(of, initial_state(of), empty, 0).any()
