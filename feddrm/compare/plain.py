"""Local steps without privacy, as the papers take them: shuffled batches, momentum, weight decay.

The deployment has no such steps; everything around them is its own: network, layout, initial weights, quantiser, and
fixed-point averages. Momentum begins anew in every round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from feddrm.compare.settings import Train
from feddrm.contract.plan import Plan
from feddrm.features import Dataset
from feddrm.method.layout import Layout
from feddrm.method.model import build, load_vectors, one_thread, read
from feddrm.method.pulls import Pull, add_pulls
from feddrm.method.trainer import pulls_of
from feddrm.method.update import Model, from_float


class PlainTrainer:
    """A silo's side of stage 1 without privacy; what `feddrm.method.trainer.Trainer` is with it.

    Args:
        plan: of the method.
        layout: `layout_of(plan)`.
        data: records with targets.
        silo: this silo's place in the plan.
        train: of the comparison; what methods differ in is in the plan.
        seed: of the shuffles.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        data: Dataset,
        silo: int,
        train: Train,
        seed: tuple[int, ...],
    ) -> None:
        self._layout = layout
        self._plan = plan
        self._weight_decay = train.weight_decay
        self._weight = plan.training.target_weight
        self._silo = silo
        self._features = torch.from_numpy(data.features)
        self._targets = torch.from_numpy(data.known_targets())
        self._batch = min(train.batch or max(round(train.sampling_rate * len(data)), 1), len(data))
        self._network = build(plan).train()
        self._seed = seed
        self._generator = np.random.default_rng(seed)
        parameters = dict(self._network.named_parameters())
        personal = {tensor.name for tensor in layout.of("personal")}
        everything = list(parameters.values())
        heads = [parameter for name, parameter in parameters.items() if name in personal]
        self._shared = [parameter for name, parameter in parameters.items() if name not in personal]
        steps = plan.training.head_steps
        self._phases = (
            [(heads, steps), (self._shared, train.local_steps - steps)] if steps else [(everything, train.local_steps)]
        )

    def train_round(
        self, model: Model, personal: Model, number: int, kept: Model | None = None
    ) -> tuple[npt.NDArray[np.float64], Model]:
        """(update float64[shared_size], new personal vector int64[personal_size]) of round `number`, from 1.

        Args:
            model: int64[shared_size].
            personal: int64[personal_size].
            number: of the round.
            kept: what consolidation keeps; needed where the plan has `ewc`.
        """
        self._generator = np.random.default_rng([*self._seed, number])
        load_vectors(self._network, self._layout, model, personal)
        before = read(self._network, self._layout, "shared")
        pulls = pulls_of(self._plan, self._layout, self._network, kept)
        with one_thread():
            for parameters, steps in self._phases:
                self._steps(parameters, steps, self._plan.training.rate(number), pulls)
        update = read(self._network, self._layout, "shared") - before
        return update, from_float(read(self._network, self._layout, "personal"))

    def _steps(self, parameters: list[torch.nn.Parameter], steps: int, rate: float, pulls: Sequence[Pull]) -> None:
        training = self._plan.training
        decay = self._weight_decay
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=training.momentum, weight_decay=decay)
        silos = torch.full((self._batch,), self._silo, dtype=torch.int64)
        for drawn in self._batches(steps):
            target_logits, routing_logits = self._network(self._features[drawn])
            loss = functional.cross_entropy(target_logits, self._targets[drawn])
            if self._weight < 1:
                routing = functional.cross_entropy(routing_logits, silos[: len(drawn)])
                loss = self._weight * loss + (1 - self._weight) * routing
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            add_pulls(pulls, self._network.named_parameters())
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
