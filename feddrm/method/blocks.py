"""How many rows a forward and backward pass of private training has: always the same number.

Matrix kernels differ by shape: in a batch of another size the last bit of a pre-activation differs, and where a ReLU's
input is within that bit of zero, the whole gradient of the record does, so that removing one patient would move others'
contributions by up to 2 C each.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional

from feddrm.method.exact import MAXIMUM_ROWS

SMALLEST_BLOCK: Final = 64


def block_for(divisor: float) -> int:
    """Rows of a block: a power of two that follows from the public q * m alone, so that neighbours share it."""
    block = SMALLEST_BLOCK
    while block < MAXIMUM_ROWS and block < divisor:
        block *= 2
    return block


def padded(rows: torch.Tensor, block: int) -> torch.Tensor:
    """`rows` and zeros after them: `block` rows."""
    if len(rows) == block:
        return rows
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, block - len(rows)))
