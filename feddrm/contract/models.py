"""The kinds of model that a plan may name, and the partition of their tensors into SHARED and PERSONAL.

No kind has batch statistics: a record's gradient would depend on the other records (docs/privacy.md). Convolutions are
followed by GroupNorm (Wu and He 2018, arXiv 1803.08494), which looks at one record alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from feddrm.contract.architecture import Architecture, Shape, TensorSpec, convolution, linear, norm
from feddrm.contract.documents import Hash

Width = Annotated[int, Field(ge=1, le=4096)]

# Methods as partitions: which tensors are personal (shell patterns). FedRep is FedPer with `training.head_steps`.
PARTITIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "feddrm": ("target_head.*",),
    "fedavg": (),
    "fedper": ("target_head.*",),
    "fedrep": ("target_head.*",),
    "lg-fedavg": ("trunk.*",),
    "fedbn": ("trunk.*norm*",),
    "local": ("*",),
}


class Mlp(Architecture):
    """A multilayer perceptron: ReLU layers. Images are taken as rows of pixels."""

    kind: Literal["mlp"]
    hidden: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)]

    def trunk(self, shape: Shape) -> tuple[TensorSpec, ...]:
        """A weight and a bias for each hidden layer."""
        return tuple(_perceptron(math.prod(shape), self.hidden))

    def embedding(self, shape: Shape) -> int:  # noqa: ARG002 - as in every kind
        """Width of the last hidden layer."""
        return self.hidden[-1]

    def text(self, shape: Shape) -> str:  # noqa: ARG002 - as in every kind
        """Nothing is open: ReLU after each layer."""
        return ""


class Linear(Architecture):
    """No trunk: both heads are linear in the features themselves, which the schema's public bounds scale. For few
    patients. A query then shows the coordinator features, so it is served only where every policy allows it."""

    kind: Literal["linear"]

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the trunk's layers: there are none."""
        return ()

    def trunk(self, shape: Shape) -> tuple[TensorSpec, ...]:  # noqa: ARG002 - as in every kind
        """No tensors."""
        return ()

    def embedding(self, shape: Shape) -> int:
        """As many as there are features."""
        return math.prod(shape)

    def text(self, shape: Shape) -> str:  # noqa: ARG002 - as in every kind
        """Nothing is open."""
        return ""


class LenetGn(Architecture):
    """LeNet (LeCun et al. 1998) with GroupNorm: two convolutions of 5 x 5 with pooling, two linear layers.

    The embedding is normalised as a whole before its ReLU, so that its range does not depend on records.
    """

    kind: Literal["lenet_gn"]
    channels: tuple[Width, Width] = (6, 16)
    hidden: Width = 120
    units: Width = 84

    def check(self, shape: Shape) -> None:
        """Two convolutions without padding and two poolings must leave something."""
        _check_image(self.kind, shape, smallest=16)

    def trunk(self, shape: Shape) -> tuple[TensorSpec, ...]:
        """conv1, norm1, conv2, norm2, fc1, fc2, embedding_norm."""
        colours, height, width = shape
        first, second = self.channels
        height, width = (_lenet_side(side) for side in (height, width))
        return (
            *convolution("conv1", colours, first, 5, bias=True),
            *norm("norm1", first),
            *convolution("conv2", first, second, 5, bias=True),
            *norm("norm2", second),
            *linear("fc1", second * height * width, self.hidden),
            *linear("fc2", self.hidden, self.units),
            *norm("embedding_norm", self.units),
        )

    def embedding(self, shape: Shape) -> int:  # noqa: ARG002 - as in every kind
        """`units`."""
        return self.units

    def text(self, shape: Shape) -> str:
        """The order of operations is a version of the code."""
        return f"{self.kind} 1 {shape}"


