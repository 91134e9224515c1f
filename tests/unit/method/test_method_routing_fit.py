from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_terms import Integers, terms, with_head

from feddrm.contract.errors import MalformedError
from feddrm.method.probabilities import softmax
from feddrm.method.routing_fit import Terms, advance, contribution, head, initial_state, patient_phi
from feddrm.method.update import MODEL_LIMIT
from privacy.discrete import DiscreteGaussianSource


@given(st.integers(0, 2**32), st.floats(0.01, 30))
def test_probabilities_are_a_softmax_that_never_sums_to_more_than_one(seed: int, size: float) -> None:
    logits = np.random.default_rng(seed).normal(size=(20, 6)) * size
    integers = np.rint(logits * 2.0**44).astype(np.int64)
    found = softmax(integers)
    right = np.exp(logits - logits.max(axis=1, keepdims=True))
    right /= right.sum(axis=1, keepdims=True)
    assert np.abs(found / 2**24 - right).max() < 4e-6
    assert found.min() >= 0
    assert found.sum(axis=1).max() <= 1 << 24


def plain_advance(of: Terms, state: list[int], total: list[int]) -> list[int]:
    """`advance` in Python's own integers, written from its description."""
    words = of.words
    count, weights, velocity, average = state[0], state[1 : 1 + words], state[1 + words : 1 + 2 * words], state[-words:]
    shift = 24 - of.fraction_bits
    momentum, rate = round(of.momentum * 65536), round(of.step_size * 65536)
    after: tuple[list[int], list[int], list[int]] = ([], [], [])
    for w, v, a, t in zip(weights, velocity, average, total, strict=True):
        t = max(-(1 << (61 - shift)), min(1 << (61 - shift), t))
        gradient = (t * (1 << shift) + sum(of.public_sizes) // 2) // sum(of.public_sizes)
        v = max(-(1 << 38), min(1 << 38, (momentum * v + 32768) // 65536 + gradient))
        w = max(-(1 << 34), min(1 << 34, w - (rate * v + 32768) // 65536))
        after[0].append(w)
        after[1].append(v)
        after[2].append(a + w if count + 1 >= of.average_from else a)
    return [count + 1, *after[0], *after[1], *after[2]]


@given(
    st.integers(0, 2**32),
    st.integers(0, 63),
    st.sampled_from([8, 15, 24]),
    st.sampled_from([0.0, 0.5, 0.999]),
    st.sampled_from([2.0**-16, 1.0, 127.0]),
    st.sampled_from([2, 300, 15 * 10**8]),
)
def test_the_update_is_that_of_plain_integers_whatever_the_total(
    seed: int, bits: int, fraction_bits: int, momentum: float, step_size: float, patients: int
) -> None:
    generator = np.random.default_rng(seed)
    of = terms(
        2,
        3,
        fraction_bits=fraction_bits,
        momentum=momentum,
        step_size=step_size,
        public_sizes=(patients // 3 or 1, patients - patients // 3),
    )
    state = initial_state(of)
    plain = state.tolist()
    for _ in range(6):
        total = generator.integers(-(1 << bits), (1 << bits) - 1, of.words, endpoint=True, dtype=np.int64)
        state = advance(of, state, total)
        plain = plain_advance(of, plain, total.tolist())
        assert state.tolist() == plain
        assert int(np.abs(state).max()) <= MODEL_LIMIT


class Witness(np.ndarray[Any, Any]):
    """An array that refuses every operation whose result a BLAS, a vector width or an order could change."""

    seen: ClassVar[set[str]] = set()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [value.view(np.ndarray) if isinstance(value, Witness) else value for value in inputs]
        out = options.pop("out", ())
        assert ufunc is not np.matmul
        assert all(np.asarray(value).dtype.kind in "iub" for value in plain)
        result = getattr(ufunc, method)(*plain, **options)
        assert np.asarray(result).dtype.kind in "iub"
        Witness.seen.add(ufunc.__name__)
        if out:
            out[0].view(np.ndarray)[...] = result
            return out[0]
        return result.view(Witness) if isinstance(result, np.ndarray) else result


def test_what_is_shared_has_neither_floats_nor_products_of_matrices() -> None:
    of = terms()
    generator = np.random.default_rng(3)
    state = initial_state(of).view(Witness)
    Witness.seen = set()
    for _ in range(4):
        state = advance(of, state, generator.integers(-(10**9), 10**9, of.words).view(Witness)).view(Witness)
    head(of, state)
    assert {"multiply", "floor_divide", "right_shift"} <= Witness.seen


def fit(of: Terms, phi: list[Integers], sums: int, noise: Callable[[], Integers] | None = None) -> Integers:
    state = initial_state(of)
    for _ in range(sums):
        total = np.sum([contribution(of, state, rows, silo) for silo, rows in enumerate(phi)], axis=0)
        state = advance(of, state, total if noise is None else total + noise())
    return state


# Three silos over four kinds of patients, and how many of each kind: sizes differ, and so do the densities.
COUNTS = np.array([[400, 200, 100, 100], [100, 100, 100, 100], [100, 300, 200, 1000]])


def known_densities(**changes: Any) -> tuple[Terms, list[Integers], np.ndarray]:
    of = terms(3, 4, public_sizes=tuple(COUNTS.sum(axis=1).tolist()), step_size=6.0, average_from=250, **changes)
    kinds = np.eye(4, dtype=np.float32)
    phi = [patient_phi(np.repeat(kinds, row, axis=0), [b"%d" % index for index in range(row.sum())]) for row in COUNTS]
    densities = COUNTS / COUNTS.sum(axis=1, keepdims=True)
    return of, phi, np.log(densities) - np.log(densities).mean(axis=0)


def log_ratios(of: Terms, state: Integers) -> np.ndarray:
    weight, bias = head(of, state)
    # Kind x is the x-th unit vector: [g, 1] has the norm sqrt(2).
    return (weight + bias[:, None]) / 2**24 / math.sqrt(2)


def test_known_log_density_ratios_are_recovered_whatever_the_sizes() -> None:
    of, phi, truth = known_densities()
    found = log_ratios(of, fit(of, phi, 300))
    assert np.abs(found - found.mean(axis=0) - truth).max() < 0.01
    # Silo 2 is the smallest and holds the fewest patients of kind 2, and yet it is the right place for that kind.
    assert COUNTS[:, 2].argmax() == 2
    assert found[:, 2].argmax() == truth[:, 2].argmax() == 1


def test_without_the_offset_the_head_would_hold_the_priors() -> None:
    of, phi, truth = known_densities()
    equal = terms(3, 4, public_sizes=(800, 800, 800), step_size=6.0, average_from=250)
    found = log_ratios(equal, fit(equal, phi, 300))
    prior = np.log(COUNTS.sum(axis=1, keepdims=True))
    assert np.abs(found - truth - (prior - prior.mean())).max() < 0.01
    assert of.words == equal.words


def test_noise_spoils_no_more_than_its_size() -> None:
    of, phi, truth = known_densities()
    source = DiscreteGaussianSource(lambda size: bytes(range(size)) if size != 32 else next(keys))
    keys = (bytes([number]) * 32 for number in range(256))
    of = terms(3, 4, public_sizes=of.public_sizes, step_size=4.0, average_from=40)
    found = log_ratios(of, fit(of, phi, 200, lambda: source.sample(of.words, 5 * of.sensitivity)))
    assert np.abs(found - found.mean(axis=0) - truth).max() < 0.5
    assert (found.argmax(axis=0)[[0, 3]] == truth.argmax(axis=0)[[0, 3]]).all()


def test_the_head_has_mean_zero_over_the_silos_and_averages_from_its_sum_on() -> None:
    of, phi, _ = known_densities(momentum=0.0)
    of = terms(3, 4, public_sizes=of.public_sizes, average_from=2, momentum=0.0)
    first = fit(of, phi, 1)
    assert not head(of, initial_state(of))[0].any()
    weight, bias = head(of, first)
    assert np.abs(weight.sum(axis=0)).max() <= 3
    assert abs(int(bias.sum())) <= 3
    second, third = fit(of, phi, 2), fit(of, phi, 3)
    mean = (second[1 : 1 + of.words] + third[1 : 1 + of.words]) // 2
    rows = mean.reshape(3, 5)
    assert np.abs(head(of, third)[0] - (rows - rows.mean(axis=0))[:, :-1]).max() <= 2


@pytest.mark.parametrize(
    "changes",
    [
        {"fraction_bits": 7},
        {"fraction_bits": 25},
        {"step_size": 0.0},
        {"step_size": math.nan},
        {"momentum": 1.0},
        {"average_from": 0},
        {"public_sizes": (1, 2)},
        {"public_sizes": (1, 2, 0)},
        {"silos": 1},
        {"width": 0},
    ],
)
def test_terms_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"range|public size"):
        terms(**changes)


def test_what_does_not_fit_is_refused() -> None:
    of = terms()
    state = initial_state(of)
    beyond = with_head(of, np.full(of.words, (1 << 34) + 1))
    phi = patient_phi(np.ones((2, 4), dtype=np.float32), [b"a", b"b"])
    for attempt in (
        lambda: patient_phi(np.ones((2, 4)), [b"a", b"b"]),  # type: ignore[arg-type]
        lambda: patient_phi(np.ones((2, 4), dtype=np.float32), [b"a"]),
        lambda: contribution(of, state[:-1], phi, 0),
        lambda: contribution(of, beyond, phi, 0),
        lambda: contribution(of, state, phi[:, :-1], 0),
        lambda: contribution(of, state, phi, 3),
        lambda: advance(of, state, np.zeros(of.words + 1, dtype=np.int64)),
        lambda: advance(of, state, np.zeros(of.words, dtype=np.int32)),  # type: ignore[arg-type]
        lambda: advance(of, state - 1, np.zeros(of.words, dtype=np.int64)),
        lambda: head(of, state.astype(np.float64)),  # type: ignore[arg-type]
    ):
        with pytest.raises(MalformedError):
            attempt()
