"""DP-SGD on both losses of FedDRM, as design section 7 fixes it. The only importer of opacus.

One step: Poisson-sample patients, draw one record of each, take the gradient of
lambda * CE(target) + (1 - lambda) * CE(silo) for each record over *all* parameters, clip it once to C, sum, add
N(0, sigma**2 C**2), divide by q * m. Trunk and both heads are inside the one clip: a target head that is trained
without privacy would leak into the trunk through its gradient.

Removing one patient removes at most one record's clipped gradient from the sum and changes no other draw, so a step is
a Poisson-subsampled Gaussian mechanism of sensitivity C (Abadi et al. 2016, arXiv 1607.00133), and the whole of
`train_round` is post-processing of its `local_steps` steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from feddrm.contract.errors import FeddrmError, InputError
from feddrm.contract.plan import Plan, Training
from feddrm.features import Dataset
from feddrm.method.layout import Layout
from feddrm.method.model import build, load_vectors, read
from feddrm.method.update import Model, from_float
from privacy.noise import GaussianSource, grid_for
from privacy.sampling import pick_record, poisson_mask

# The clip is applied in float64 and aims this far below C. The float32 gradient of a record depends in its last bits on
# how many others share the batch (matrix kernels differ by shape), so that removing a patient moves all others by some
# 2**-22 of C each; the margin takes up that and every rounding of norm, product and sum, for batches of some thousand.
_BELOW_CLIP: Final = 1.0 - 2.0**-12


class Stop(Protocol):
    """A stop signal, such as threading.Event."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


class Noise(Protocol):
    """Where noise comes from: `privacy.noise.GaussianSource`."""

    def add(self, values: npt.ArrayLike, std: float, grid: float) -> npt.NDArray[np.float64]:
        """`values` + N(0, std**2) a coordinate, rounded to multiples of `grid`."""
        ...


class TrainingStopped(FeddrmError):  # noqa: N818 - what happened, not a fault
    """The stop signal was set; nothing of the round may be used, and its reservation counts as spent."""


class _PrivateOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus' DPOptimizer with exact clipping, non-finite gradients as zero, and noise from a CSPRNG."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise_multiplier: float,
        clip_norm: float,
        divisor: float,
        noise: Noise,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=clip_norm,
            # Opacus types it as an int; it is only ever a divisor, and rounding q * m would change the learning rate.
            expected_batch_size=divisor,
            loss_reduction="mean",
        )
        self._noise = noise

    def clip_and_accumulate(self) -> None:
        """Put the sum of clipped per-record gradients, float64, into `summed_grad`."""
        samples: list[torch.Tensor] = self.grad_samples
        count = len(samples[0])
        squares = torch.zeros(count, dtype=torch.float64)
        for sample in samples:
            if len(sample) != count:
                raise AssertionError("gradients of several passes must not mix")
            squares += sample.flatten(start_dim=1).double().square().sum(dim=1)
        norms = squares.sqrt()
        finite = norms.isfinite()
        bound = self.max_grad_norm * _BELOW_CLIP
        factors = torch.where(finite, bound / norms.clamp(min=bound), 0.0)
        for parameter, sample in zip(self.params, samples, strict=True):
            rows = sample.reshape(count, parameter.numel()).double()
            # Zero times infinity is not zero: the rows themselves must go.
            rows = torch.where(finite[:, None], rows, 0.0)
            parameter.summed_grad = (factors @ rows).reshape(parameter.shape)
            # Spent: a second step without a new backward pass would release the same records again, uncharged.
            parameter.grad_sample = None

    def add_noise(self) -> None:
        """Add noise to all coordinates at once and put the result, float32, into `grad`."""
        total = torch.cat([parameter.summed_grad.reshape(-1) for parameter in self.params]).numpy()
        std = self.noise_multiplier * self.max_grad_norm
        noised = torch.from_numpy(self._noise.add(total, std, grid_for(std)))
        offset = 0
        for parameter in self.params:
            part = noised[offset : offset + parameter.numel()]
            parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
            parameter.summed_grad = None
            offset += parameter.numel()

    def scale_grad(self) -> None:
        """Divide by the public q * m, whatever the batch's size."""
        for parameter in self.params:
            parameter.grad /= self.expected_batch_size


