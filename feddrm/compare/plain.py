"""Local steps without privacy, as the papers take them: shuffled batches, momentum, weight decay.

The deployment has no such steps; everything around them is its own: network, layout, initial weights, quantiser, and
fixed-point averages. Momentum begins anew in every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from feddrm.compare.data import Federation
from feddrm.compare.settings import Train
from feddrm.compare.tables import targets_of
from feddrm.contract.plan import Plan
from feddrm.features import Dataset
from feddrm.method.layout import Layout, layout_of
from feddrm.method.model import build, load_vectors, one_thread, read
from feddrm.method.update import Model, from_float, to_float

_FISHER_RECORDS: Final = 256
# Of an importance, whose mean is 1: a step must not overshoot what it pulls to.
_MOST_IMPORTANT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What elastic weight consolidation holds on to.

    Args:
        anchor: int64[shared_size], where the shared weights stood.
        weight: float32[shared_size], how much they mattered, of mean 1.
        strength: of the pull.
    """

    anchor: Model = field(repr=False)
    weight: npt.NDArray[np.float32] = field(repr=False)
    strength: float


class PlainTrainer:
    """A silo's side of stage 1 without privacy; what `feddrm.method.trainer.Trainer` is with it.

    Args:
        plan: of the method.
        layout: `layout_of(plan)`.
        data: records with targets.
        silo: this silo's place in the plan.
        train: of the comparison; what methods differ in is in the plan.
        seed: of the shuffles.
        memory: what the shared weights are held on to, if anything.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        data: Dataset,
        silo: int,
        train: Train,
        seed: tuple[int, ...],
        memory: Memory | None = None,
    ) -> None:
        self._layout = layout
        self._plan = plan
        self._weight_decay = train.weight_decay
        self._weight = plan.training.target_weight
        self._silo = silo
        self._features = torch.from_numpy(data.features)
        self._targets = torch.from_numpy(targets_of(data))
        self._batch = min(train.batch or max(round(train.sampling_rate * len(data)), 1), len(data))
        self._network = build(plan).train()
        self._seed = seed
        self._generator = np.random.default_rng(seed)
        parameters = dict(self._network.named_parameters())
        personal = {tensor.name for tensor in layout.of("personal")}
        everything = list(parameters.values())
        heads = [parameter for name, parameter in parameters.items() if name in personal]
        self._shared = [parameter for name, parameter in parameters.items() if name not in personal]
        self._memory: list[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor]] = []
        if memory is not None:
            anchors = layout.split(to_float(memory.anchor))
            weights = layout.split(memory.strength * memory.weight)
            self._memory = [
                (parameters[name], torch.from_numpy(anchor), torch.from_numpy(weights[name].astype(np.float32)))
                for name, anchor in anchors.items()
            ]
        steps = plan.training.head_steps
        self._phases = (
            [(heads, steps), (self._shared, train.local_steps - steps)] if steps else [(everything, train.local_steps)]
        )

    def train_round(self, model: Model, personal: Model, number: int) -> tuple[npt.NDArray[np.float64], Model]:
        """(update float64[shared_size], new personal vector int64[personal_size]) of round `number`, from 1."""
        self._generator = np.random.default_rng([*self._seed, number])
        load_vectors(self._network, self._layout, model, personal)
        before = read(self._network, self._layout, "shared")
        with one_thread():
            for parameters, steps in self._phases:
                self._steps(parameters, steps, self._plan.training.rate(number))
        update = read(self._network, self._layout, "shared") - before
        return update, from_float(read(self._network, self._layout, "personal"))

    def _steps(self, parameters: list[torch.nn.Parameter], steps: int, rate: float) -> None:
        training = self._plan.training
        decay = self._weight_decay
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=training.momentum, weight_decay=decay)
        pulled = self._shared if training.proximal_mu else []
        anchors = [parameter.detach().clone() for parameter in pulled]
        silos = torch.full((self._batch,), self._silo, dtype=torch.int64)
        for drawn in self._batches(steps):
            target_logits, routing_logits = self._network(self._features[drawn])
            loss = functional.cross_entropy(target_logits, self._targets[drawn])
            if self._weight < 1:
                routing = functional.cross_entropy(routing_logits, silos[: len(drawn)])
                loss = self._weight * loss + (1 - self._weight) * routing
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for parameter, anchor in zip(pulled, anchors, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - anchor, alpha=training.proximal_mu)
            for parameter, anchor, weight in self._memory:
                if parameter.grad is not None:
                    parameter.grad.add_(weight * (parameter.detach() - anchor))
            optimizer.step()

    def _batches(self, count: int) -> list[torch.Tensor]:
        """Row numbers, int64[batch] each: every record once before any comes again."""
        rows: list[npt.NDArray[np.int64]] = []
        have = 0
        while have < count * self._batch:
            # A last batch that is not full would weigh its records more.
            order = self._generator.permutation(len(self._targets))[: len(self._targets) // self._batch * self._batch]
            rows.append(order)
            have += len(order)
        drawn = torch.from_numpy(np.concatenate(rows)[: count * self._batch])
        return list(torch.split(drawn, self._batch))


def importance(plan: Plan, federation: Federation, model: Model, personals: Sequence[Model]) -> npt.NDArray[np.float32]:
    """float32[shared_size]: the diagonal of the Fisher information of the target at the silos' records, averaged over
    silos and scaled to mean 1; at most _MOST_IMPORTANT.

    Args:
        plan: of the method.
        federation: of the data.
        model: int64[shared_size].
        personals: each silo's int64[personal_size].
    """
    layout = layout_of(plan)
    network = build(plan).eval()
    total = np.zeros(layout.shared_size)
    for data, personal in zip(federation.silos, personals, strict=True):
        load_vectors(network, layout, model, personal)
        features = torch.from_numpy(data.features[:_FISHER_RECORDS])
        targets = torch.from_numpy(targets_of(data)[:_FISHER_RECORDS])
        parameters = dict(network.named_parameters())
        shared = [parameters[tensor.name] for tensor in layout.of("shared")]
        squares = [np.zeros(tensor.shape) for tensor in layout.of("shared")]
        with one_thread():
            for row in range(len(features)):
                logits, _ = network(features[row : row + 1])
                loss = functional.cross_entropy(logits, targets[row : row + 1])
                found = torch.autograd.grad(loss, shared, allow_unused=True)
                for square, gradient in zip(squares, found, strict=True):
                    if gradient is not None:
                        square += np.square(gradient.numpy())
        total += np.concatenate([square.reshape(-1) for square in squares]) / max(len(features), 1)
    scaled = np.minimum(total / max(float(total.mean()), 1e-30), _MOST_IMPORTANT)
    return scaled.astype(np.float32)
