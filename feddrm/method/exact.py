"""Exact sums of clipped gradients: the sum without a record is the sum less that record's row, to the last bit.

A floating-point sum depends on the order and the company of what is added, so that removing one patient could move
more than that patient's row. Here every row is clipped and rounded to integers by itself, and integers are added.

The gradient of a linear layer is an outer product of two vectors a record: left, what the loss tells the layer's
outputs, and right, what the layer was given, with a one for the bias. Its norm is the product of theirs (Goodfellow
2015, arXiv 1510.01799), so that no record's gradient need be written out, and the vectors are rounded *before* they are
multiplied: products and sums of integers below 2**53 are exact in float64, in any order and with any matrix kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

# Bits of a whole gradient's length, which the left vector takes on, and of the right vector's direction. What is added
# at once stays below 2**53.
_LENGTH_BITS: Final = 23
_DIRECTION_BITS: Final = 20
MAXIMUM_ROWS: Final = 1 << (53 - _LENGTH_BITS - _DIRECTION_BITS)
_LIMB_BITS: Final = 32
# The clip aims this much below C, which takes up what float64 rounds in norms and factors, and in the sum when it is
# read: N rows of d entries lose at most N sqrt(d) 2**-53 C.
_SLACK: Final = 2.0**-12
# Below the length of any float32 vector but zero.
_SHORTEST: Final = 1e-60
# Groups of more columns are worked on by themselves: to copy them beside each other would cost more than it saves.
_NARROW: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer: `outputs` columns of left vectors, then those of right vectors, a one for the bias included."""

    outputs: int
    inputs: int
    bias: bool

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of its parts."""
        return self.outputs, self.inputs + self.bias

    def total(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Sums of outer products: the weights row-major, then the bias."""
        matrix = left.T @ right
        return (matrix[:, :-1].reshape(-1), matrix[:, -1]) if self.bias else (matrix.reshape(-1),)


@dataclass(frozen=True, slots=True)
class Other:
    """A parameter of another layer: `size` columns of gradients, written out."""

    size: int

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of its parts."""
        return (self.size,)

    def total(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The sum of the rows."""
        return (rows.sum(dim=0),)


