"""Elastic weight consolidation against drift, from published sums alone (numpy only).

EWC (Kirkpatrick et al. 2017, arXiv 1612.00796; online: Schwarz et al. 2018, arXiv 1805.06370) holds weights that
earlier data needed, by a penalty of strength/2 * F_i (w_i - a_i)**2, where F is the Fisher information. F is computed
from patients' data. Here it is estimated by the squares of what published rounds changed, which are averages of
gradients *that have their noise*: post-processing of what is charged already, kept by nobody and the same bytes for
everybody. The noise adds the same to all coordinates, so that with much of it EWC becomes a pull to the average of
earlier models.

Kept in the job's state, in integers: the anchor, an exponential average of the models so far in fixed point, and the
importance, one of squared changes in units of 2**-48. Averages are shifts: their memory is a power of two in rounds.
With `anchor_round` they are averages no longer once so many rounds were published: the anchor is the model of then, the
importance what it was then, and rounds before pull nothing. A count of published rounds is kept behind them. A
follow-up to a change that an operator knows of needs this: an average drifts along with what it should hold.
The routing head is not held: its rows would be pulled apart, and the places of a sum that hold noise alone
(feddrm.method.signal_free) would not any more.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import MalformedError
from feddrm.contract.training import MOST_IMPORTANT, Consolidation
from feddrm.method.layout import Layout

Model = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# A change of 64 in a weight; its square stays below 2**60.
_LARGEST_CHANGE: Final = 1 << 30


def size(terms: Consolidation, entries: int) -> int:
    """Length of what is kept of `entries` shared weights."""
    return 2 * entries + (terms.anchor_round is not None)


def initial(terms: Consolidation, model: Model) -> Model:
    """Before round 1: the anchor is the first model, and nothing is important. int64[size] of int64[n]."""
    count = np.zeros(int(terms.anchor_round is not None), dtype=np.int64)
    return np.concatenate([model, np.zeros_like(model), count])


def advance(terms: Consolidation, kept: Model, before: Model, after: Model) -> Model:
    """After a published round that led from one shared model to another; exact, the same on every machine.

    Args:
        terms: of the plan.
        kept: int64[size], before it.
        before, after: int64[n], of entries within update.MODEL_LIMIT.

    Raises:
        MalformedError: the sizes do not fit.
    """
    if kept.shape != (size(terms, len(before)),) or before.shape != after.shape:
        raise MalformedError("What consolidation keeps does not fit the model.")
    held, importance, count = _parts(kept)
    if terms.anchor_round is not None and count[0] >= terms.anchor_round:
        return kept
    change = np.clip(after - before, -_LARGEST_CHANGE, _LARGEST_CHANGE)
    importance = importance + ((change * change - importance) >> terms.shift)
    if terms.anchor_round is not None:
        return np.concatenate([after, importance, count + 1])
    return np.concatenate([held + ((after - held) >> terms.shift), importance])


def strengths(terms: Consolidation, held: Set[str], layout: Layout, kept: Model) -> Floats:
    """How strongly each shared weight is pulled to its anchor, float64[n]: `terms.strength` for the mean importance of
    all that is held, at most MOST_IMPORTANT times that; zero before anything was published, or the anchor's round was.

    Args:
        terms: of the plan.
        held: names of the tensors that are (`Plan.held`).
        layout: of the plan.
        kept: int64[size].
    """
    _, importances, count = _parts(kept)
    importance = importances.astype(np.float64)
    chosen = np.concatenate([np.full(tensor.size, tensor.name in held) for tensor in layout.of("shared")])
    importance[~chosen] = 0.0
    mean = importance.sum() / max(int(chosen.sum()), 1)
    if not mean > 0 or (terms.anchor_round is not None and count[0] < terms.anchor_round):
        return np.zeros(len(importance))
    found: Floats = terms.strength * np.minimum(importance / mean, MOST_IMPORTANT)
    return found


def anchor(kept: Model) -> Model:
    """int64[n]: what weights are pulled to."""
    return _parts(kept)[0]


def _parts(kept: Model) -> tuple[Model, Model, Model]:
    """(anchor int64[n], importance int64[n], count of published rounds int64[0 or 1])."""
    entries = len(kept) // 2
    return kept[:entries], kept[entries : 2 * entries], kept[2 * entries :]
