"""What a silo adds to the sums of stages 2 and 4: integers from its patients, and its share of the noise (design 7).

Runs in the worker thread, beside training. The trunk is frozen by then, so that every patient's features are computed
once and kept in memory. What leaves here has its noise on it; nothing without noise is stored or sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from feddrm.contract.charge import round_event
from feddrm.contract.errors import InputError
from feddrm.contract.plan import Plan
from feddrm.contract.schedule import STAGE_EVALUATE, STAGE_ROUTING
from feddrm.features import Dataset
from feddrm.method import evaluation, routing_fit
from feddrm.method.coarse import Grid
from feddrm.method.layout import layout_of
from feddrm.method.progress import Parts, answering_model, fit_terms, shared_model
from feddrm.method.routing import Router
from feddrm.method.shared_head import SharedHead
from feddrm.method.update import head_tensors, to_float, trunk_tensors
from privacy.discrete import DiscreteGaussianSource
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian
from silo.effects import Contribute, Int64s

if TYPE_CHECKING:
    from feddrm.method.model import TwoHeads


class Shares:
    """One silo's part in the integer sums of one job.

    Args:
        plan: of the job, whole.
        silo_index: this silo's place in `plan.silos`.
        training: records of the patients that stages 1 to 3 may read.
        held_out: records of those that only the evaluation reads; empty where the plan has none.
        entropy: a CSPRNG, for the noise.
    """

    def __init__(
        self,
        plan: Plan,
        silo_index: int,
        training: Dataset,
        held_out: Dataset,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._plan = plan
        self._own = plan.at(plan.silos[silo_index])
        self._layout = layout_of(self._own)
        self._silo = silo_index
        self._training = training
        self._held_out = held_out
        self._noise = DiscreteGaussianSource(entropy)
        self._phi: tuple[bytes, Int64s] | None = None

    def contribute(self, effect: Contribute) -> Int64s:
        """The round's 64-bit entries, noise included, int64[m].

        Raises:
            InputError: the records do not fit the plan.
        """
        plan = self._plan
        if effect.stage == STAGE_ROUTING and plan.routing_fit is not None:
            return self._noised(self._fit(effect), effect.stage, plan.routing_fit.largest_silo)
        if effect.stage == STAGE_EVALUATE and plan.evaluation is not None:
            return self._noised(self._evaluate(effect), effect.stage, plan.evaluation.largest_silo)
        raise InputError("The plan has no such stage.")

    def _noised(self, total: Int64s, stage: int, largest_silo: int) -> Int64s:
        event = round_event(self._plan, stage)
        if not isinstance(event, DistributedDiscreteGaussian | LocalDiscreteGaussian):
            raise TypeError("a sum of integers has discrete noise")
        # What more patients than the plan allows would add is cut off, so that the ring holds it: no patient moves a
        # clipped sum further than a whole one.
        limit = largest_silo * event.sensitivity
        words: Int64s = np.clip(total, -limit, limit) + self._noise.sample(len(total), event.scale)
        return words

    def _fit(self, effect: Contribute) -> Int64s:
        parts = Parts.of(self._plan, self._layout, effect.state)
        trunk = parts.shared.tobytes()
        if self._phi is None or self._phi[0] != trunk:
            embeddings = self._embed(parts.shared, self._training)
            self._phi = (trunk, routing_fit.patient_phi(embeddings, self._training.patients))
        terms = fit_terms(self._plan)
        return routing_fit.contribution(terms, parts.fit, self._phi[1], self._silo, self._labels(terms.classes))

    def _labels(self, classes: int) -> Int64s | None:
        """Of every patient, for the shared target head; a silo with a target of its own has none."""
        targets = self._training.targets
        if not classes or self._plan.silos[self._silo] in (self._plan.own_targets or {}):
            return None
        if targets is None:
            raise InputError("A shared target head needs records with targets.")
        return routing_fit.patient_labels(targets, self._training.patients, classes)

    def _evaluate(self, effect: Contribute) -> Int64s:
        from feddrm.method.model import Predictor

        model, held = shared_model(self._plan, self._layout, effect.state), self._held_out
        if held.targets is None:
            raise InputError("Evaluation needs records with targets.")
        answering = answering_model(self._plan, self._layout, effect.state)
        _, shared = SharedHead.split(self._plan, self._layout, answering, self._plan.silos[self._silo])
        said = Predictor(self._own, model, effect.personal, shared).opinions(held.features)
        # As a querier's would be refused: a refusal here would tell the coordinator of the one patient that caused it.
        correct, answered = ((each.classes == held.targets) & said.usable for each in (said.home, said.asked))
        # As a querier would send it and the router would see it.
        grid = Grid.of(self._own, trunk_tensors(self._layout, model))
        seen = grid.decode(grid.encode(said.embeddings))
        silos = self._plan.silos
        router = Router.from_tensors(self._layout, head_tensors(self._layout, model), silos)
        first = router.nearest(seen, silos, 1.0, fitted=self._plan.routing_fit is not None)[:, 0]
        routed = (first == self._silo) & said.usable
        return evaluation.contribution(held.patients, correct, routed, answered)

    def _embed(self, model: Int64s, data: Dataset) -> npt.NDArray[np.float32]:
        from feddrm.method.model import build, embed_each, load

        module: TwoHeads = build(self._own).eval()
        load(module, self._layout.split(to_float(model)))
        return embed_each(module, data.features)


def split(data: Dataset, held: npt.NDArray[np.bool_]) -> tuple[Dataset, Dataset]:
    """(records of patients that may be trained on, records of those held out). `held`: bool[n]."""
    return data.part(~held), data.part(held)
