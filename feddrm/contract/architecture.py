"""What every kind of model says of itself: which tensors it has, by name, shape and initial values (design section 5).

A pure function of the document and of the shape of a record, so that whoever holds a plan knows what a vector of
weights means without torch. The heads are the same for all kinds: both are linear in the embedding, the trunk's output.
"""

from __future__ import annotations

import fnmatch
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from feddrm.contract.names import Grown

# What a network is given of one record: (features,), or (channels, height, width).
Shape = tuple[int, ...]
Initial = Literal["uniform", "one", "zero"]
Part = Literal["trunk", "routing", "target"]
Pattern = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.*]{1,64}$")]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a model.

    Attributes:
        name: also the name of the torch parameter.
        shape: row-major.
        fan_in: inputs of the layer it belongs to.
        initial: "uniform" in +-1/sqrt(fan_in), "one" or "zero".
        part: of the network.
    """

    name: str
    shape: tuple[int, ...]
    fan_in: int
    initial: Initial = "uniform"
    part: Part = "trunk"

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


class Architecture(Grown, ABC):
    """What all kinds of model have.

    Attributes:
        personal: shell patterns over tensor names: the tensors of which every silo keeps its own, and which never leave
            it. All others are shared: averaged by secure sums.
    """

    later: ClassVar[frozenset[str]] = frozenset({"personal"})

    kind: str

    personal: Annotated[tuple[Pattern, ...], Field(max_length=64)] = ("target_head.*",)

    def inputs(self, shape: Shape) -> Shape:
        """What the network gets of records of this shape."""
        return shape

    def check(self, shape: Shape) -> None:
        """Refuse records of a shape that the network cannot take.

        Raises:
            ValueError: it cannot.
        """

    @abstractmethod
    def trunk(self, shape: Shape) -> tuple[TensorSpec, ...]:
        """The trunk's tensors in order, for `inputs` of this shape."""

    @abstractmethod
    def embedding(self, shape: Shape) -> int:
        """Length of the embedding."""

    def words(self) -> str:
        """For people: the kind, and what it was given."""
        document = self.model_dump(mode="json", exclude={"kind", "personal"})
        sizes = ", ".join(f"{key} {_sizes(value)}" for key, value in document.items())
        return f"{self.kind}, {sizes}" if sizes else self.kind

    @abstractmethod
    def text(self, shape: Shape) -> str:
        """What names and shapes of tensors leave open, for fingerprints of layouts; empty where that is nothing."""


def groups_of(channels: int) -> int:
    """How many groups GroupNorm divides channels into."""
    return math.gcd(channels, 8)


def tensors_of(model: Architecture, shape: Shape, silos: int, classes: int) -> tuple[TensorSpec, ...]:
    """All tensors in order: the trunk's, the routing head's (one class a silo), the target head's.

    Args:
        shape: `model.inputs` of the schema's shape.
    """
    width = model.embedding(shape)
    return (
        *model.trunk(shape),
        TensorSpec("routing_head.weight", (silos, width), width, part="routing"),
        TensorSpec("routing_head.bias", (silos,), width, part="routing"),
        TensorSpec("target_head.weight", (classes, width), width, part="target"),
        TensorSpec("target_head.bias", (classes,), width, part="target"),
    )


def matching(patterns: Sequence[str], tensors: Sequence[TensorSpec]) -> frozenset[str]:
    """Names of the tensors that patterns choose.

    Raises:
        ValueError: a pattern chooses none.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = fnmatch.filter([tensor.name for tensor in tensors], pattern)
        if not found:
            raise ValueError(f'"{pattern}" matches no tensor of this model')
        chosen.update(found)
    return frozenset(chosen)


def linear(name: str, inputs: int, outputs: int) -> tuple[TensorSpec, ...]:
    """Tensors of a linear layer of the trunk."""
    return (
        TensorSpec(f"trunk.{name}.weight", (outputs, inputs), inputs),
        TensorSpec(f"trunk.{name}.bias", (outputs,), inputs),
    )


def convolution(name: str, inputs: int, outputs: int, side: int, *, bias: bool) -> tuple[TensorSpec, ...]:
    """Tensors of a square convolution of the trunk."""
    fan_in = inputs * side * side
    weight = TensorSpec(f"trunk.{name}.weight", (outputs, inputs, side, side), fan_in)
    return (weight, TensorSpec(f"trunk.{name}.bias", (outputs,), fan_in)) if bias else (weight,)


def norm(name: str, channels: int) -> tuple[TensorSpec, ...]:
    """Tensors of a GroupNorm of the trunk, which begins as it is: factors of one, offsets of zero."""
    return (
        TensorSpec(f"trunk.{name}.weight", (channels,), channels, "one"),
        TensorSpec(f"trunk.{name}.bias", (channels,), channels, "zero"),
    )


def _sizes(value: object) -> str:
    return "-".join(str(part) for part in value) if isinstance(value, list) else str(value)
