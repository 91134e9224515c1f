"""Names, shapes, order and scope of a model's tensors: a pure function of the plan (design section 5).

The coordinator (without torch), every silo and every querier derive the same layout from the same signed plan, so a
model travels as a bare vector and "which number is which weight" is never a matter of trust. Initial weights are
integers from SHAKE-256 of the plan hash: nobody chooses them, and they are the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from feddrm.contract import labels
from feddrm.contract.architecture import Initial, Part
from feddrm.contract.plan import Plan

MODEL_FRACTION_BITS: Final = 24

Scope = Literal["shared", "personal"]
_Entry = TypeVar("_Entry", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named tensor.

    Args:
        name: also the name of the torch parameter.
        shape: row-major.
        scope: "shared" tensors are aggregated; "personal" ones never leave the silo.
        part: where it sits in the network.
        fan_in: inputs of the layer it belongs to; 1 / sqrt(fan_in) bounds its initial values.
        initial: "uniform" within that bound, "one" or "zero".
    """

    name: str
    shape: tuple[int, ...]
    scope: Scope
    part: Part
    fan_in: int
    initial: Initial = "uniform"

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """All tensors in order. A shared vector concatenates the shared ones row-major, a personal vector the personal.

    Args:
        tensors: in order.
        architecture: what they leave open about the network; empty where that is nothing.
        tuned: names of the tensors that stage 3 tunes. Once it did, a personal vector holds these as well, the silo's
            own copies of shared ones.
    """

    tensors: tuple[Tensor, ...]
    architecture: str = ""
    tuned: frozenset[str] = frozenset()

    def of(self, scope: Scope) -> tuple[Tensor, ...]:
        """The tensors of one scope in order."""
        return tuple(t for t in self.tensors if t.scope == scope)

    def part(self, part: Part) -> tuple[Tensor, ...]:
        """The tensors of one part in order."""
        return tuple(t for t in self.tensors if t.part == part)

    @cached_property
    def shared_size(self) -> int:
        """Length of a shared vector."""
        return sum(t.size for t in self.of("shared"))

    @cached_property
    def personal_size(self) -> int:
        """Length of a personal vector."""
        return sum(t.size for t in self.of("personal"))

    @cached_property
    def own(self) -> tuple[Tensor, ...]:
        """The tensors of a personal vector after stage 3."""
        return tuple(t for t in self.tensors if t.scope == "personal" or t.name in self.tuned)

    def fingerprint(self) -> bytes:
        """SHA-256 over names, shapes, scopes and parts, and the architecture if any, length-prefixed (32 bytes)."""
        digest = hashlib.sha256(labels.LAYOUT)
        digest.update(len(self.tensors).to_bytes(8))
        for tensor in self.tensors:
            for text in (tensor.name, tensor.scope, tensor.part):
                digest.update(len(text.encode()).to_bytes(8) + text.encode())
            for number in (tensor.fan_in, len(tensor.shape), *tensor.shape):
                digest.update(number.to_bytes(8))
        if self.architecture:
            for text in (self.architecture, *(tensor.initial for tensor in self.tensors)):
                digest.update(len(text.encode()).to_bytes(8) + text.encode())
        return digest.digest()

    def split(self, vector: npt.NDArray[_Entry], scope: Scope = "shared") -> dict[str, npt.NDArray[_Entry]]:
        """Views of a shared (or personal) vector by tensor name, in layout order.

        Raises:
            ValueError: the vector is not one-dimensional of exactly the scope's size, or of `own` tensors.
        """
        expected, tensors = self.shared_size if scope == "shared" else self.personal_size, self.of(scope)
        if vector.shape == (expected,):
            return dict(_split(vector, tensors))
        if scope == "personal" and vector.shape == (sum(tensor.size for tensor in self.own),):
            return dict(_split(vector, self.own))
        raise ValueError(f"a {scope} vector has shape ({expected},), not {vector.shape}")


def _split(vector: npt.NDArray[_Entry], tensors: Sequence[Tensor]) -> Iterator[tuple[str, npt.NDArray[_Entry]]]:
    offset = 0
    for tensor in tensors:
        yield tensor.name, vector[offset : offset + tensor.size].reshape(tensor.shape)
        offset += tensor.size


def layout_of(plan: Plan) -> Layout:
    """The layout that a plan fixes: the trunk's tensors (the linear model has none), the routing head's (one class a
    silo), the target head's; `model.personal` says which are personal.
    """
    personal = plan.personal

    def scope(name: str) -> Scope:
        return "personal" if name in personal else "shared"

    tensors = tuple(Tensor(t.name, t.shape, scope(t.name), t.part, t.fan_in, t.initial) for t in plan.tensors)
    return Layout(tensors, plan.model.text(plan.shape), plan.tuned)


def embedding_width(plan: Plan) -> int:
    """Length of the embedding: the trunk's output, or the features where there is no trunk."""
    return plan.model.embedding(plan.shape)


def initial_model(layout: Layout, plan_hash: bytes) -> npt.NDArray[np.int64]:
    """The shared weights before round 1: int64[shared_size] in fixed point with MODEL_FRACTION_BITS.

    Uniform in +-1/sqrt(fan_in), the bound of torch's default for linear and convolutional layers (weights and biases);
    factors of a GroupNorm are one and its offsets zero.
    """
    return _initial(layout, "shared", plan_hash)


def initial_personal(layout: Layout, plan_hash: bytes) -> npt.NDArray[np.int64]:
    """The personal weights before round 1: int64[personal_size], likewise."""
    return _initial(layout, "personal", plan_hash)


def _initial(layout: Layout, scope: Scope, plan_hash: bytes) -> npt.NDArray[np.int64]:
    if len(plan_hash) != 32:
        raise ValueError("a plan hash has 32 bytes")
    parts = [np.zeros(0, dtype=np.int64)]
    for tensor in layout.of(scope):
        if tensor.initial != "uniform":
            parts.append(np.full(tensor.size, (tensor.initial == "one") << MODEL_FRACTION_BITS, dtype=np.int64))
            continue
        name = tensor.name.encode()
        stream = hashlib.shake_256(labels.INITIAL_MODEL + plan_hash + len(name).to_bytes(8) + name)
        words = np.frombuffer(stream.digest(4 * tensor.size), dtype="<u4").astype(np.int64)
        # floor(2**24 / sqrt(fan_in)) by integer square root: math.sqrt is exact on IEEE machines, but this needs
        # no such assumption. The product stays below 2**32 * (2**25 + 1), far inside int64.
        bound = math.isqrt((1 << (2 * MODEL_FRACTION_BITS)) // tensor.fan_in)
        parts.append(((words * (2 * bound + 1)) >> 32) - bound)
    return np.concatenate(parts)
