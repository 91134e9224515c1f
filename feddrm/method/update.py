"""Model arithmetic in fixed-point integers: the same bytes on every silo and on the coordinator (design section 5).

A weight w is the integer round(w * 2**24). The coordinator and all silos apply a published sum independently and
compare hashes afterwards, so nothing here may depend on the order of a float reduction, on a BLAS or on a vector width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from feddrm.contract import labels
from feddrm.contract.architecture import Part
from feddrm.contract.errors import MalformedError
from feddrm.method.layout import MODEL_FRACTION_BITS, Layout

__all__ = [
    "MODEL_FRACTION_BITS",
    "MODEL_LIMIT",
    "apply",
    "check_learning_rate",
    "from_float",
    "head_hash",
    "head_tensors",
    "model_hash",
    "part_hash",
    "to_float",
    "trunk_hash",
    "trunk_tensors",
]

# Integers up to 2**53 convert to float64 exactly, so to_float rounds once only (to float32, half to even).
MODEL_LIMIT: Final = 1 << 53
_SUM_LIMIT: Final = 1 << 31
_RATE_LIMIT: Final = 1 << 31

Model = npt.NDArray[np.int64]
Integers = npt.NDArray[np.signedinteger[Any]]
Tensors = Mapping[str, npt.NDArray[np.float32]]


def to_float(model: Model) -> npt.NDArray[np.float32]:
    """The weights as float32[n], each correctly rounded.

    Raises:
        MalformedError: an entry exceeds MODEL_LIMIT in size.
    """
    _check_model(model)
    values: npt.NDArray[np.float64] = np.ldexp(model.astype(np.float64), -MODEL_FRACTION_BITS)
    return values.astype(np.float32)


def from_float(values: npt.NDArray[np.floating]) -> Model:
    """Fixed point of float weights, half to even; infinite or huge ones saturate at MODEL_LIMIT, NaN becomes 0.

    For weights that stay on one machine; shared ones are only ever changed by `apply`.
    """
    scaled = np.rint(np.ldexp(values.astype(np.float64), MODEL_FRACTION_BITS))
    bounded = np.clip(np.nan_to_num(scaled, nan=0.0), -MODEL_LIMIT, MODEL_LIMIT)
    model: Model = bounded.astype(np.int64)
    return model


def check_learning_rate(learning_rate: float) -> int:
    """The server learning rate as an integer multiple of 2**-24, the precision in which it takes part.

    Raises:
        MalformedError: it is not at least 2**-24 and below 128.
    """
    scaled = round(learning_rate * (1 << MODEL_FRACTION_BITS)) if 0 < learning_rate < 128 else 0
    if not 1 <= scaled < _RATE_LIMIT:
        raise MalformedError(f"A server learning rate of {learning_rate} is not at least 2**-24 and below 128.")
    return scaled


def apply(model: Model, total: Integers, count: int, fraction_bits: int, learning_rate: float) -> Model:
    """The next model: model + learning_rate * total / (count * 2**fraction_bits).

    The step is rounded to the nearest integer, halves away from zero; the learning rate first to a multiple of 2**-24.
    Weights saturate at MODEL_LIMIT. No intermediate value leaves int64: |total| < 2**31, rate < 2**31 and
    count * 2**fraction_bits <= 2**7 * 2**29.

    Args:
        model: int64[n] in fixed point.
        total: int32[n] or int64[n], the published sum of quantised updates, signed.
        count: silos in the sum.
        fraction_bits: of the quantiser.
        learning_rate: the plan's server learning rate.

    Raises:
        MalformedError: a value is out of its range, or the shapes differ.
    """
    rate = check_learning_rate(learning_rate)
    _check_model(model)
    if total.dtype not in (np.int32, np.int64) or total.shape != model.shape:
        raise MalformedError(f"A sum of {total.shape} {total.dtype} does not fit a model of {model.shape} int64.")
    total = total.astype(np.int64, copy=False)
    if total.size and not (int(total.min()) > -_SUM_LIMIT and int(total.max()) < _SUM_LIMIT):
        raise MalformedError("A sum has an entry outside the range of the ring.")
    if not (1 <= count <= 128 and 1 <= fraction_bits <= 29):
        raise MalformedError(f"A sum of {count} silos with {fraction_bits} fraction bits is out of range.")
    divisor = count << fraction_bits
    quotient, remainder = np.divmod(np.abs(total) * rate, divisor)
    step = np.sign(total) * (quotient + (2 * remainder >= divisor))
    after: Model = np.clip(model + step, -MODEL_LIMIT, MODEL_LIMIT)
    return after


def model_hash(model: Model) -> bytes:
    """SHA-256 that names a shared model: over its length and its entries as little-endian int64 (32 bytes)."""
    _check_model(model)
    return hashlib.sha256(labels.MODEL_HASH + len(model).to_bytes(8) + model.astype("<i8").tobytes()).digest()


def trunk_tensors(layout: Layout, model: Model) -> dict[str, npt.NDArray[np.float32]]:
    """The trunk's tensors by name, as a release publishes them to queriers."""
    return _part_tensors(layout, "trunk", model)


def head_tensors(layout: Layout, model: Model) -> dict[str, npt.NDArray[np.float32]]:
    """The routing head's tensors by name, as a release gives them to the router."""
    return _part_tensors(layout, "routing", model)


def trunk_hash(layout: Layout, model: Model) -> bytes:
    """SHA-256 of the published trunk (32 bytes); equals `part_hash` of `trunk_tensors`."""
    return part_hash(layout, "trunk", trunk_tensors(layout, model))


def head_hash(layout: Layout, model: Model) -> bytes:
    """SHA-256 of the published routing head (32 bytes); equals `part_hash` of `head_tensors`."""
    return part_hash(layout, "routing", head_tensors(layout, model))


def part_hash(layout: Layout, part: Part, tensors: Tensors) -> bytes:
    """SHA-256 of a published part, over the layout's fingerprint and float32 values, so that whoever holds the
    released file can recompute it without the fixed-point model (32 bytes).

    Raises:
        MalformedError: a tensor is missing, unexpected, of another shape or dtype, or not finite.
    """
    expected = layout.part(part)
    if set(tensors) != {tensor.name for tensor in expected}:
        raise MalformedError(f"The released {part} does not have exactly the tensors of its plan.")
    digest = hashlib.sha256(labels.TRUNK_HASH if part == "trunk" else labels.HEAD_HASH)
    digest.update(layout.fingerprint())
    for tensor in expected:
        values = tensors[tensor.name]
        if values.shape != tensor.shape or values.dtype != np.float32:
            raise MalformedError(f"Tensor {tensor.name} of the released {part} has another shape or type.")
        if not np.isfinite(values).all():
            raise MalformedError(f"Tensor {tensor.name} of the released {part} has values that are not finite.")
        digest.update(values.astype("<f4").tobytes())
    return digest.digest()


def _part_tensors(layout: Layout, part: Part, model: Model) -> dict[str, npt.NDArray[np.float32]]:
    values = layout.split(to_float(model))
    return {tensor.name: values[tensor.name].copy() for tensor in layout.part(part)}


def _check_model(model: Model) -> None:
    if model.dtype != np.int64 or model.ndim != 1:
        raise MalformedError(f"A model is a vector of int64, not {model.shape} {model.dtype}.")
    # Not np.abs: the most negative int64 has no positive counterpart and would pass.
    if model.size and not (int(model.min()) >= -MODEL_LIMIT and int(model.max()) <= MODEL_LIMIT):
        raise MalformedError("A model has an entry outside the range of its fixed-point form.")