class Clip:
    """Clips whole gradients to L2 norm C and rounds them to integers.

    Args:
        norm: C.
        groups: what a block's columns are.

    Attributes:
        unit: what one is worth in the sums.
    """

    def __init__(self, norm: float, groups: Sequence[Layer | Other]) -> None:
        self._groups = tuple(groups)
        # Widths of the parts in each piece: what is written out at length lies in a piece of its own.
        self._pieces: list[list[int]] = []
        beside = False
        for group in self._groups:
            alone = isinstance(group, Other) and group.size > _NARROW
            if alone or not beside:
                self._pieces.append([])
            self._pieces[-1] += group.widths
            beside = not alone
        # The power of two above C: its fractions are exact.
        ceiling = math.ldexp(1.0, math.frexp(norm)[1])
        self.unit = math.ldexp(ceiling, -_LENGTH_BITS - _DIRECTION_BITS)
        self._per_length = 2.0**_LENGTH_BITS / ceiling
        longest = max(group.widths[-1] for group in groups)
        lefts = sum(group.widths[0] for group in groups)
        rounding = math.sqrt(longest) * 2.0 ** -(_DIRECTION_BITS + 1) + math.sqrt(lefts) * 2.0**-_LENGTH_BITS
        self._bound = norm * (1.0 - _SLACK - rounding)

    def contributions(self, samples: Sequence[torch.Tensor], real: int) -> list[torch.Tensor]:
        """Each record's clipped contribution: float64[n, columns] of integers, in as many pieces as `total` takes.

        Args:
            samples: float32[n, columns], the columns of all groups in order, in any pieces that end where groups do;
                n at most MAXIMUM_ROWS.
            real: how many rows are records; the rest is padding and contributes nothing, as a row that is not finite.
        """
        pieces = list(self._joined(samples))
        parts = self._split(pieces)
        lengths = [torch.linalg.vector_norm(part, dim=1) for part in parts]
        norms = torch.linalg.vector_norm(torch.stack(self._norms(lengths)), dim=0)
        # Infinity and NaN; `isfinite` takes several operations.
        dropped = ~(norms < math.inf)
        dropped[real:] = True
        clip = self._per_length * self._bound / norms.clamp_(min=self._bound)
        place = 0
        for group in self._groups:
            if isinstance(group, Layer):
                right = lengths[place + 1]
                parts[place].mul_((clip * right)[:, None])
                # A right vector of zeros has no direction and needs none.
                parts[place + 1].mul_((2.0**_DIRECTION_BITS / right.clamp(min=_SHORTEST))[:, None])
            else:
                parts[place].mul_((clip * 2.0**_DIRECTION_BITS)[:, None])
            place += len(group.widths)
        # Taken out, not multiplied: zero times infinity is not zero.
        return [piece.round_().masked_fill_(dropped[:, None], 0.0) for piece in pieces]

    def total(self, contributions: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sum of the records' contributions, parameters one after another: float64 of integers below 2**53."""
        parts = self._split(contributions)
        sums: list[torch.Tensor] = []
        place = 0
        for group in self._groups:
            sums += group.total(*parts[place : place + len(group.widths)])
            place += len(group.widths)
        return torch.cat(sums)

    def _joined(self, samples: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """float64 pieces of the samples, which end where parts of theirs do."""
        left = iter(samples)
        for widths in self._pieces:
            found = [next(left)]
            while sum(sample.shape[1] for sample in found) < sum(widths):
                found.append(next(left))
            yield (torch.cat(found, dim=1) if len(found) > 1 else found[0]).double()

    def _split(self, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Views of the parts of all groups, in order."""
        views = (torch.split(piece, widths, dim=1) for piece, widths in zip(pieces, self._pieces, strict=True))
        return [view for piece in views for view in piece]

    def _norms(self, lengths: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """float64[n] for each group: the norms of its gradients."""
        found, place = [], 0
        for group in self._groups:
            left = lengths[place]
            found.append(left * lengths[place + 1] if isinstance(group, Layer) else left)
            place += len(group.widths)
        return found


class ExactSum:
    """A sum of any number of blocks: two int64 limbs an entry, neither of which can overflow. As long as there are few
    rows in all, a float64 holds them."""

    def __init__(self) -> None:
        self._limbs: tuple[torch.Tensor, torch.Tensor] | None = None
        self._few: torch.Tensor | None = None
        self._rows = 0

    def __bool__(self) -> bool:
        return self._limbs is not None or self._few is not None

    def add(self, block: torch.Tensor, rows: int = MAXIMUM_ROWS) -> None:
        """Add float64[size] of integers below 2**53, the sum of so many rows' contributions. It may be kept."""
        self._rows += rows
        if self._few is not None and self._rows <= MAXIMUM_ROWS:
            self._few.add_(block)
            return
        if self._few is not None:
            self._carry(self._few)
        self._few, self._rows = block, rows

    def _carry(self, block: torch.Tensor) -> None:
        whole = block.long()
        high, low = whole >> _LIMB_BITS, whole & ((1 << _LIMB_BITS) - 1)
        self._limbs = (high, low) if self._limbs is None else (self._limbs[0] + high, self._limbs[1] + low)

    def take(self, unit: float) -> torch.Tensor:
        """float64[size]: the sum in units of `unit`, rounded once where it has more than 53 bits. It begins anew.

        Raises:
            ValueError: nothing was added.
        """
        few, self._few, self._rows = self._few, None, 0
        if few is None:
            raise ValueError("nothing was added to the sum")
        if self._limbs is None:
            return few.mul_(unit)
        self._carry(few)
        (high, low), self._limbs = self._limbs, None
        return high.double().mul_(2.0**_LIMB_BITS).add_(low).mul_(unit)
