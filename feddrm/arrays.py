"""Files of arrays (.npz): images, patients and targets, one entry a record (feddrm.features says what becomes of them).

As numpy.savez_compressed writes them: `np.savez_compressed("scans.npz", image=pixels, person_id=ids, diagnosis=names)`.
Nothing in such a file is executed: arrays of Python objects, which would be, are refused.
"""

from __future__ import annotations

import io
import tokenize
import zipfile
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import InputError
from feddrm.contract.images import Image

MAGIC: Final = b"PK"
_CHUNK: Final = 1024

# Of an archive: damaged, encrypted (RuntimeError) or of an unknown method; of a header, which numpy reads as Python: no
# literal, or sizes that no array or memory has.
_DAMAGES: Final = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, RuntimeError, SyntaxError,
    tokenize.TokenError, OverflowError, MemoryError,
)  # fmt: skip
_LAST_CHARACTER: Final = 0x10FFFF
_NO_CHARACTER: Final = 0xDC80

Array = npt.NDArray[np.generic]


def read_arrays(source: str, raw: bytes, *, tolerant: bool) -> tuple[dict[str, list[str]], dict[str, Array], int]:
    """(one-dimensional arrays as text cells, the others as they are, number of records) of an .npz file.

    Args:
        source: the file's path, for messages.
        raw: its bytes.
        tolerant: text that is no UTF-8 becomes lone surrogates instead of being refused.

    Raises:
        InputError: damaged, an array of objects, arrays of unequal length, or no array at all.
    """
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            names = list(file.files)
            arrays = {name: np.asarray(file[name]) for name in names}
    except _DAMAGES as error:
        raise InputError(
            f"{source} is no file of arrays, does not fit in memory, or has an array of Python objects.",
            remedy="Write it with numpy.savez_compressed; patients and targets as text or numbers, dtype not object.",
        ) from error
    if len(arrays) < len(names):
        raise InputError(f"{source}: two arrays have one name.", remedy="Which of them is meant cannot be known.")
    lengths = {name: len(values) if values.ndim else 1 for name, values in arrays.items()}
    if not arrays or len(set(lengths.values())) > 1 or any(values.ndim == 0 for values in arrays.values()):
        shown = ", ".join(f"{name!r} {values.shape}" for name, values in sorted(arrays.items())[:8])
        raise InputError(
            f"{source}: its arrays do not have one entry for each record: {shown or 'there is none'}.",
            remedy="All arrays need the same first dimension; leave out what belongs to no record.",
        )
    columns = {name: _texts(source, name, array, tolerant) for name, array in arrays.items() if array.ndim == 1}
    return columns, {name: array for name, array in arrays.items() if array.ndim > 1}, next(iter(lengths.values()))


def _texts(source: str, name: str, array: Array, tolerant: bool) -> list[str]:
    if array.dtype.kind == "S":
        try:
            return [
                cell.decode("utf-8", "surrogateescape" if tolerant else "strict").strip() for cell in array.tolist()
            ]
        except UnicodeDecodeError as error:
            raise InputError(
                f"{source}, array {name!r}: not UTF-8 text.", remedy="Store it as text (dtype U)."
            ) from error
    if array.dtype.kind not in "Uiuf":
        raise InputError(
            f"{source}, array {name!r}: its type {array.dtype} is neither text nor numbers.",
            remedy="Store ids and labels as text (dtype U) or integers.",
        )
    if array.dtype.kind == "U":
        array = _characters(source, name, array, tolerant)
    # A number that is none is nobody's id and no label.
    return ["" if cell != cell else str(cell).strip() for cell in array.tolist()]


def _characters(source: str, name: str, array: Array, tolerant: bool) -> Array:
    """Text whose characters exist: numpy stores any 32 bits. Tolerantly, others become what is no UTF-8."""
    if not array.dtype.itemsize:
        return array
    array = array.copy()
    codes = array.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    wrong = codes > _LAST_CHARACTER
    if wrong.any() and not tolerant:
        raise InputError(f"{source}, array {name!r}: not text.", remedy="Write it again.")
    codes[wrong] = _NO_CHARACTER
    return array


def check_images(source: str, array: Array, image: Image) -> Array:
    """An array of images as [n, channels, height, width].

    Raises:
        InputError: of another shape or type than the plan says.
    """
    wanted = image.shape
    if array.ndim == 3 and image.channels == 1:
        array = array[:, None]
    if array.shape[1:] != wanted:
        last = array.ndim == 4 and (array.shape[3], *array.shape[1:3]) == wanted
        raise InputError(
            f"{source}, array {image.name!r}: images of shape {array.shape[1:]}, where the plan's schema.image has "
            f"{wanted} (channels, height, width).",
            remedy="Move the channels to the front: numpy.moveaxis(images, -1, 1)."
            if last
            else "Resize or crop all images to the plan's size.",
        )
    if array.dtype.kind not in "uif":
        raise InputError(
            f"{source}, array {image.name!r}: its type {array.dtype} is none of numbers.",
            remedy="Store pixels as integers or floats.",
        )
    return array


def scale_images(array: Array, image: Image) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """(features float32[n, channels * height * width] in [-1, 1], how many values of each are not finite, int64[n]).

    Values are clipped to the schema's range; what is not finite becomes 0, the middle of it.
    """
    features = np.empty((len(array), int(np.prod(image.shape))), dtype=np.float32)
    wrong = np.zeros(len(array), dtype=np.int64)
    for start in range(0, len(array), _CHUNK):
        values = array[start : start + _CHUNK].reshape(-1, features.shape[1]).astype(np.float64)
        bad = ~np.isfinite(values)
        scaled = 2.0 * (np.clip(values, image.lower, image.upper) - image.lower) / (image.upper - image.lower) - 1.0
        scaled[bad] = 0.0
        features[start : start + _CHUNK] = scaled
        wrong[start : start + _CHUNK] = bad.sum(axis=1)
    return features, wrong
