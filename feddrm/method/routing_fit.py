"""Stage 2: the routing head fitted on frozen features by sums that nobody can look into (design section 7).

A silo holds patients of its own class only, so that local training would merely push its own logit up. Instead every
network round is one full-batch gradient step: each silo sums its patients' gradients, secure aggregation sums the
silos', noise is added in shares.

Everything that privacy depends on is done in integers, so that what one patient adds is the same to the last bit
whoever else is in the data, and sensitivity holds for what is summed and not for reals that were rounded afterwards:

    phi_i       normalised [g(x), 1], the mean over a patient's records; ||phi_i|| <= 1
    logits      W phi_i + log m, with log m_k fixed: the prior enters as an offset, so that W phi is the log density
                ratio itself. Its arg max is that of W [g(x), 1]: whoever routes needs neither norms nor priors
    p_i         softmax; rounded down, so that p_i >= 0 and the entries sum to at most 1
    z_i         round(2**f (p_i - e_k) phi_i^T): ||p_i - e_k||**2 <= 2, so ||z_i|| <= D = ceil(2**f sqrt(2) + sqrt(n)/2)
                for n entries; a z_i above D would be left out
    total       sum of all z_i and of the noise

`advance` is what all silos and the coordinator do with a total. It has no product of matrices and no float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import MalformedError
from feddrm.contract.stages import fit_sensitivity
from feddrm.method.layout import MODEL_FRACTION_BITS

Integers = npt.NDArray[np.int64]

# Of phi: an entry is an integer multiple of 2**-20, so that ||phi|| <= 2**20.
PHI_BITS: Final = 20
_LOGIT_BITS: Final = PHI_BITS + MODEL_FRACTION_BITS
_P_BITS: Final = 24
_EXP_BITS: Final = 31
_EXP_STEPS: Final = 10
_RATE_BITS: Final = 16
# Saturation keeps every product inside int64, whatever a total is: |weight| <= 1024, |velocity| <= 2**14.
_WEIGHT_LIMIT: Final = 1 << 34
_VELOCITY_LIMIT: Final = 1 << 38
_BLOCK_ENTRIES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Terms:
    """What the plan fixes of a fit.

    Args:
        silos: K, 2 to 100.
        width: d, of an embedding, 1 to 2**14.
        fraction_bits: f, 8 to 24.
        step_size: of the gradient's mean over the public number of patients; 2**-16 to 127.
        momentum: 0 to 0.999; velocity = momentum * velocity + gradient.
        average_from: the first sum, counted from 1, whose head enters the average.
        public_sizes: m_k, the silos' public approximate numbers of patients, in the plan's order, 1 to 10**9.

    Raises:
        ValueError: a value out of its range.
    """

    silos: int
    width: int
    fraction_bits: int
    step_size: float
    momentum: float
    average_from: int
    public_sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (2 <= self.silos <= 100 and 1 <= self.width <= 1 << 14 and 8 <= self.fraction_bits <= 24):
            raise ValueError("silos, width or fraction_bits is out of range")
        if not (2.0**-_RATE_BITS <= self.step_size <= 127 and 0 <= self.momentum <= 0.999 and self.average_from >= 1):
            raise ValueError("step_size, momentum or average_from is out of range")
        if len(self.public_sizes) != self.silos or not all(1 <= size <= 10**9 for size in self.public_sizes):
            raise ValueError("every silo has one public size from 1 to 10**9")

    @property
    def words(self) -> int:
        """Entries of a sum: K (d + 1), row-major."""
        return self.silos * (self.width + 1)

    @property
    def state_size(self) -> int:
        """Entries of a state: number of sums, head, velocity, sum of heads."""
        return 1 + 3 * self.words

    @property
    def sensitivity(self) -> int:
        """D: the L2 norm by which one patient moves a silo's sum of integers, at most."""
        return fit_sensitivity(self.words, self.fraction_bits)


def bound(terms: Terms, patients: int, scale: int) -> int:
    """The largest entry, in size, of one silo's contribution with noise of N_Z(0, scale**2) on it."""
    return patients * terms.sensitivity + 16 * (scale + 1)


