"""Stage 3: what a silo keeps to itself, tuned by DP-SGD: its target head on the frozen trunk, or more (FedAvg with
fine-tuning: a copy of the whole network). Nothing of it leaves the silo.

It shapes every answer, so its patients need privacy all the same: the mechanism is that of stage 1
(feddrm.method.dpsgd), with the loss of the target alone and the full noise, since nobody shares it. Momentum and the
mean of the last heads work on what was noised (post-processing; for the mean: Polyak and Juditsky 1992), and are worth
much where noise is what limits a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from feddrm.contract.errors import InputError
from feddrm.contract.plan import Plan
from feddrm.contract.stages import PersonalHead
from feddrm.contract.training import Training
from feddrm.features import Dataset
from feddrm.method.dpsgd import DpSgd
from feddrm.method.draws import Draws
from feddrm.method.layout import Layout, Tensor
from feddrm.method.model import build, embed_each, load, load_vectors, read_tensors
from feddrm.method.shared_head import SharedHead
from feddrm.method.trainer import Stop, TrainingStopped
from feddrm.method.update import Model, from_float
from privacy.noise import GaussianSource


class _Head(nn.Module):
    """The target head on embeddings, with one constant routing logit, whose loss is zero and has no gradient."""

    def __init__(self, target_head: nn.Linear) -> None:
        super().__init__()
        self.target_head = target_head

    def forward(self, phi: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.target_head(phi), phi.new_zeros((len(phi), 1))


class LateMean:
    """The mean of what the last steps of this stage left of some tensors.

    Args:
        terms: of the stage.
        network: whose tensors they are.
        tensors: in order.
    """

    def __init__(self, terms: PersonalHead, network: nn.Module, tensors: Sequence[Tensor]) -> None:
        self._first = terms.average_from or terms.steps
        self._count = terms.steps - self._first + 1
        self._network = network
        self._tensors = tensors
        self._total = np.zeros(sum(tensor.size for tensor in tensors))

    def step(self, number: int) -> None:
        """After step `number`, from 1."""
        if number >= self._first:
            self._total += read_tensors(self._network, self._tensors)

    def result(self) -> npt.NDArray[np.float64]:
        """float64[n], after the last one."""
        mean: npt.NDArray[np.float64] = self._total / self._count
        return mean


def fine_tune(
    plan: Plan,
    terms: PersonalHead,
    layout: Layout,
    model: Model,
    personal: Model,
    data: Dataset,
    public_size: int,
    entropy: Callable[[int], bytes],
    stop: Stop,
    shared: SharedHead | None = None,
) -> Model:
    """A new personal vector, int64 of the layout's `own` tensors: `terms.steps` private steps from `personal` and
    `model`, of which only `terms.tensors` move; the mean of what steps `terms.average_from` and later left.

    Args:
        plan: of the job.
        terms: of this stage; its event is PoissonSubsampledGaussian(noise_multiplier, sampling_rate, steps).
        layout: `layout_of(plan)`.
        model: int64[shared_size].
        personal: int64[personal_size].
        data: records with targets, of the patients that are not held out.
        public_size: m, the silo's public approximate number of patients.
        entropy: a CSPRNG such as os.urandom, for sampling and noise.
        stop: checked before every step.
        shared: the target head of all silos, with which `start = "shared"` begins; None where the silo has none, and
            begins with its own.

    Raises:
        InputError: the data have no targets or another width, or this machine's arithmetic is not fit.
        TrainingStopped: `stop` was set; nothing may be used, and the reservation counts as spent.
    """
    if data.targets is None or data.features.shape[1] != plan.width:
        raise InputError("Training needs records with targets, encoded by the plan's schema.")
    layout = replace(layout, tuned=plan.model_copy(update={"personal_head": terms}).tuned)
    network = build(plan)
    load_vectors(network, layout, model, personal)
    if terms.start == "shared" and shared is not None:
        load(network, begun(shared))
    noise = GaussianSource(entropy)
    divisor = terms.sampling_rate * public_size
    if all(name.startswith("target_head.") for name in layout.tuned):
        # Each record by itself: a patient's embedding may not depend on the other patients.
        rows = torch.from_numpy(embed_each(network, data.features))
        head = _Head(network.target_head)
        engine = DpSgd(head, _training(terms), divisor=divisor, noise=noise)
    else:
        rows = torch.from_numpy(data.features)
        engine = DpSgd(network, _training(terms), divisor=divisor, noise=noise)
    engine.check_rows(rows.shape[1], network.target_head.out_features)
    engine.begin(terms.learning_rate, active=layout.tuned)
    targets = torch.from_numpy(data.targets.astype(np.int64))
    draws = Draws(data.patients, terms.sampling_rate, entropy)
    mean = LateMean(terms, network, layout.own)
    for number in range(1, terms.steps + 1):
        if stop.is_set():
            raise TrainingStopped("Tuning was stopped before it was complete.")
        drawn = draws.draw()
        engine.step(rows[drawn], targets[drawn], 0)
        mean.step(number)
    return from_float(mean.result())


def begun(shared: SharedHead) -> dict[str, npt.NDArray[np.float32]]:
    """What a silo's own head begins with: a target head of embeddings as they are, of one of normalised ones.

    The norm of [g, 1] differs from record to record. sqrt(d + 1) is what it is where every unit is one, and depends on
    no record; a head too careful by a factor is soon mended.
    """
    scale = 1.0 / math.sqrt(shared.weight.shape[1] + 1)
    tensors = {"target_head.weight": shared.weight, "target_head.bias": shared.bias}
    return {name: (scale * values).astype(np.float32) for name, values in tensors.items()}


def _training(terms: PersonalHead) -> Training:
    return Training(
        rounds=1,
        local_steps=terms.steps,
        sampling_rate=terms.sampling_rate,
        clip_norm=terms.clip_norm,
        noise_multiplier=terms.noise_multiplier,
        target_weight=1.0,
        learning_rate=terms.learning_rate,
        momentum=terms.momentum,
    )
