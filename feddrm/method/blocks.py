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

# Entries of records' gradients that are written out at once: 256 MiB of them in float32, and twice that in float64.
_WRITTEN: Final = 1 << 26
_USUAL: Final = 64


def block_for(divisor: float, written: int = 0) -> int:
    """Rows of a block: a power of two that follows from public numbers alone, so that neighbours share it.

    Args:
        divisor: the public q * m; a block of the usual 64 rows grows up to it.
        written: parameters whose gradients are written out for each record, those of all layers but linear ones; large
            networks have smaller blocks.
    """
    block = _USUAL
    while block < MAXIMUM_ROWS and block < divisor:
        block *= 2
    while block > 1 and block * written > _WRITTEN:
        block //= 2
    return block


def padded(rows: torch.Tensor, block: int) -> torch.Tensor:
    """`rows` and zeros after them: `block` rows."""
    if len(rows) == block:
        return rows
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, block - len(rows)))
