"""How much noise the published sums of a job hold, against what its plan says that they hold (numpy only).

It looks where a sum carries noise and nothing else (`feddrm.method.signal_free`), and only at what was published: it
costs no privacy. It finds a hospital whose software draws none or too little of its share, not one that cheats, which
knows the places; and a sum does not say which hospital it was.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.charge import round_event
from feddrm.contract.operator_messages import NoiseFound
from feddrm.contract.plan import Plan
from feddrm.contract.schedule import STAGE_ROUTING, STAGE_TRAIN
from feddrm.method.layout import layout_of
from feddrm.method.progress import fit_terms
from feddrm.method.signal_free import fit_places, training_places, training_variance
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian
from privacy.noise_check import NoiseCheck, places_needed

Words = npt.NDArray[np.signedinteger[Any]]
# What a finding states at most: its digits beyond say nothing.
_LARGEST_RATIO: Final = 1e9


class NoiseMeter:
    """Gathers the sums of one job.

    A sum of training counts only where the plan names the silos' public sizes, which its routing fit does: on them
    depends how much noise is planned.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._layout = layout_of(plan)
        self._check = NoiseCheck()
        self._places = 0

    def add(self, stage: int, number: int, words32: Words, words64: Words, count: int) -> None:
        """Count a published sum; one in which nothing can be looked for is left out.

        Args:
            stage: of its round.
            number: of its round, from 1.
            words32, words64: the sum, of the lengths that `feddrm.method.progress.segments` gives.
            count: silos in it.
        """
        if stage == STAGE_TRAIN:
            variance = self._least_training_variance(number, count)
            if variance is not None:
                total = words32.astype(np.float64) / 2.0**self._plan.secure_aggregation.fraction_bits
                self._add(training_places(self._layout, total), variance)
        elif stage == STAGE_ROUTING:
            event = round_event(self._plan, STAGE_ROUTING)
            if isinstance(event, DistributedDiscreteGaussian | LocalDiscreteGaussian):
                sums = words64.astype(np.int64)
                for places, planned in fit_places(fit_terms(self._plan), sums, event.scale, count):
                    self._add(places, planned)

    def finding(self) -> NoiseFound | None:
        """What the sums say so far; None before any of them can be judged."""
        if not self._places:
            return None
        found = self._check.finding()
        needed = places_needed(1 / len(self._plan.silos))
        return NoiseFound(found.count, min(found.ratio, _LARGEST_RATIO), found.chance, needed, found.short)

    def _add(self, places: npt.NDArray[Any], variance: float) -> None:
        self._check.add(places, variance)
        self._places += places.size

    def _least_training_variance(self, number: int, count: int) -> float | None:
        """Planned for a sum of `count` silos, whichever they were: the least that it can be, so that nobody is accused
        for being large."""
        fit = self._plan.routing_fit
        if fit is None:
            return None
        largest = sorted(fit.public_sizes.values(), reverse=True)[:count]
        try:
            return training_variance(self._plan, largest, number)
        except ValueError:
            return None


def noise_words(found: NoiseFound) -> str:
    """The finding in one sentence."""
    seen = f"{100 * found.ratio:.1f} % of the planned variance in {found.places:,} places that hold noise alone"
    if found.short:
        return f"NOISE IS MISSING: {seen}; the chance of so little, had all been drawn, is {_power(found.chance)}"
    if found.places < found.needed:
        return f"{seen}; it takes {found.needed:,} to tell that one hospital draws none"
    return f"{seen}; no hospital's share is missing"


def _power(chance: float) -> str:
    return f"below 1e{math.floor(math.log10(chance)) + 1:d}" if chance > 0 else "0"