def patient_phi(embeddings: npt.NDArray[np.float32], patients: Sequence[bytes]) -> Integers:
    """Every patient's phi, int64[P, d + 1] in PHI_BITS, in the order of first appearance.

    A record that is not finite counts as zeros. Every operation is exact or correctly rounded by IEEE 754 and keeps to
    one record, so that a patient's row does not depend on others' records.

    Args:
        embeddings: float32[n, d] of the frozen trunk, each computed without the others (`model.embed_each`).
        patients: of each record.

    Raises:
        MalformedError: not float32[n, d] with n patients.
    """
    if embeddings.ndim != 2 or embeddings.dtype != np.float32 or len(embeddings) != len(patients):
        raise MalformedError("Embeddings are rows of float32 values, one patient each.")
    columns = embeddings.astype(np.float64).T
    usable = np.isfinite(columns).all(axis=0)
    columns = np.where(usable, columns, 0.0)
    squares = np.ones(len(patients))
    for column in columns:
        squares += column * column
    # Rounded towards zero and aimed below 1: the norm of the integers stays within 2**20 in spite of all roundings.
    scale = (2.0**PHI_BITS) * (1.0 - 2.0**-30) / np.sqrt(squares)
    rows = np.empty((len(patients), len(columns) + 1), dtype=np.int64)
    for index, column in enumerate([*columns, np.ones(len(patients))]):
        rows[:, index] = np.trunc(column * scale)
    rows[~usable] = 0
    numbers: dict[bytes, int] = {}
    owners = np.array([numbers.setdefault(patient, len(numbers)) for patient in patients], dtype=np.intp)
    totals = np.zeros((len(numbers), rows.shape[1]), dtype=np.int64)
    np.add.at(totals, owners, rows)
    counts = np.bincount(owners, minlength=len(numbers))[:, None]
    return np.sign(totals) * (np.abs(totals) // counts)


def initial_state(terms: Terms) -> Integers:
    """The state before the first sum: zeros, int64[state_size]."""
    return np.zeros(terms.state_size, dtype=np.int64)


def contribution(terms: Terms, state: Integers, phi: Integers, silo: int) -> Integers:
    """A silo's sum of its patients' gradients at the state's head, int64[words], *without noise*.

    Without any one patient it is the same less that patient's z_i, and ||z_i|| <= terms.sensitivity.

    Args:
        terms: of the plan.
        state: int64[state_size].
        phi: int64[P, d + 1] of `patient_phi`.
        silo: this silo's place in the plan.

    Raises:
        MalformedError: shapes or types do not fit, or a row of phi is longer than 2**PHI_BITS.
    """
    head = _split(terms, state)[1].reshape(terms.silos, -1)
    if phi.dtype != np.int64 or phi.ndim != 2 or phi.shape[1] != terms.width + 1 or not 0 <= silo < terms.silos:
        raise MalformedError("The features do not fit the terms of the routing fit.")
    total = np.zeros((terms.silos, terms.width + 1), dtype=np.int64)
    block = max(1, _BLOCK_ENTRIES // terms.words)
    for start in range(0, len(phi), block):
        rows = phi[start : start + block]
        if (np.abs(rows).max(axis=1) > 1 << PHI_BITS).any() or ((rows * rows).sum(axis=1) > 1 << (2 * PHI_BITS)).any():
            raise MalformedError("A patient's features are longer than 1.")
        # Products of int64 are not BLAS's, and exact.
        residual = _softmax(rows @ head.T + _offsets(terms.public_sizes))
        residual[:, silo] -= 1 << _P_BITS
        shift = PHI_BITS + _P_BITS - terms.fraction_bits
        gradients = (residual[:, :, None] * rows[:, None, :] + (1 << (shift - 1))) >> shift
        norms = (gradients * gradients).sum(axis=(1, 2))
        # Holds for every row, as the module's text shows. Should it ever not, the patient is left out.
        total += gradients[norms <= terms.sensitivity**2].sum(axis=0)
    return total.reshape(-1)


def advance(terms: Terms, state: Integers, total: Integers) -> Integers:
    """The next state: one step of momentum on a published total, the same bytes wherever it is computed.

    Gradient = total / (2**f * sum of m_k), whoever is in the sum. All divisions round down after half a unit was
    added; weights and velocity saturate.

    Args:
        terms: of the plan.
        state: int64[state_size].
        total: int64[words].

    Raises:
        MalformedError: shapes or types do not fit.
    """
    count, head, velocity, average = _split(terms, state)
    if total.dtype != np.int64 or total.shape != (terms.words,):
        raise MalformedError(f"A sum of {total.shape} {total.dtype} is not one of {terms.words} int64.")
    patients = sum(terms.public_sizes)
    shift = MODEL_FRACTION_BITS - terms.fraction_bits
    limit = 1 << (61 - shift)
    gradient = ((np.clip(total, -limit, limit) << shift) + patients // 2) // patients
    half = 1 << (_RATE_BITS - 1)
    momentum = round(terms.momentum * (1 << _RATE_BITS))
    rate = round(terms.step_size * (1 << _RATE_BITS))
    kept = (momentum * velocity + half) >> _RATE_BITS
    velocity = np.clip(kept + gradient, -_VELOCITY_LIMIT, _VELOCITY_LIMIT)
    head = np.clip(head - ((rate * velocity + half) >> _RATE_BITS), -_WEIGHT_LIMIT, _WEIGHT_LIMIT)
    if count + 1 >= terms.average_from:
        average = average + head
    return np.concatenate([np.array([count + 1], dtype=np.int64), head, velocity, average])


def head(terms: Terms, state: Integers) -> tuple[Integers, Integers]:
    """The fitted head: weight int64[K, d] and bias int64[K] in MODEL_FRACTION_BITS, each of mean zero over the silos.

    The average of the heads from `average_from` on; before that sum, the head as it is. Their logits are log density
    ratios times the norm of [g(x), 1], up to what all silos share: the arg max is the route.

    Raises:
        MalformedError: shapes or types do not fit.
    """
    count, last, _, average = _split(terms, state)
    averaged = count - terms.average_from + 1
    values = (average + averaged // 2) // averaged if averaged > 0 else last
    rows = values.reshape(terms.silos, -1)
    # What is added to all silos alike is noise only, and routes nothing.
    rows = rows - (rows.sum(axis=0) + terms.silos // 2) // terms.silos
    return rows[:, :-1].copy(), rows[:, -1].copy()


def _split(terms: Terms, state: Integers) -> tuple[int, Integers, Integers, Integers]:
    if state.dtype != np.int64 or state.shape != (terms.state_size,):
        raise MalformedError(f"A state of {state.shape} {state.dtype} is not one of {terms.state_size} int64.")
    count, (first, second, third) = int(state[0]), np.split(state[1:], 3)
    within = (
        int(np.abs(first).max(initial=0)) <= _WEIGHT_LIMIT and int(np.abs(second).max(initial=0)) <= _VELOCITY_LIMIT
    )
    if count < 0 or not within:
        raise MalformedError("A state has an entry outside its range.")
    return count, first, second, third


@cache
def _offsets(sizes: tuple[int, ...]) -> Integers:
    """log m_k less the largest, int64[K] in _LOGIT_BITS."""
    largest = math.log(max(sizes))
    return np.array([round((math.log(size) - largest) * 2.0**_LOGIT_BITS) for size in sizes], dtype=np.int64)


@cache
def _exponentials() -> tuple[Integers, Integers]:
    """exp(-i / 2**10) until it vanishes, and exp(-j / 2**20) for j < 2**10, both in _EXP_BITS."""
    step = 1 << _EXP_STEPS
    coarse = [round(math.exp(-i / step) * 2.0**_EXP_BITS) for i in range(22 * step)]
    fine = [round(math.exp(-j / step**2) * 2.0**_EXP_BITS) for j in range(step)]
    return np.array([*coarse, 0], dtype=np.int64), np.array(fine, dtype=np.int64)


def _softmax(logits: Integers) -> Integers:
    """Probabilities int64[n, K] in _P_BITS, rounded down, of logits int64[n, K] in _LOGIT_BITS, each row by itself.

    By tables instead of np.exp, whose last bit may depend on an entry's place in its array.
    """
    coarse, fine = _exponentials()
    below = (logits.max(axis=1, keepdims=True) - logits) >> (_LOGIT_BITS - 2 * _EXP_STEPS)
    upper = np.minimum(below >> _EXP_STEPS, len(coarse) - 1)
    odds = (coarse[upper] * fine[below & ((1 << _EXP_STEPS) - 1)]) >> _EXP_BITS
    probabilities: Integers = (odds << _P_BITS) // odds.sum(axis=1, keepdims=True)
    return probabilities
