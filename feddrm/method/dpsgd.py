"""DP-SGD on both losses of FedDRM, as design section 7 fixes it. With `aligned` the only importer of opacus.

One step: Poisson-sample patients, draw one record of each, take the gradient of
lambda * CE(target) + (1 - lambda) * CE(silo) for each record over *all* parameters, clip it once to C, sum, add
N(0, sigma**2 C**2), divide by q * m. Trunk and both heads are inside the one clip: a target head that is trained
without privacy would leak into the trunk through its gradient.

Removing one patient removes at most one record's clipped gradient from the sum and changes nothing else, so a step is
a Poisson-subsampled Gaussian mechanism of sensitivity C (Abadi et al. 2016, arXiv 1607.00133), and a whole round is
post-processing of its steps. That it changes nothing else has three parts: draws are keyed by patient
(privacy.sampling); a record's gradient is the same bits whoever shares the batch and wherever in it the record stands,
for which gradients are computed in blocks of one shape by aligned products, and the machine is put to the test first;
and clipped gradients are added exactly (feddrm.method.exact).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from feddrm.contract.errors import InputError
from feddrm.contract.training import Training
from feddrm.method.aligned import align
from feddrm.method.blocks import block_for, padded
from feddrm.method.exact import Clip, ExactSum, Layer, Other
from feddrm.method.model import one_thread
from feddrm.method.pulls import Pull, add_pulls
from privacy.noise import grid_for

_ODD: Final = 0x9E3779B97F4A7C15 - (1 << 64)


class Noise(Protocol):
    """Where noise comes from: `privacy.noise.GaussianSource`."""

    def add(self, values: npt.ArrayLike, std: float, grid: float) -> npt.NDArray[np.float64]:
        """`values` + N(0, std**2) a coordinate, rounded to multiples of `grid`."""
        ...


class _PrivateOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus' DPOptimizer with exact clipped sums, non-finite gradients as zero, and noise from a CSPRNG.

    Args:
        optimizer: of all parameters, weights and bias of a layer after each other.
        layers: those whose gradients `_factors` keeps.
        training: clip and noise multiplier.
        divisor: as `DpSgd`.
        noise: as `DpSgd`.

    Attributes:
        names: of the parameters, in their order.
        active: names of those that the next step moves.
        pulls: of the next steps.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Sequence[str],
        layers: Collection[nn.Linear],
        training: Training,
        *,
        divisor: float,
        noise: Noise,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=training.noise_multiplier,
            max_grad_norm=training.clip_norm,
            # Opacus types it as an int; it is only ever a divisor, and rounding q * m would change the learning rate.
            expected_batch_size=divisor,
            loss_reduction="mean",
        )
        self._noise = noise
        self.names = tuple(names)
        self.active = frozenset(self.names)
        self.pulls: tuple[Pull, ...] = ()
        self._name_of = {id(parameter): name for name, parameter in zip(self.names, self.params, strict=True)}
        # Opacus keeps a batch in an attribute that torch's parameters do not declare.
        self._biases: dict[int, Any] = {id(layer.weight): layer.bias for layer in layers}
        biases = {id(bias) for bias in self._biases.values()}
        self._grouped: list[Any] = [parameter for parameter in self.params if id(parameter) not in biases]
        self._clip = Clip(training.clip_norm, [self._group(parameter) for parameter in self._grouped])
        self._sum = ExactSum()
        self._released = torch.zeros(sum(parameter.numel() for parameter in self.params))
        parts = torch.split(self._released, [parameter.numel() for parameter in self.params])
        for parameter, part in zip(self.params, parts, strict=True):
            parameter.grad = part.reshape(parameter.shape)

    def _group(self, parameter: nn.Parameter) -> Layer | Other:
        if id(parameter) not in self._biases:
            return Other(parameter.numel())
        outputs, inputs = parameter.shape
        return Layer(outputs, inputs, bias=self._biases[id(parameter)] is not None)

    def contributions(self, real: int) -> list[torch.Tensor]:
        """What the last block's first `real` rows add to the sum, integers, a row of each piece a record."""
        if any(parameter.grad_sample is None for parameter in self.params):
            raise ValueError("Per sample gradient is not initialized: there was no backward pass.")
        samples: list[torch.Tensor] = []
        for parameter in self._grouped:
            bias = self._biases.get(id(parameter))
            if bias is None:
                samples.append(self._if_moving(parameter, parameter.grad_sample).flatten(1))
            else:
                ones = torch.ones((1, 1)).expand(len(bias.grad_sample), 1)
                samples += [bias.grad_sample, self._if_moving(parameter, parameter.grad_sample)]
                samples.append(self._if_moving(bias, ones))
        return self._clip.contributions(samples, real)

    def _if_moving(self, parameter: Any, sample: torch.Tensor) -> torch.Tensor:
        """What a step does not move is in no clip. Of a layer it is the right vector that is zero: weights or ones."""
        return sample if self._name_of[id(parameter)] in self.active else torch.zeros_like(sample)

    def clip_and_accumulate(self, real: int) -> None:
        """Add the clipped gradients of the last block's first `real` rows to the sum; forget them."""
        self._sum.add(self._clip.total(self.contributions(real)), real)
        for parameter in self.params:
            # Spent: a second step without a new backward pass would release the same records again, uncharged.
            parameter.grad_sample = None

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Noise what was accumulated, all coordinates at once, and divide it by the public q * m: once."""
        if closure is not None or not self._sum:
            raise ValueError("Per sample gradient is not initialized: nothing was accumulated since the last step.")
        std = self.noise_multiplier * self.max_grad_norm
        noised = self._noise.add(self._sum.take(self._clip.unit).numpy(), std, grid_for(std))
        torch.div(torch.from_numpy(noised), self.expected_batch_size, out=self._released)
        if self.pulls or len(self.active) < len(self.names):
            named = list(zip(self.names, self.params, strict=True))
            for name, parameter in named:
                if name not in self.active:
                    parameter.grad.zero_()
            add_pulls(self.pulls, ((name, parameter) for name, parameter in named if name in self.active))
        return True

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - as Opacus calls it
        """Forget everything that was accumulated; a step replaces the old gradients whatever they are."""
        self._sum = ExactSum()
        for parameter in self.params:
            parameter.grad_sample = None


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
        linear = align(module)
        factored = {id(parameter) for layer in linear for parameter in layer.parameters()}
        written = sum(parameter.numel() for parameter in module.parameters() if id(parameter) not in factored)
        self.block = block_for(divisor, written)
        # Features need no gradient, which torch reports on every step and which is right here.
        warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed")
        self._weight = training.target_weight
        names = [name for name, _ in module.named_parameters()]
        # Gradients are those of the *sum* of record losses: a mean would tie each record's gradient to the others.
        self._module = GradSampleModule(module, batch_first=True, loss_reduction="sum")
        self._module.forbid_grad_accumulation()
        self._module.train()
        self._optimizer = _PrivateOptimizer(
            torch.optim.SGD(module.parameters(), lr=training.learning_rate, momentum=training.momentum),
            names,
            linear,
            training,
            divisor=divisor,
            noise=noise,
        )

    def begin(self, rate: float, pulls: Sequence[Pull] = (), active: Collection[str] | None = None) -> None:
        """Begin a round, or a part of one: steps from now on have no momentum of earlier ones.

        Args:
            rate: local learning rate.
            pulls: added to every step of what moves.
            active: names of the parameters that move, the only ones in the clip; None for all.
        """
        optimizer = self._optimizer
        optimizer.active = frozenset(optimizer.names if active is None else active)
        optimizer.pulls = tuple(pulls)
        optimizer.original_optimizer.state.clear()
        for group in optimizer.param_groups:
            group["lr"] = rate

    def step(self, features: torch.Tensor, targets: torch.Tensor, silo: int) -> None:
        """One noised step on a Poisson batch, empty or not.

        Args:
            features: float32[b, d], one record of each patient drawn.
            targets: int64[b].
            silo: this silo's class in the routing head.
        """
        with one_thread():
            self._optimizer.zero_grad(set_to_none=True)
            # An empty batch is one block of padding.
            for start in range(0, max(len(features), 1), self.block):
                rows, classes = features[start : start + self.block], targets[start : start + self.block]
                self._backward(rows, classes, silo)
                self._optimizer.clip_and_accumulate(len(rows))
            self._optimizer.step()

    def check_rows(self, width: int, classes: int) -> None:
        """Refuse to train where a record's gradient has other bits at another place of a block or among other records.

        Args:
            width: of the features.
            classes: of the target.

        Raises:
            InputError: it has.
        """
        generator = torch.Generator().manual_seed(0)
        features = 2.0 * torch.rand((self.block, width), generator=generator) - 1.0
        targets = torch.arange(self.block) % classes
        whole = self._fingerprints(features, targets)
        places = torch.arange(self.block)
        for order in (places.roll(1), places.roll(self.block // 2 - 1), places.flip(0), places[:1], places[-5:]):
            if not torch.equal(self._fingerprints(features[order], targets[order]), whole[order]):
                raise InputError(
                    "On this machine a record's gradient depends on the records beside it, which breaks the privacy of "
                    "training.",
                    remedy="Install torch's official build for this processor; report the machine to the developers.",
                )

    def _fingerprints(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """int64[n]: equal for rows whose clipped contributions are equal to the last bit."""
        with one_thread():
            self._optimizer.zero_grad(set_to_none=True)
            self._backward(features, targets, 0)
            # Products and sums wrap around.
            prints = torch.zeros(self.block, dtype=torch.int64)
            for piece in self._optimizer.contributions(len(features)):
                rows = piece.long()
                prints = _ODD * prints + rows.mul_((2 * torch.arange(rows.shape[1]) + 1) * _ODD).sum(dim=1)
            self._optimizer.zero_grad(set_to_none=True)
        return prints[: len(features)]

    def _backward(self, features: torch.Tensor, targets: torch.Tensor, silo: int) -> None:
        features, targets = padded(features, self.block), padded(targets, self.block)
        target_logits, routing_logits = self._module(features)
        silos = torch.full((len(features),), silo, dtype=torch.int64)
        losses = self._weight * functional.cross_entropy(target_logits, targets, reduction="none") + (
            1.0 - self._weight
        ) * functional.cross_entropy(routing_logits, silos, reduction="none")
        losses.sum().backward()  # type: ignore[no-untyped-call]


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
