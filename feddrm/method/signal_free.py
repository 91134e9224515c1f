"""Where a published sum holds noise and nothing else: for `privacy.noise_check` (numpy only).

A record's gradient with respect to the routing head's logits is p - e_k, probabilities less a one, whose entries sum to
zero. So do the entries of a column of the routing head's weights, over the silos' classes, in every record's gradient,
at any model, clipped or not, and so do those of the bias: what a column of a published sum adds up to is noise, and
every sum has d + 1 such places. They cost no words and no budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from feddrm.contract.plan import Plan
from feddrm.contract.training import Training
from feddrm.method import routing_fit
from feddrm.method.layout import Layout

# Deviations that a clip of updates must leave to the noise, or it would shrink the variance that is planned for.
_ROOM = 6.0


def training_places(layout: Layout, total: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """float64[d + 1]: columns of the routing head, then its bias, of a stage 1 sum of updates, float64[shared_size]."""
    tensors = layout.split(total)
    return np.append(tensors["routing_head.weight"].sum(axis=0), tensors["routing_head.bias"].sum())


def training_variance(plan: Plan, public_sizes: Sequence[int], number: int | None = None) -> float:
    """What each of `training_places` is planned to vary, for a sum over silos of these public sizes.

    Args:
        number: of the round, from 1; None for the one with the least variance.

    Raises:
        ValueError: the clip of updates leaves too little room for the noise.
    """
    training = plan.training
    rate = training.rate(max(training.rounds, 1) if number is None else number)
    gain = _gain(training, rate)
    unit = rate * training.noise_multiplier * training.clip_norm
    single = [gain * (unit / (training.sampling_rate * size)) ** 2 for size in public_sizes]
    # Of the round that has most of it.
    most = math.sqrt(max(single)) * (training.learning_rate / rate if number is None else 1.0)
    if _ROOM * most > plan.secure_aggregation.clip:
        raise ValueError("the clip of updates cuts the noise off, so that its variance is not the planned one")
    return len(plan.silos) * sum(single)


def _gain(training: Training, rate: float) -> float:
    """Variance of an update for steps whose noise has variance 1, in learning rates squared: the number of steps, if
    they only add up. Momentum and the pull to where the round began are linear, so that a step's noise arrives times
    what one impulse grows to in the steps that are left.
    """
    pull = rate * training.proximal_mu
    gain = velocity = moved = 0.0
    for step in range(training.local_steps - training.head_steps):
        velocity = training.momentum * velocity + (pull * moved if step else 1.0)
        moved -= velocity
        gain += moved**2
    return gain


def fit_places(
    terms: routing_fit.Terms, total: npt.NDArray[np.int64], scale: int, silos: int
) -> Iterator[tuple[npt.NDArray[np.int64], float]]:
    """(places int64[d + 1], what each is planned to vary) of a total of the routing fit, int64[words], to which `silos`
    silos each added N_Z(0, scale**2): the columns over the silos' rows, then over the classes' rows, if any.

    What shortens a patient's part is one factor for all its rows, which leaves such a sum at zero.
    """
    rows = total.reshape(terms.rows, terms.width + 1)
    for block in (rows[: terms.silos], rows[terms.silos :]):
        if len(block):
            yield block.sum(axis=0), float(len(block)) * silos * float(scale) ** 2
