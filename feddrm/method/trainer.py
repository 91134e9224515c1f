"""A silo's rounds of private training: Poisson draws of patients, steps of feddrm.method.dpsgd, the change made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from feddrm.contract.errors import FeddrmError, InputError
from feddrm.contract.plan import Plan
from feddrm.contract.training import Training
from feddrm.features import Dataset
from feddrm.method import consolidation
from feddrm.method.dpsgd import DpSgd
from feddrm.method.draws import Draws
from feddrm.method.layout import Layout
from feddrm.method.model import build, load_vectors, read
from feddrm.method.pulls import Pull
from feddrm.method.update import Model, from_float, to_float
from privacy.noise import GaussianSource


class Stop(Protocol):
    """A stop signal, such as threading.Event."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


class TrainingStopped(FeddrmError):  # noqa: N818 - what happened, not a fault
    """The stop signal was set; nothing of the round may be used, and its reservation counts as spent."""


class Trainer:
    """A silo's side of stage 1. Made once for a job; a round depends on its arguments and entropy alone.

    Args:
        plan: of the job.
        layout: `layout_of(plan)`.
        data: encoded records with targets.
        silo_index: this silo's place in `plan.silos`.
        public_size: m, the silo's public approximate number of patients, fixed for life.
        entropy: a CSPRNG such as os.urandom, for sampling and noise.

    Raises:
        InputError: the data have no targets or another width, or this machine's arithmetic is not fit (`check_rows`).
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        data: Dataset,
        silo_index: int,
        public_size: int,
        entropy: Callable[[int], bytes],
    ) -> None:
        if data.targets is None or data.features.shape[1] != plan.width:
            raise InputError("Training needs records with targets, encoded by the plan's schema.")
        if not 0 <= silo_index < len(plan.silos) or public_size < 1:
            raise ValueError("silo_index or public_size is out of range")
        self._plan = plan
        self._layout = layout
        self._silo = silo_index
        self._features = torch.from_numpy(data.features.astype(np.float32))
        self._targets = torch.from_numpy(data.targets.astype(np.int64))
        self._phases = _phases(plan.training, layout)
        self._draws = Draws(data.patients, plan.training.sampling_rate, entropy)
        self._network = build(plan)
        divisor = plan.training.sampling_rate * public_size
        self._engine = DpSgd(self._network, plan.training, divisor=divisor, noise=GaussianSource(entropy))
        self._engine.check_rows(plan.width, len(plan.schema_.target.classes))

    def train_round(
        self, model: Model, personal: Model, stop: Stop, number: int = 1, kept: Model | None = None
    ) -> tuple[npt.NDArray[np.float64], Model]:
        """`local_steps` private steps from the round's model.

        Args:
            model: int64[shared_size].
            personal: int64[personal_size].
            stop: checked before every step.
            number: of the round, from 1.
            kept: what consolidation keeps in the job's state; None if the plan has no `ewc`.

        Returns:
            (update float64[shared_size] = weights after minus before, new personal vector int64[personal_size]).

        Raises:
            TrainingStopped: `stop` was set.
        """
        load_vectors(self._network, self._layout, model, personal)
        before = read(self._network, self._layout, "shared")
        pulls = pulls_of(self._plan, self._layout, self._network, kept)
        for active, steps in self._phases:
            self._engine.begin(self._plan.training.rate(number), pulls, active)
            for _ in range(steps):
                if stop.is_set():
                    raise TrainingStopped("Training was stopped before the round was complete.")
                drawn = self._draws.draw()
                self._engine.step(self._features[drawn], self._targets[drawn], self._silo)
        update = read(self._network, self._layout, "shared") - before
        return update, from_float(read(self._network, self._layout, "personal"))


def pulls_of(plan: Plan, layout: Layout, network: torch.nn.Module, kept: Model | None) -> list[Pull]:
    """What pulls the weights of a round that begins with the network's.

    Args:
        plan: of the job.
        layout: `layout_of(plan)`.
        network: as the round finds it.
        kept: what consolidation keeps in the job's state; None if the plan has no `ewc`.

    Raises:
        ValueError: the plan has `ewc`, and nothing was kept.
    """
    training, pulls = plan.training, []
    if training.proximal_mu:
        parameters = dict(network.named_parameters())
        anchors = {tensor.name: parameters[tensor.name].detach().clone() for tensor in layout.of("shared")}
        pulls.append(Pull(anchors, dict.fromkeys(anchors, torch.tensor(training.proximal_mu))))
    if training.ewc is not None:
        if kept is None:
            raise ValueError("the plan consolidates, so that a round needs what was kept")
        strengths = consolidation.strengths(training.ewc, plan.held, layout, kept).astype(np.float32)
        pulls.append(Pull(_tensors(layout, to_float(consolidation.anchor(kept))), _tensors(layout, strengths)))
    return pulls


def _tensors(layout: Layout, vector: npt.NDArray[np.float32]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values.copy()) for name, values in layout.split(vector).items()}


def _phases(training: Training, layout: Layout) -> list[tuple[frozenset[str] | None, int]]:
    """(names of the tensors that move, or None for all; steps) of the parts of a round."""
    if not training.head_steps:
        return [(None, training.local_steps)]
    personal, shared = (frozenset(tensor.name for tensor in layout.of(scope)) for scope in ("personal", "shared"))
    return [(personal, training.head_steps), (shared, training.local_steps - training.head_steps)]
