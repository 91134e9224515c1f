"""Stage 1 in one process: rounds over silos, updates quantised, summed and applied as the deployment does.

Secure aggregation changes no sum, so what is left out here is the network between hospitals and nothing else. A round
depends on the state before it and on seed and number alone, so that a run can be stopped after any of them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from feddrm.compare.budget import Noise
from feddrm.compare.data import Federation
from feddrm.compare.methods import Method
from feddrm.compare.plain import PlainTrainer
from feddrm.compare.plans import plan_of
from feddrm.compare.settings import Settings
from feddrm.contract.plan import Plan
from feddrm.method import consolidation
from feddrm.method.layout import Layout, initial_model, initial_personal, layout_of
from feddrm.method.trainer import Trainer
from feddrm.method.update import Model, apply, from_float, to_float
from secagg.quantise import quantise

Tensors = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class State:
    """Where a run stands after a round.

    Args:
        number: of rounds done.
        model: int64[shared_size], empty once silos go on alone.
        personals: each silo's int64[personal_size].
        bytes: that all silos sent and received.
        steps: local steps of all silos.
        kept: what consolidation keeps; empty without it.
    """

    number: int
    model: Model = field(repr=False)
    personals: tuple[Model, ...] = field(repr=False)
    bytes: int
    steps: int
    kept: Model = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)


class Silo(Protocol):
    """One silo's side of a round."""

    def train_round(
        self, model: Model, personal: Model, number: int, kept: Model | None
    ) -> tuple[npt.NDArray[np.float64], Model]:
        """(update, new personal vector) of round `number`."""
        ...


class _Private:
    """The deployment's trainer, with entropy that follows from seed and round."""

    def __init__(self, plan: Plan, layout: Layout, federation: Federation, silo: int, seed: int) -> None:
        self._seed = (seed, 3, silo)
        self._stream = np.random.default_rng(self._seed)
        self._never = threading.Event()
        size = federation.sizes[silo]
        self._trainer = Trainer(plan, layout, federation.silos[silo], silo, size, self._entropy)

    def _entropy(self, count: int) -> bytes:
        return self._stream.bytes(count)

    def train_round(
        self, model: Model, personal: Model, number: int, kept: Model | None
    ) -> tuple[npt.NDArray[np.float64], Model]:
        self._stream = np.random.default_rng([*self._seed, number])
        return self._trainer.train_round(model, personal, self._never, number, kept)


class Training:
    """Stage 1 of one method.

    Args:
        settings: of the comparison.
        federation: of the data.
        method: the row.
        noise: None for training without privacy.
        seed: of initial weights, draws and noise: a comparison repeats itself, a hospital never does.
        ewc: elastic weight consolidation, as in `plan_of`.
    """

    def __init__(
        self,
        settings: Settings,
        federation: Federation,
        method: Method,
        noise: Noise | None,
        seed: int,
        ewc: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings
        self._federation = federation
        self._method = method
        self._noise = noise
        self._seed = seed
        self.plan = plan_of(settings, federation, method, noise, consolidation=ewc)
        self._layout = layout_of(self.plan)
        self._alone = layout_of(plan_of(settings, federation, method, noise, alone=True))
        self._together = settings.train.rounds - (settings.train.local_rounds if method.tunes else 0)

    def begin(self) -> State:
        """The state before round 1; the same weights for every method that has a tensor."""
        start = hashlib.sha256(b"compare %d" % self._seed).digest()
        personals = (initial_personal(self._layout, start),) * len(self._federation.silos)
        model = initial_model(self._layout, start)
        ewc = self.plan.training.ewc
        if ewc is None:
            return State(0, model, personals, 0, 0)
        return State(0, model, personals, 0, 0, consolidation.initial(ewc, model))

    def run(self, state: State) -> Iterator[State]:
        """The states after each of the rounds that are left."""
        if state.number < self._together:
            silos = self._silos(self.plan, self._layout)
            while state.number < self._together:
                state = self._average(silos, state)
                yield state
        if state.number < self._settings.train.rounds:
            if state.number == self._together:
                networks = self.networks(state)
                state = State(
                    state.number,
                    np.zeros(0, dtype=np.int64),
                    tuple(_vector(self._alone, network) for network in networks),
                    state.bytes,
                    state.steps,
                )
            silos = self._silos(plan_of(*self._row, alone=True), self._alone)
            while state.number < self._settings.train.rounds:
                state = self._go_on_alone(silos, state)
                yield state

    def networks(self, state: State) -> tuple[Tensors, ...]:
        """Every silo's whole network, tensors by name."""
        layout = self._layout if state.number <= self._together else self._alone
        shared = layout.split(to_float(state.model), "shared")
        return tuple({**shared, **layout.split(to_float(personal), "personal")} for personal in state.personals)

    @property
    def _row(self) -> tuple[Settings, Federation, Method, Noise | None]:
        return self._settings, self._federation, self._method, self._noise

    def _silos(self, plan: Plan, layout: Layout) -> list[Silo]:
        if self._noise is None:
            return [
                PlainTrainer(plan, layout, data, silo, self._settings.train, (self._seed, 2, silo))
                for silo, data in enumerate(self._federation.silos)
            ]
        count = range(len(self._federation.silos))
        return [_Private(plan, layout, self._federation, silo, self._seed) for silo in count]

    def _average(self, silos: list[Silo], state: State) -> State:
        train, number = self._settings.train, state.number + 1
        sums = self.plan.secure_aggregation
        size = max(round(train.participation * len(silos)), 1)
        cohort = sorted(np.random.default_rng([self._seed, 1, number]).permutation(len(silos))[:size].tolist())
        weights = self._weights(cohort)
        personals = list(state.personals)
        total = np.zeros(self._layout.shared_size, dtype=np.int64)
        ewc = self.plan.training.ewc
        kept = state.kept if ewc is not None else None
        for silo, weight in zip(cohort, weights, strict=True):
            update, personals[silo] = silos[silo].train_round(state.model, personals[silo], number, kept)
            total += quantise(weight * update, sums.clip, sums.fraction_bits)
        model = apply(state.model, total, size, sums.fraction_bits, self.plan.training.server_learning_rate)
        # A masked vector up and a sum down, 32 bits an entry each.
        volume = state.bytes + size * 8 * self._layout.shared_size
        steps = state.steps + size * train.local_steps
        if ewc is None or kept is None:
            return State(number, model, tuple(personals), volume, steps)
        kept = consolidation.advance(ewc, kept, state.model, model)
        return State(number, model, tuple(personals), volume, steps, kept)

    def _go_on_alone(self, silos: list[Silo], state: State) -> State:
        number = state.number + 1
        pairs = zip(silos, state.personals, strict=True)
        personals = tuple(silo.train_round(state.model, personal, number, None)[1] for silo, personal in pairs)
        steps = state.steps + len(silos) * self._settings.train.local_steps
        return State(number, state.model, personals, state.bytes, steps)

    def _weights(self, cohort: list[int]) -> list[float]:
        """What each silo of a round counts, of mean 1."""
        if self._settings.train.weights == "uniform":
            return [1.0] * len(cohort)
        sizes = [self._federation.sizes[silo] for silo in cohort]
        return [size * len(sizes) / sum(sizes) for size in sizes]


def _vector(layout: Layout, network: Tensors) -> Model:
    return from_float(np.concatenate([network[tensor.name].reshape(-1) for tensor in layout.tensors]))
