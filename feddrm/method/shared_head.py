"""The target head of all silos at one of them: how its answers and those of the silo's own model make one (numpy only).

Answers are means of two distributions over classes: the silo's own model knows what is special about its patients, the
head of all silos was fitted on many more of them and is right where the route is not, so that it weighs more in answers
to queriers than in those about the silo's own patients. The mean is made in integers and of each record by itself, in
the evaluation as in an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import MalformedError
from feddrm.contract.plan import Plan
from feddrm.method.layout import Layout, embedding_width
from feddrm.method.probabilities import LOGIT_BITS, P_BITS, softmax
from feddrm.method.update import MODEL_FRACTION_BITS, MODEL_LIMIT, Model

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

_WEIGHT_BITS = 16
# A class so far below the likeliest has no probability in P_BITS.
_FAR = 32.0


@dataclass(frozen=True, slots=True)
class SharedHead:
    """The target head of all silos.

    Args:
        weight: float64[C, d].
        bias: float64[C].
        asked: its part in an answer to a querier, 0 to 1.
        home: its part in an answer about the silo's own patient.
    """

    weight: npt.NDArray[np.float64] = field(repr=False)
    bias: npt.NDArray[np.float64] = field(repr=False)
    asked: float
    home: float

    @classmethod
    def split(cls, plan: Plan, layout: Layout, model: Model, silo: str) -> tuple[Model, Self | None]:
        """(the shared model, the head that `silo` answers with beside its own, if it does) of
        `progress.answering_model`. A silo with classes of its own answers by its own model alone.

        Args:
            plan: of the job, whole.
            layout: of the plan.

        Raises:
            MalformedError: the vector has another length, or an entry is out of range.
        """
        classes, width = plan.shared_classes, embedding_width(plan)
        if model.shape == (layout.shared_size,):
            # Of a plan without one, or before the first sum of the routing fit.
            return model, None
        if model.shape != (layout.shared_size + classes * (width + 1),):
            raise MalformedError("This is not what the plan's silos answer with.")
        shared, rest = np.split(model, [layout.shared_size])
        if silo in (plan.own_targets or {}):
            return shared, None
        if int(np.abs(rest).max()) > MODEL_LIMIT:
            raise MalformedError("The shared target head has an entry out of range.")
        rows = np.ldexp(rest.reshape(classes, width + 1).astype(np.float64), -MODEL_FRACTION_BITS)
        return shared, cls(
            rows[:, :-1].copy(), rows[:, -1].copy(), plan.queries.shared_weight, plan.queries.home_weight
        )

    def logits(self, embeddings: Floats) -> npt.NDArray[np.float64]:
        """W [g, 1] / ||[g, 1]||, float64[n, C], of embeddings [n, d] of the *shared* trunk, each row by itself.

        Raises:
            MalformedError: the shapes do not fit.
        """
        norms = np.ones(len(embeddings))
        for column in embeddings.T.astype(np.float64):
            norms += column * column
        return linear_logits(self.weight, self.bias, embeddings) / np.sqrt(norms)[:, None]

    def mixed(self, own: Floats, embeddings: Floats, part: float) -> npt.NDArray[np.float32]:
        """What the silo answers, float32[n, C], each row by itself.

        Args:
            own: logits [n, C] of the silo's own model.
            embeddings: [n, d] of the shared trunk.
            part: of this head in the answer: `asked` or `home`.

        Raises:
            MalformedError: the shapes do not fit, or a number is not finite.
        """
        shared = probabilities(self.logits(embeddings))
        mine = probabilities(own)
        if mine.shape != shared.shape:
            raise MalformedError("The silo's own model and the shared head answer another question.")
        weight = round(part * (1 << _WEIGHT_BITS))
        both = weight * shared + ((1 << _WEIGHT_BITS) - weight) * mine
        return (both / (1 << (P_BITS + _WEIGHT_BITS))).astype(np.float32)


def answers(own: Floats, shared: SharedHead | None, embeddings: Floats, part: float | None) -> npt.NDArray[np.float32]:
    """What a silo says, float32[n, C], each row by itself: one arithmetic for answers and for the evaluation of them.

    Args:
        own: logits [n, C] of the silo's own model.
        shared: the head of all silos; None where the silo answers by its own model alone.
        embeddings: [n, d] of the shared trunk.
        part: of the head of all silos in the answer; None where there is none.

    Raises:
        MalformedError: the shapes do not fit, or a number is not finite.
    """
    if shared is None or part is None:
        return (probabilities(own) / (1 << P_BITS)).astype(np.float32)
    return shared.mixed(own, embeddings, part)


def linear_logits(weight: Floats, bias: Floats, rows: Floats) -> npt.NDArray[np.float64]:
    """weight @ row + bias, float64[n, K], each row by itself: no row's depend on which others there are.

    A product of matrices may round a row's sums differently in other company, and turn an answer where two logits are
    close. Column by column every operation is rounded by IEEE 754 alone.

    Args:
        weight: [K, d].
        bias: [K].
        rows: [n, d].

    Raises:
        MalformedError: the shapes do not fit.
    """
    if rows.ndim != 2 or weight.shape != (len(bias), rows.shape[1]):
        raise MalformedError("The head does not fit the embeddings.")
    logits = np.broadcast_to(bias.astype(np.float64), (len(rows), len(bias))).copy()
    for weights, column in zip(weight.T.astype(np.float64), rows.T.astype(np.float64), strict=True):
        logits += column[:, None] * weights
    return logits


def probabilities(logits: Floats) -> Integers:
    """int64[n, C] in P_BITS, rounded down, each row by itself.

    Raises:
        MalformedError: a logit is not finite.
    """
    if logits.ndim != 2 or not np.isfinite(logits).all():
        raise MalformedError("A model's logits are not finite.")
    values = logits.astype(np.float64)
    above = np.minimum(values.max(axis=1, keepdims=True) - values, _FAR) if values.size else values
    return softmax(-np.rint(np.ldexp(above, LOGIT_BITS)).astype(np.int64)) if values.size else values.astype(np.int64)
