"""Coarse embeddings: how little of a patient a query shows the coordinator, and exactly that (design section 8).

The coordinator serves the trunk, so a float32 embedding phi = relu(W x + b) is a system of equations about the patient
that it can solve. Therefore the querier cuts each unit's range [0, bound] into 2**bits equal cells and sends the cells'
numbers, packed: width * bits bits for a record, and no more can be learnt from them however clever the coordinator is.
Both sides take a cell's centre for the embedding. Where there is no trunk, the embedding is the features themselves,
which lie at the ends of their ranges more often than not: the cells are then centred on both ends. The bounds come
from the released trunk and the public schema alone, by interval arithmetic (Moore 1966), never from a record: a range
taken from data would be a statistic of patients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import MalformedError
from feddrm.contract.models import Frozen, Linear, Mlp
from feddrm.contract.plan import Plan
from feddrm.contract.schema import Column, Numeric, Schema
from feddrm.method.layout import embedding_width, layout_of
from feddrm.method.update import Tensors, part_hash

_LARGEST: Final = float(np.finfo(np.float32).max)
_DEVIATIONS: Final = 3.0

Floats = npt.NDArray[np.float64]


def query_bits(plan: Plan) -> int:
    """The most that one query tells the coordinator about a record, in bits."""
    return embedding_width(plan) * plan.queries.embedding_bits


def record_bits(schema: Schema) -> float:
    """log2 of how many different records a schema allows: a query that shows more bits may leave only one.

    Infinite where a column is a number, and of images. Real records have less entropy than this.
    """
    if schema.image is not None or any(isinstance(column, Numeric) for column in schema.columns):
        return math.inf
    # A missing value is one more possibility, with a feature of its own or without.
    return sum(math.log2(column.width - column.missing_indicator + bool(column.missing)) for column in schema.columns)


def unit_bounds(plan: Plan, trunk: Tensors) -> Floats:
    """Upper bounds float64[width] of the embedding over all records that the plan's schema allows.

    Tight for at most one hidden layer; later layers add up what their inputs cannot reach all at once. An embedding
    that is normalised before its ReLU has mean 0 and variance 1 in every record, times the norm's factors: for it the
    bounds are three deviations, and what lies beyond falls into the last cell.

    Args:
        plan: gives the schema and the layers.
        trunk: float32 tensors of its layout.

    Raises:
        MalformedError: the tensors are not those of the plan's layout, or not finite.
    """
    part_hash(layout_of(plan), "trunk", trunk)
    model = plan.model
    if not isinstance(model, Mlp | Linear | Frozen):
        factor, offset = (trunk[f"trunk.embedding_norm.{name}"].astype(np.float64) for name in ("weight", "bias"))
        return np.clip(offset + _DEVIATIONS * np.abs(factor), 0.0, _LARGEST)
    if not model.hidden:
        return np.ones(plan.schema_.width)
    first = trunk["trunk.0.weight"].astype(np.float64)
    low, high = _after_extractor(first) if isinstance(model, Frozen) else _after_features(plan.schema_, first)
    for layer in range(len(model.hidden)):
        bias = trunk[f"trunk.{layer}.bias"].astype(np.float64)
        if layer:
            weight = trunk[f"trunk.{layer}.weight"].astype(np.float64)
            up, down = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
            low, high = up @ low + down @ high, up @ high + down @ low
        low, high = np.maximum(low + bias, 0.0), np.maximum(high + bias, 0.0)
    # An embedding is float32, so no larger value exists; weights saturate at 2**29 and cannot overflow float64 above.
    return np.minimum(high, _LARGEST)


def feature_bounds(schema: Schema) -> Floats:
    """Lower bounds float64[d] of the features: -1 for a number or a pixel, 0 for all else. The upper ones are 1."""
    parts = [np.full(0 if schema.image is None else schema.width, -1.0)]
    for column in schema.columns:
        low = np.zeros(column.width)
        low[0] = -1.0 if isinstance(column, Numeric) else 0.0
        parts.append(low)
    return np.concatenate(parts)


def _after_extractor(weight: Floats) -> tuple[Floats, Floats]:
    """As `_after_features`, of normalised features: d of them, whose squares add up to d / 16 at most."""
    reach = np.minimum(np.abs(weight).sum(axis=1), np.linalg.norm(weight, axis=1) * math.sqrt(weight.shape[1]) / 4)
    return -reach, reach


def _after_features(schema: Schema, weight: Floats) -> tuple[Floats, Floats]:
    """Least and greatest W x, float64[units] each: columns are independent, so their extremes add up."""
    if schema.image is not None:
        reach = np.abs(weight).sum(axis=1)
        return -reach, reach
    low, high = np.zeros(len(weight)), np.zeros(len(weight))
    offset = 0
    for column in schema.columns:
        choices = np.stack(list(_choices(column, weight[:, offset : offset + column.width].T)))
        low += choices.min(axis=0)
        high += choices.max(axis=0)
        offset += column.width
    return low, high


def _choices(column: Column, rows: Floats) -> Iterator[Floats]:
    """What one column can add to W x at its extremes, given its features' weights float64[features, units]."""
    values, indicator = (rows[:-1], rows[-1]) if column.missing_indicator else (rows, np.zeros(rows.shape[1]))
    yield from values
    if isinstance(column, Numeric):
        yield from -values
    if column.missing:
        yield indicator


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of a release's embeddings.

    Args:
        bounds: float64[d], finite and not negative.
        bits: for each coordinate, 1 to 16.
        lower: None for cells that divide [0, bound]; float64[d] for cells whose first and last centre are the lower and
            the upper bound.
    """

    bounds: Floats = field(repr=False)
    bits: int
    lower: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        finite = bool(np.isfinite(self.bounds).all() and (self.bounds >= 0).all())
        if self.bounds.ndim != 1 or not self.bounds.size or not finite or not 1 <= self.bits <= 16:
            raise ValueError("a grid has finite bounds that are not negative and 1 to 16 bits")
        if self.lower is not None and not (
            self.lower.shape == self.bounds.shape and np.isfinite(self.lower).all() and (self.lower < self.bounds).all()
        ):
            raise ValueError("a lower bound is finite and below the upper one")

    @classmethod
    def of(cls, plan: Plan, trunk: Tensors) -> Self:
        """The grid that a plan and a trunk fix; the coordinator and every querier derive the same one.

        Raises:
            MalformedError: the tensors are not those of the plan's layout, or not finite.
        """
        lower = feature_bounds(plan.schema_) if isinstance(plan.model, Linear) else None
        return cls(unit_bounds(plan, trunk), plan.queries.embedding_bits, lower)

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return len(self.bounds)

    @property
    def code_bytes(self) -> int:
        """Length of a packed code."""
        return -(-self.width * self.bits // 8)

    def encode(self, phi: npt.NDArray[np.float32]) -> tuple[bytes, ...]:
        """Packed codes of n embeddings: cell numbers, most significant bit first, zeros up to a whole byte.

        Args:
            phi: float32[n, d].

        Raises:
            MalformedError: phi is not finite float32[n, d].
        """
        if phi.ndim != 2 or phi.shape[1] != self.width or phi.dtype != np.float32 or not np.isfinite(phi).all():
            raise MalformedError(f"An embedding is a row of {self.width} finite float32 values.")
        cell = self._cell
        # A unit that no record can move has one value; whatever it is divided by, its cell tells nothing.
        numbers = np.floor((phi - self._edge) / np.where(cell > 0, cell, 1.0))
        cells = np.clip(numbers, 0, (1 << self.bits) - 1).astype(np.int64)
        ones = (cells[:, :, None] >> np.arange(self.bits)[::-1]) & 1
        packed = np.packbits(ones.astype(np.uint8).reshape(len(phi), self.width * self.bits), axis=1)
        return tuple(row.tobytes() for row in packed)

    def decode(self, codes: Sequence[bytes]) -> npt.NDArray[np.float32]:
        """The centres float32[n, d] of the cells that n packed codes name.

        Raises:
            MalformedError: a code has another length than `code_bytes`, or carries more than the code.
        """
        if any(len(code) != self.code_bytes for code in codes):
            raise MalformedError(f"A code of this release has {self.code_bytes} bytes.")
        rows = np.frombuffer(b"".join(codes), dtype=np.uint8).reshape(len(codes), self.code_bytes)
        ones = np.unpackbits(rows, axis=1)
        used = self.width * self.bits
        if ones[:, used:].any():
            raise MalformedError("A code has bits set beyond its end.")
        digits = ones[:, :used].reshape(len(codes), self.width, self.bits).astype(np.int64)
        cells = digits @ (1 << np.arange(self.bits)[::-1])
        centres: npt.NDArray[np.float32] = (self._edge + (cells + 0.5) * self._cell).astype(np.float32)
        return centres

    @property
    def _cell(self) -> Floats:
        if self.lower is None:
            return self.bounds / (1 << self.bits)
        return (self.bounds - self.lower) / ((1 << self.bits) - 1)

    @property
    def _edge(self) -> Floats:
        """Where the first cell begins."""
        return np.zeros(len(self.bounds)) if self.lower is None else self.lower - self._cell / 2
