"""DP-SGD on both losses of FedDRM, as design section 7 fixes it. The only importer of opacus.

One step: Poisson-sample patients, draw one record of each, take the gradient of
lambda * CE(target) + (1 - lambda) * CE(silo) for each record over *all* parameters, clip it once to C, sum, add
N(0, sigma**2 C**2), divide by q * m. Trunk and both heads are inside the one clip: a target head that is trained
without privacy would leak into the trunk through its gradient.

Removing one patient removes at most one record's clipped gradient from the sum and changes nothing else, so a step is
a Poisson-subsampled Gaussian mechanism of sensitivity C (Abadi et al. 2016, arXiv 1607.00133), and a whole round is
post-processing of its steps. That it changes nothing else has three parts: draws are keyed by patient
(privacy.sampling); a record's gradient is the same bits whoever shares the batch and wherever in it the record stands,
for which gradients are computed in blocks of one shape by aligned products, and the machine is put to the test first;
and clipped gradients are added exactly.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from feddrm.contract.errors import InputError
from feddrm.contract.plan import Training
from privacy.noise import grid_for

# Every forward and backward pass has this many rows. Matrix kernels differ by shape: in a batch of another size the
# last bit of a pre-activation differs, and where a ReLU's input is within that bit of zero, the whole gradient of the
# record does, so that removing one patient would move others' contributions by up to 2 C each.
BLOCK: Final = 64
# Within a block, too: where the inner dimension is odd, rows start at different alignments, which kernels treat
# differently (seen at 5, 7, 15, 31). All dimensions are padded with zeros to multiples of 16 floats, a cache line.
_ALIGNED: Final = 16
# The clip is applied in float64 and aims this far below C, which takes up the rounding of norm and product (2**-50) and
# of every coordinate to the grid below (together at most 2**-19 C for 2**24 parameters).
_BELOW_CLIP: Final = 1.0 - 2.0**-12
# Clipped gradients are rounded to multiples of at most 2**-30 C: then float64 adds 2**22 of them without any rounding,
# and the sum without a patient is the sum less that patient's row, to the last bit.
_GRID: Final = 2.0**-30
# Columns that are widened to float64 at once, so that memory follows the block and not the model.
_COLUMNS: Final = 1 << 16
_ODD: Final = 0x9E3779B97F4A7C15 - (1 << 64)


class Noise(Protocol):
    """Where noise comes from: `privacy.noise.GaussianSource`."""

    def add(self, values: npt.ArrayLike, std: float, grid: float) -> npt.NDArray[np.float64]:
        """`values` + N(0, std**2) a coordinate, rounded to multiples of `grid`."""
        ...


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

    def clip_and_accumulate(self, real: int = BLOCK) -> None:
        """Add the clipped gradients of the last block's first `real` rows, float64, to `summed_grad`; forget them."""
        samples: list[torch.Tensor] = self.grad_samples
        if any(len(sample) != BLOCK for sample in samples):
            raise AssertionError("gradients are those of one block")
        squares = torch.zeros(BLOCK, dtype=torch.float64)
        for sample in samples:
            for _, part in _columns(sample):
                squares += part.double().square().sum(dim=1)
        norms = squares.sqrt()
        bound = self.max_grad_norm * _BELOW_CLIP
        factors = (bound / norms.clamp(min=bound))[:, None]
        # Padding and rows that are not finite are taken out, not multiplied: zero times infinity is not zero.
        kept = (norms.isfinite() & (torch.arange(BLOCK) < real))[:, None]
        grid = math.ldexp(1.0, math.frexp(self.max_grad_norm * _GRID)[1] - 1)
        for parameter, sample in zip(self.params, samples, strict=True):
            if parameter.summed_grad is None:
                parameter.summed_grad = torch.zeros(parameter.numel(), dtype=torch.float64)
            for start, part in _columns(sample):
                rows = torch.where(kept, part.double() * factors, 0.0)
                exact = torch.round(rows / grid).sum(dim=0) * grid
                parameter.summed_grad[start : start + len(exact)] += exact
            # Spent: a second step without a new backward pass would release the same records again, uncharged.
            parameter.grad_sample = None

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Noise and divide what was accumulated, once."""
        if closure is not None or any(parameter.summed_grad is None for parameter in self.params):
            raise ValueError("Per sample gradient is not initialized: nothing was accumulated since the last step.")
        self.add_noise()
        self.scale_grad()
        return True

    def add_noise(self) -> None:
        """Add noise to all coordinates at once and put the result, float32, into `grad`."""
        total = torch.cat([parameter.summed_grad for parameter in self.params]).numpy()
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
        for layer in module.modules():
            if type(layer) is nn.Linear:
                layer.forward = _aligned(layer)  # type: ignore[method-assign, assignment]
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
        with _one_thread():
            self._optimizer.zero_grad(set_to_none=True)
            # An empty batch is one block of padding.
            for start in range(0, max(len(features), 1), BLOCK):
                rows, classes = features[start : start + BLOCK], targets[start : start + BLOCK]
                self._backward(_padded(rows), _padded(classes), silo)
                self._optimizer.clip_and_accumulate(len(rows))
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def check_rows(self, width: int, classes: int) -> None:
        """Refuse to train where a record's gradient has other bits at another place of a block or among other records.

        Args:
            width: of the features.
            classes: of the target.

        Raises:
            InputError: it has.
        """
        generator = torch.Generator().manual_seed(0)
        features = 2.0 * torch.rand((BLOCK, width), generator=generator) - 1.0
        targets = torch.arange(BLOCK) % classes
        whole = self._fingerprints(features, targets)
        places = torch.arange(BLOCK)
        for order in (places.roll(1), places.roll(BLOCK // 2 - 1), places.flip(0), places[:1], places[-5:]):
            if not torch.equal(self._fingerprints(features[order], targets[order]), whole[order]):
                raise InputError(
                    "On this machine a record's gradient depends on the records beside it, which breaks the privacy of "
                    "training.",
                    remedy="Install torch's official build for this processor; report the machine to the developers.",
                )

    def _fingerprints(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """int64[n]: equal for rows whose gradients are equal to the last bit."""
        with _one_thread():
            self._optimizer.zero_grad(set_to_none=True)
            self._backward(_padded(features), _padded(targets), 0)
            prints = torch.zeros(BLOCK, dtype=torch.int64)
            for sample in self._optimizer.grad_samples:
                for _, part in _columns(sample):
                    # Adding zero makes one zero of both; products and sums wrap around.
                    bits = (part + 0.0).contiguous().view(torch.int32).long()
                    weights = (2 * torch.arange(bits.shape[1]) + 1) * _ODD
                    prints = prints * _ODD + (bits * weights).sum(dim=1)
            self._optimizer.zero_grad(set_to_none=True)
        return prints[: len(features)]

    def _backward(self, features: torch.Tensor, targets: torch.Tensor, silo: int) -> None:
        self._module.train()
        target_logits, routing_logits = self._module(features)
        silos = torch.full((len(features),), silo, dtype=torch.int64)
        losses = self._weight * functional.cross_entropy(target_logits, targets, reduction="none") + (
            1.0 - self._weight
        ) * functional.cross_entropy(routing_logits, silos, reduction="none")
        losses.sum().backward()  # type: ignore[no-untyped-call]


def _aligned(layer: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    """What `layer` computes of a two-dimensional batch, with products of aligned rows, backwards as well."""

    def forward(rows: torch.Tensor) -> torch.Tensor:
        more_out, more_in = -layer.out_features % _ALIGNED, -layer.in_features % _ALIGNED
        weight = functional.pad(layer.weight, (0, more_in, 0, more_out))
        bias = None if layer.bias is None else functional.pad(layer.bias, (0, more_out))
        return functional.linear(functional.pad(rows, (0, more_in)), weight, bias)[:, : layer.out_features]

    return forward


def _columns(sample: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """A block's gradients of one parameter as (first column, float32[BLOCK, at most _COLUMNS])."""
    rows = sample.reshape(BLOCK, -1)
    for start in range(0, rows.shape[1], _COLUMNS):
        yield start, rows[:, start : start + _COLUMNS]


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """`rows` and zeros after them: BLOCK rows."""
    return torch.cat([rows, rows.new_zeros((BLOCK - len(rows), *rows.shape[1:]))])


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    # More threads divide a matrix into other shapes, by a rule that is the library's own.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