class DpSgd:
    """The mechanism: one network, one optimiser over all of its parameters, one clip.

    Args:
        module: returns (target logits, routing logits); all parameters trainable, no running statistics.
        training: clip, noise multiplier, lambda, local learning rate.
        divisor: the public q * m.
        noise: drawn from in every step, an empty one too.

    Raises:
        InputError: the module has a layer that mixes records or keeps statistics of them, or frozen parameters.
    """

    def __init__(self, module: nn.Module, training: Training, *, divisor: float, noise: Noise) -> None:
        refuse_unsafe(module)
        if not divisor > 0:
            raise ValueError("the divisor q * m must be positive")
        # Features need no gradient, which torch reports on every step and which is right here.
        warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed")
        self._weight = training.target_weight
        # Gradients are those of the *sum* of record losses: a mean would tie each record's gradient to the others.
        self._module = GradSampleModule(module, batch_first=True, loss_reduction="sum")
        self._module.forbid_grad_accumulation()
        self._optimizer = _PrivateOptimizer(
            torch.optim.SGD(module.parameters(), lr=training.learning_rate),
            noise_multiplier=training.noise_multiplier,
            clip_norm=training.clip_norm,
            divisor=divisor,
            noise=noise,
        )

    def step(self, features: torch.Tensor, targets: torch.Tensor, silo: int) -> None:
        """One noised step on a Poisson batch, empty or not.

        Args:
            features: float32[b, d], one record of each patient drawn.
            targets: int64[b].
            silo: this silo's class in the routing head.
        """
        self._module.train()
        self._optimizer.zero_grad(set_to_none=True)
        target_logits, routing_logits = self._module(features)
        silos = torch.full((len(features),), silo, dtype=torch.int64)
        losses = self._weight * functional.cross_entropy(target_logits, targets, reduction="none") + (
            1.0 - self._weight
        ) * functional.cross_entropy(routing_logits, silos, reduction="none")
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def refuse_unsafe(module: nn.Module) -> None:
    """Refuse layers for which a record's gradient would depend on other records, or that would keep their statistics.

    Raises:
        InputError: names the layer.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase):
            raise InputError(
                f"Layer {name} is a {type(layer).__name__}: its running statistics leak records.",
                remedy="Use GroupNorm or LayerNorm.",
            )
    for name, _ in module.named_buffers():
        raise InputError(f"Buffer {name} would not be covered by differential privacy.", remedy="Remove it.")
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            raise InputError(f"Parameter {name} is frozen, but the plan trains every tensor of its layout.")


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
        InputError: the data have no targets or another width.
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
        if data.targets is None or data.features.shape[1] != plan.schema_.width:
            raise InputError("Training needs records with targets, encoded by the plan's schema.")
        if not 0 <= silo_index < len(plan.silos) or public_size < 1:
            raise ValueError("silo_index or public_size is out of range")
        self._training = plan.training
        self._layout = layout
        self._silo = silo_index
        self._entropy = entropy
        self._features = torch.from_numpy(data.features.astype(np.float32))
        self._targets = torch.from_numpy(data.targets.astype(np.int64))
        self._records: dict[bytes, list[int]] = {}
        for index, patient in enumerate(data.patients):
            self._records.setdefault(patient, []).append(index)
        self._patients = tuple(self._records)
        self._network = build(plan)
        divisor = plan.training.sampling_rate * public_size
        self._engine = DpSgd(self._network, plan.training, divisor=divisor, noise=GaussianSource(entropy))

    def train_round(self, model: Model, personal: Model, stop: Stop) -> tuple[npt.NDArray[np.float64], Model]:
        """`local_steps` private steps from the round's model.

        Args:
            model: int64[shared_size].
            personal: int64[personal_size].
            stop: checked before every step.

        Returns:
            (update float64[shared_size] = weights after minus before, new personal vector int64[personal_size]).

        Raises:
            TrainingStopped: `stop` was set.
        """
        load_vectors(self._network, self._layout, model, personal)
        before = read(self._network, self._layout, "shared")
        for _ in range(self._training.local_steps):
            if stop.is_set():
                raise TrainingStopped("Training was stopped before the round was complete.")
            drawn = self._draw()
            self._engine.step(self._features[drawn], self._targets[drawn], self._silo)
        update = read(self._network, self._layout, "shared") - before
        return update, from_float(read(self._network, self._layout, "personal"))

    def _draw(self) -> torch.Tensor:
        key = self._entropy(32)
        drawn = poisson_mask(key, self._patients, self._training.sampling_rate)
        indices = []
        for patient, selected in zip(self._patients, drawn.tolist(), strict=True):
            if selected:
                records = self._records[patient]
                indices.append(records[pick_record(key, patient, len(records))])
        return torch.tensor(indices, dtype=torch.int64)