class ResNet18Gn(Architecture):
    """ResNet-18 (He et al. 2016) with GroupNorm, its embedding projected to `units` and normalised as a whole.

    Images of less than 64 pixels a side begin with a convolution of 3 x 3, larger ones with 7 x 7 of stride 2 and
    pooling.
    """

    kind: Literal["resnet18_gn"]
    width: Annotated[int, Field(ge=8, le=64, multiple_of=8)] = 64
    units: Width = 128

    def check(self, shape: Shape) -> None:
        """Three halvings must leave something."""
        _check_image(self.kind, shape, smallest=16)

    def trunk(self, shape: Shape) -> tuple[TensorSpec, ...]:
        """conv, norm, eight blocks of two convolutions, fc, embedding_norm."""
        tensors = [
            *convolution("conv", shape[0], self.width, self.stem(shape)[0], bias=False),
            *norm("norm", self.width),
        ]
        for number, (inside, outside, stride) in enumerate(self.blocks()):
            place = f"blocks.{number}"
            tensors += convolution(f"{place}.conv1", inside, outside, 3, bias=False)
            tensors += norm(f"{place}.norm1", outside)
            tensors += convolution(f"{place}.conv2", outside, outside, 3, bias=False)
            tensors += norm(f"{place}.norm2", outside)
            if stride != 1 or inside != outside:
                tensors += convolution(f"{place}.short", inside, outside, 1, bias=False)
                tensors += norm(f"{place}.short_norm", outside)
        tensors += linear("fc", 8 * self.width, self.units)
        return (*tensors, *norm("embedding_norm", self.units))

    def stem(self, shape: Shape) -> tuple[int, int]:
        """(kernel, stride) of the first convolution; the larger one is followed by pooling."""
        return (3, 1) if min(shape[1:]) < 64 else (7, 2)

    def blocks(self) -> tuple[tuple[int, int, int], ...]:
        """(channels in, channels out, stride) of the eight blocks."""
        widths = [self.width * factor for factor in (1, 1, 1, 2, 2, 4, 4, 8, 8)]
        return tuple((a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths))

    def embedding(self, shape: Shape) -> int:  # noqa: ARG002 - as in every kind
        """`units`."""
        return self.units

    def text(self, shape: Shape) -> str:
        """The order of operations is a version of the code."""
        return f"{self.kind} 1 {shape}"


class Frozen(Architecture):
    """A public feature extractor that nobody trains, and a multilayer perceptron on what it extracts.

    Every silo and every querier has the extractor as a file; the plan names the one that counts by its hash. Each
    record's output is normalised to mean 0 and variance 1 and cut at four deviations, so that features lie in [-1, 1].

    Attributes:
        sha256: of the file.
        form: as torch.jit.save or torch.export.save writes it.
        features: length of its output.
    """

    kind: Literal["frozen"]
    sha256: Hash
    form: Literal["torchscript", "export"]
    features: Width
    hidden: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)]

    def inputs(self, shape: Shape) -> Shape:  # noqa: ARG002 - as in every kind
        """What was extracted."""
        return (self.features,)

    def trunk(self, shape: Shape) -> tuple[TensorSpec, ...]:
        """A weight and a bias for each hidden layer."""
        return tuple(_perceptron(math.prod(shape), self.hidden))

    def embedding(self, shape: Shape) -> int:  # noqa: ARG002 - as in every kind
        """Width of the last hidden layer."""
        return self.hidden[-1]

    def text(self, shape: Shape) -> str:  # noqa: ARG002 - as in every kind
        """The extractor."""
        return f"{self.kind} 1 {self.sha256.hex()}"


AnyModel = Annotated[Mlp | Linear | LenetGn | ResNet18Gn | Frozen, Field(discriminator="kind")]


def _check_image(kind: str, shape: Shape, smallest: int) -> None:
    if len(shape) != 3:
        raise ValueError(f'model.kind "{kind}" needs images: give schema.image instead of schema.columns')
    if min(shape[1:]) < smallest:
        raise ValueError(f'model.kind "{kind}" needs images of at least {smallest} x {smallest} pixels')


def _lenet_side(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


def _perceptron(width: int, hidden: Sequence[int]) -> Iterator[TensorSpec]:
    for index, (before, after) in enumerate(itertools.pairwise((width, *hidden))):
        yield from linear(str(index), before, after)
