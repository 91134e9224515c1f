"""A job's state and how a published sum moves it on: the same bytes at every silo and the coordinator (design 5).

The state is one vector of integers: the shared model, then the routing fit's own state, then the evaluation's sum,
zeros until their stages begin, then what consolidation keeps of earlier rounds. It is hashed, kept and replayed as a
whole, so that whatever holds for a round of training holds for every round. Of a plan that only trains it is the shared
model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import MalformedError
from feddrm.contract.plan import Plan
from feddrm.contract.release import Counts, Reached, Statement, make_statement
from feddrm.contract.schedule import STAGE_EVALUATE, STAGE_ROUTING, STAGE_TRAIN
from feddrm.contract.signed_plan import SignedPlan
from feddrm.contract.stages import EVALUATION_WORDS
from feddrm.method import consolidation, routing_fit
from feddrm.method.layout import Layout, embedding_width, initial_model
from feddrm.method.update import Model, apply, head_hash, trunk_hash

Words = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Parts:
    """A state taken apart: views of its parts, each empty where the plan has no such stage.

    Attributes:
        shared: int64[shared_size], the model that training left.
        fit: of the routing fit (feddrm.method.routing_fit).
        evaluation: int64[1 + 4]: silos in the evaluation's sum, 0 before it, and the sum.
        kept: what feddrm.method.consolidation keeps, int64 of its `size`.
    """

    shared: Model = field(repr=False)
    fit: Model = field(repr=False)
    evaluation: Model = field(repr=False)
    kept: Model = field(repr=False)

    @classmethod
    def of(cls, plan: Plan, layout: Layout, state: Model) -> Self:
        """Take a state apart.

        Raises:
            MalformedError: it is not of this plan.
        """
        if state.dtype != np.int64 or state.shape != (state_size(plan, layout),):
            raise MalformedError("This is not a state of the plan.")
        sizes = (layout.shared_size, _fit_size(plan), _evaluation_size(plan))
        return cls(*np.split(state, np.cumsum(sizes)))

    def joined(self) -> Model:
        """The state again."""
        return np.concatenate([self.shared, self.fit, self.evaluation, self.kept])


def fit_terms(plan: Plan) -> routing_fit.Terms:
    """What the routing fit of a plan is computed with.

    Raises:
        ValueError: the plan has no routing fit.
    """
    fit = plan.routing_fit
    if fit is None:
        raise ValueError("the plan has no routing fit")
    return routing_fit.Terms(
        silos=len(plan.silos),
        width=embedding_width(plan),
        fraction_bits=fit.fraction_bits,
        step_size=fit.step_size,
        momentum=fit.momentum,
        average_from=fit.average_from,
        public_sizes=tuple(fit.public_sizes[silo] for silo in plan.silos),
        classes=plan.shared_classes,
        clip_norm=fit.clip_norm,
    )


def state_size(plan: Plan, layout: Layout) -> int:
    """Length of a state of this plan."""
    return layout.shared_size + _fit_size(plan) + _evaluation_size(plan) + _kept_size(plan, layout)


def initial_state(plan: Plan, layout: Layout, plan_hash: bytes) -> Model:
    """The state before round 1, int64[state_size]."""
    model = initial_model(layout, plan_hash)
    stages = np.zeros(_fit_size(plan) + _evaluation_size(plan), np.int64)
    ewc = plan.training.ewc
    return np.concatenate([model, stages, consolidation.initial(ewc, model) if ewc else np.zeros(0, np.int64)])


def segments(plan: Plan, layout: Layout, stage: int) -> tuple[int, int]:
    """(32-bit entries, 64-bit entries) of one silo's vector in a round of a stage.

    Raises:
        ValueError: no round of the plan has this stage.
    """
    if stage == STAGE_TRAIN:
        return layout.shared_size, 0
    if stage == STAGE_ROUTING:
        return 0, fit_terms(plan).words
    if stage == STAGE_EVALUATE:
        return 0, EVALUATION_WORDS
    raise ValueError(f"no round has stage {stage}")


def advance(plan: Plan, layout: Layout, stage: int, state: Model, words32: Words, words64: Words, count: int) -> Model:
    """The state after a round.

    Args:
        stage: of the round.
        state: int64[state_size], before it.
        words32, words64: the published sum, of the lengths that `segments` gives.
        count: silos in the sum.

    Raises:
        MalformedError: state or sum do not fit.
    """
    parts = Parts.of(plan, layout, state)
    if stage == STAGE_TRAIN:
        bits, rate = plan.secure_aggregation.fraction_bits, plan.training.server_learning_rate
        after, kept, ewc = apply(parts.shared, words32, count, bits, rate), parts.kept, plan.training.ewc
        if ewc is not None:
            kept = consolidation.advance(ewc, kept, parts.shared, after)
        return replace(parts, shared=after, kept=kept).joined()
    total = words64.astype(np.int64, copy=False)
    if stage == STAGE_ROUTING:
        fit = routing_fit.advance(fit_terms(plan), parts.fit, total)
        return replace(parts, fit=fit).joined()
    if stage == STAGE_EVALUATE and total.shape == (EVALUATION_WORDS,) and not evaluated(plan, layout, state):
        return replace(parts, evaluation=np.concatenate([np.array([count], np.int64), total])).joined()
    raise MalformedError("The sum does not fit its stage.")


def shared_model(plan: Plan, layout: Layout, state: Model) -> Model:
    """The shared model of a state as it would be released, int64[shared_size]: with the routing fit's head, once there
    is one.

    Raises:
        MalformedError: the state is not of this plan.
    """
    parts = Parts.of(plan, layout, state)
    if not parts.fit.size or not sums_applied(parts):
        return parts.shared
    weight, bias = routing_fit.head(fit_terms(plan), parts.fit)
    model = parts.shared.copy()
    tensors = layout.split(model)
    tensors["routing_head.weight"][:] = weight
    tensors["routing_head.bias"][:] = bias
    return model


def answering_model(plan: Plan, layout: Layout, state: Model) -> Model:
    """What a silo answers with, besides its personal vector: the shared model, and after it, once the routing fit has
    made one, the target head of all silos (feddrm.method.shared_head), int64[shared_size + C (d + 1)].

    Raises:
        MalformedError: the state is not of this plan.
    """
    model, parts = shared_model(plan, layout, state), Parts.of(plan, layout, state)
    if not plan.shared_classes or not sums_applied(parts):
        return model
    weight, bias = routing_fit.target_head(fit_terms(plan), parts.fit)
    return np.concatenate([model, np.column_stack([weight, bias]).reshape(-1)])


def reached(plan: Plan, layout: Layout, state: Model, published: int) -> Reached:
    """How far a job came.

    Args:
        published: how many rounds of all stages were published.
    """
    parts = Parts.of(plan, layout, state)
    sums, counts = sums_applied(parts), None
    if parts.evaluation.size and parts.evaluation[0]:
        silos, *total = (int(entry) for entry in parts.evaluation)
        counts = Counts(silos=silos, total=tuple(total))
    return Reached(published - sums - (counts is not None), sums, counts)


def evaluated(plan: Plan, layout: Layout, state: Model) -> bool:
    """Whether the state has an evaluation's sum in it: then the job needs no further round.

    Raises:
        MalformedError: the state is not of this plan.
    """
    evaluation = Parts.of(plan, layout, state).evaluation
    return bool(evaluation.size and evaluation[0])


def statement_of(plan: SignedPlan, layout: Layout, state: Model, published: int) -> Statement:
    """The release statement that everybody who holds this state derives.

    Args:
        state: after the job's last round.
        published: how many rounds of all stages were published.

    Raises:
        VerificationError: less was reached than the plan requires for a release.
    """
    model = shared_model(plan.plan, layout, state)
    came = reached(plan.plan, layout, state, published)
    return make_statement(
        plan,
        trunk=trunk_hash(layout, model),
        head=head_hash(layout, model),
        layout=layout.fingerprint(),
        rounds=came.rounds,
        sums=came.sums,
        evaluation=came.evaluation,
    )


def sums_applied(parts: Parts) -> int:
    """How many sums of the routing fit a state has in it."""
    return int(parts.fit[0]) if parts.fit.size else 0


def _fit_size(plan: Plan) -> int:
    return 0 if plan.routing_fit is None else fit_terms(plan).state_size


def _kept_size(plan: Plan, layout: Layout) -> int:
    ewc = plan.training.ewc
    return 0 if ewc is None else consolidation.size(ewc, layout.shared_size)


def _evaluation_size(plan: Plan) -> int:
    return 0 if plan.evaluation is None else 1 + EVALUATION_WORDS
