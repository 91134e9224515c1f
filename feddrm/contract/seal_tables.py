"""What is inside a sealed query or answer: one table of float32, a signature behind it, and padding."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import MalformedError

Array = npt.NDArray[np.float32]

MAXIMUM_RECORDS: Final = 4096
MAXIMUM_CLASSES: Final = 4096
MAXIMUM_WIDTH: Final = 1 << 16
SIGNATURE: Final = 64


def pad(data: bytes, bucket: int) -> bytes:
    """Zeros after `data` up to the next `bucket` times a power of two, so that the length tells little."""
    while bucket < len(data):
        bucket *= 2
    return data + bytes(bucket - len(data))


def unpad(plaintext: bytes, length: int, bucket: int) -> tuple[bytes, bytes]:
    """Body of `length` bytes and signature, if exactly the padding that `pad` makes follows.

    Raises:
        MalformedError: it does not.
    """
    end = length + SIGNATURE
    if end > len(plaintext) or plaintext != pad(plaintext[:end], bucket):
        raise MalformedError("A sealed message does not have the length that its table needs.")
    return plaintext[:length], plaintext[length:end]


def shape_allowed(rows: int, columns: int, widest: int) -> bool:
    """Whether one message may hold a table of so many rows and columns, at most `widest` of these."""
    return 1 <= rows <= MAXIMUM_RECORDS and 1 <= columns <= widest


def table(data: bytes, rows: int, columns: int) -> Array:
    """The float32[rows, columns] that `data` holds.

    Raises:
        MalformedError: a value is not finite.
    """
    values = np.frombuffer(data, dtype="<f4").reshape(rows, columns).astype(np.float32)
    if not np.isfinite(values).all():
        raise MalformedError("A sealed message holds values that are not finite.")
    return values


def probabilities_allowed(values: Array) -> bool:
    """Whether all values are in [0, 1] and their classes not too many."""
    # NaN fails both comparisons.
    return 1 <= values.shape[1] <= MAXIMUM_CLASSES and bool(((values >= 0) & (values <= 1)).all())
