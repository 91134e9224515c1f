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
    r_i         p_i - e_k, whose norm is at most sqrt(2), shortened to the plan's clip_norm c where it is longer
    z_i         round(2**f r_i phi_i^T), so ||z_i|| <= D = ceil(2**f c + sqrt(n)/2) for n entries; a z_i above D would
                be left out
    total       sum of all z_i and of the noise

Beside the silos a fit may have classes: C rows more, one target head for all silos, fitted on the same features in the
same sums. Then r_i = (p_i - e_k, q_i - y_i), with q_i the softmax over classes and y_i the mean over the patient's
records of their labels' unit vectors, and it is this pair that is shortened: with c = sqrt(2), where it takes a patient
about whom both heads are almost as wrong as can be, D is what it is for the silos alone, and so is the noise.

`advance` is what all silos and the coordinator do with a total. It has no product of matrices and no float.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import MalformedError
from feddrm.contract.stages import LONGEST_RESIDUAL, fit_sensitivity, residual_limit
from feddrm.method.layout import MODEL_FRACTION_BITS
from feddrm.method.patient_rows import PHI_BITS, patient_labels, patient_phi
from feddrm.method.probabilities import P_BITS, log_sizes, shortened, softmax

__all__ = [
    "PHI_BITS",
    "Terms",
    "advance",
    "bound",
    "contribution",
    "head",
    "initial_state",
    "patient_labels",
    "patient_phi",
    "target_head",
]

Integers = npt.NDArray[np.int64]

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
        classes: C, of the shared target head; 0 where there is none, else 2 to 4096.
        clip_norm: a patient's residual longer than this is shortened to it; 2**-6 to sqrt(2).

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
    classes: int = 0
    clip_norm: float = LONGEST_RESIDUAL

    def __post_init__(self) -> None:
        if not (2 <= self.silos <= 100 and 1 <= self.width <= 1 << 14 and 8 <= self.fraction_bits <= 24):
            raise ValueError("silos, width or fraction_bits is out of range")
        if not (2.0**-_RATE_BITS <= self.step_size <= 127 and 0 <= self.momentum <= 0.999 and self.average_from >= 1):
            raise ValueError("step_size, momentum or average_from is out of range")
        if len(self.public_sizes) != self.silos or not all(1 <= size <= 10**9 for size in self.public_sizes):
            raise ValueError("every silo has one public size from 1 to 10**9")
        if not (self.classes == 0 or 2 <= self.classes <= 1 << 12):
            raise ValueError("classes is out of range")
        if not 2.0**-6 <= self.clip_norm <= LONGEST_RESIDUAL:
            raise ValueError("clip_norm is out of range")

    @property
    def rows(self) -> int:
        """K + C."""
        return self.silos + self.classes

    @property
    def words(self) -> int:
        """Entries of a sum: (K + C) (d + 1), row-major, first the silos' rows."""
        return self.rows * (self.width + 1)

    @property
    def state_size(self) -> int:
        """Entries of a state: number of sums, head, velocity, sum of heads."""
        return 1 + 3 * self.words

    @property
    def sensitivity(self) -> int:
        """D: the L2 norm by which one patient moves a silo's sum of integers, at most."""
        return fit_sensitivity(self.words, self.fraction_bits, self.clip_norm)


def bound(terms: Terms, patients: int, scale: int) -> int:
    """The largest entry, in size, of one silo's contribution with noise of N_Z(0, scale**2) on it."""
    return patients * terms.sensitivity + 16 * (scale + 1)


def initial_state(terms: Terms) -> Integers:
    """The state before the first sum: zeros, int64[state_size]."""
    return np.zeros(terms.state_size, dtype=np.int64)


def contribution(terms: Terms, state: Integers, phi: Integers, silo: int, labels: Integers | None = None) -> Integers:
    """A silo's sum of its patients' gradients at the state's head, int64[words], *without noise*.

    Without any one patient it is the same less that patient's z_i, and ||z_i|| <= terms.sensitivity.

    Args:
        terms: of the plan.
        state: int64[state_size].
        phi: int64[P, d + 1] of `patient_phi`.
        silo: this silo's place in the plan.
        labels: int64[P, C] of `patient_labels`. None, or zeros, where the patients have no label of the shared head's:
            they add zeros to its rows.

    Raises:
        MalformedError: shapes or types do not fit, a row of phi is longer than 2**PHI_BITS, or one of labels is no
            part of 1.
    """
    head = _split(terms, state)[1].reshape(terms.rows, -1)
    if phi.dtype != np.int64 or phi.ndim != 2 or phi.shape[1] != terms.width + 1 or not 0 <= silo < terms.silos:
        raise MalformedError("The features do not fit the terms of the routing fit.")
    if labels is None:
        labels = np.zeros((len(phi), terms.classes), dtype=np.int64)
    if labels.dtype != np.int64 or labels.shape != (len(phi), terms.classes):
        raise MalformedError("The labels do not fit the terms of the routing fit.")
    if ((labels < 0) | (labels > 1 << P_BITS)).any() or (labels.sum(axis=1) > 1 << P_BITS).any():
        raise MalformedError("A patient's labels are more than 1.")
    total = np.zeros((terms.rows, terms.width + 1), dtype=np.int64)
    limit, block = residual_limit(terms.clip_norm), max(1, _BLOCK_ENTRIES // terms.words)
    for start in range(0, len(phi), block):
        rows = phi[start : start + block]
        if (np.abs(rows).max(axis=1) > 1 << PHI_BITS).any() or ((rows * rows).sum(axis=1) > 1 << (2 * PHI_BITS)).any():
            raise MalformedError("A patient's features are longer than 1.")
        # Products of int64 are not BLAS's, and exact.
        logits = rows @ head.T
        residual = np.empty_like(logits)
        residual[:, : terms.silos] = softmax(logits[:, : terms.silos] + log_sizes(terms.public_sizes))
        residual[:, silo] -= 1 << P_BITS
        if terms.classes:
            named = labels[start : start + block]
            guess = softmax(logits[:, terms.silos :])
            residual[:, terms.silos :] = np.where(named.any(axis=1, keepdims=True), guess - named, 0)
        residual = shortened(residual, limit)
        shift = PHI_BITS + P_BITS - terms.fraction_bits
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
    return _centred(_averaged(terms, state)[: terms.silos])


def target_head(terms: Terms, state: Integers) -> tuple[Integers, Integers]:
    """The fitted target head of all silos: weight int64[C, d] and bias int64[C] in MODEL_FRACTION_BITS, each of mean
    zero over the classes, averaged as `head` is.

    Its logits are W [g, 1] / ||[g, 1]||: unlike a route, a probability needs the norm.

    Raises:
        MalformedError: shapes or types do not fit.
        ValueError: the fit has no classes.
    """
    if not terms.classes:
        raise ValueError("the fit has no target head")
    return _centred(_averaged(terms, state)[terms.silos :])


def _averaged(terms: Terms, state: Integers) -> Integers:
    """int64[K + C, d + 1]."""
    count, last, _, average = _split(terms, state)
    averaged = count - terms.average_from + 1
    values = (average + averaged // 2) // averaged if averaged > 0 else last
    return values.reshape(terms.rows, -1)


def _centred(rows: Integers) -> tuple[Integers, Integers]:
    # What is added to all of a softmax's classes alike is noise only, and moves nothing.
    rows = rows - (rows.sum(axis=0) + len(rows) // 2) // len(rows)
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
