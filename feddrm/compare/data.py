"""Silos' training records, and the held-out records that methods are judged by, whose silo is known."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from feddrm.compare import public, shifts, splits
from feddrm.compare.settings import Data
from feddrm.contract.errors import InputError, MissingExtraError
from feddrm.contract.files import file_error
from feddrm.contract.schema import Schema
from feddrm.features import Dataset

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

FIXED_SILOS: Final = 8


@dataclass(frozen=True, slots=True)
class Federation:
    """One division of a data set.

    Args:
        silos: K of them, with targets.
        features: float32[m, width] of the held-out records of all silos.
        targets: int64[m].
        home: int64[m], the silo that each came from.
        names: of the silos.
        sizes: K public approximate numbers of patients in training.
        schema: of the records.
        private: whether these are a user's own records.
    """

    silos: tuple[Dataset, ...] = field(repr=False)
    features: Floats = field(repr=False)
    targets: Numbers = field(repr=False)
    home: Numbers = field(repr=False)
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    schema: Schema = field(repr=False)
    private: bool = False


def public_size(patients: int) -> int:
    """What a hospital might say in public of its size: two digits of it."""
    unit: int = 10 ** max(len(str(patients)) - 2, 0)
    return max(round(patients / unit) * unit, 1)


def images(settings: Data, silos: int, folder: Path) -> Federation:
    """MNIST or CIFAR-10, divided and shifted.

    Args:
        settings: of the data.
        silos: K, for splits that are drawn.
        folder: of the public data sets (feddrm.compare.public).

    Raises:
        InputError: a file is missing or the records do not suffice.
        MissingExtraError: CIFAR-10 needs Pillow, which is not installed.
    """
    public.require(settings, folder)
    pixels, labels = mnist(folder) if settings.source == "mnist" else cifar10(folder)
    if settings.split == "fixed":
        split = _load(folder / (public.MNIST_SPLIT if settings.source == "mnist" else public.CIFAR10_SPLIT).name)
        rows, owners, training = split["src"].astype(np.int64), split["client"].astype(np.int64), split["train"]
        pixels, labels = pixels[rows], labels[rows]
    generator = np.random.default_rng([settings.split_seed, silos])
    if settings.most_records is not None:
        # The sets are sorted, or nearly.
        chosen = np.random.default_rng(settings.split_seed).permutation(len(labels))[: settings.most_records]
        pixels, labels = pixels[chosen], labels[chosen]
        if settings.split == "fixed":
            owners, training = owners[chosen], training[chosen]
    if settings.split != "fixed":
        owners = (
            splits.dirichlet(labels, silos, settings.alpha, generator)
            if settings.split == "dirichlet"
            else splits.shards(labels, silos, settings.shards, generator)
        )
        training = splits.training_part(owners, settings.training_share, generator)
    features = np.empty((len(pixels), pixels[0].size), dtype=np.float32)
    for silo in range(int(owners.max()) + 1):
        features[owners == silo] = _shifted(pixels[owners == silo], settings.shift, silo)
    shape = (1, *pixels.shape[1:]) if pixels.ndim == 3 else (3, *pixels.shape[1:3])
    return divide(features, labels, owners, training, image_schema(shape, 10))


def _shifted(pixels: Bytes, shift: shifts.Shift, silo: int) -> Floats:
    """float32[n, width] in [-1, 1], channel-major, of uint8[n, h, w] or uint8[n, h, w, 3]."""
    if shift == "colour":
        pixels = shifts.colour(pixels, silo)
    values = pixels.astype(np.float32) / np.float32(255)
    if shift == "light":
        values = shifts.light(values, silo)
    if values.ndim == 4:
        values = values.transpose(0, 3, 1, 2)
    return np.float32(2) * values.reshape(len(values), -1) - np.float32(1)


def divide(
    features: Floats, labels: Numbers, owners: Numbers, training: npt.NDArray[np.bool_], schema: Schema
) -> Federation:
    """A federation of records, each a patient of its own."""
    count = int(owners.max()) + 1
    members = [np.flatnonzero((owners == silo) & training) for silo in range(count)]
    silos = tuple(Dataset(features[rows], labels[rows], [b"%d" % row for row in rows]) for rows in members)
    # Silo by silo, so that what is held out has one order whatever that of the records was.
    held = np.concatenate([np.flatnonzero((owners == silo) & ~training) for silo in range(count)])
    return Federation(
        silos,
        features[held],
        labels[held],
        owners[held],
        tuple(f"silo-{silo + 1}" for silo in range(count)),
        tuple(public_size(len(rows)) for rows in members),
        schema,
    )


def image_schema(shape: tuple[int, int, int], classes: int) -> Schema:
    """The schema of 8-bit images (channels, height, width) with numbered classes."""
    channels, height, width = shape
    return Schema.model_validate(
        {
            "patient": "patient",
            "target": {"kind": "classes", "column": "label", "values": [str(label) for label in range(classes)]},
            "image": {"channels": channels, "height": height, "width": width, "lower": 0.0, "upper": 255.0},
        }
    )


def mnist(folder: Path) -> tuple[Bytes, Numbers]:
    """uint8[70000, 28, 28] and int64[70000]: training images, then test images.

    Raises:
        InputError: the file cannot be read.
    """
    arrays = _load(folder / public.MNIST.name)
    labels = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    return np.concatenate([arrays["x_train"], arrays["x_test"]]), labels


def cifar10(folder: Path) -> tuple[Bytes, Numbers]:
    """uint8[60000, 32, 32, 3] and int64[60000]: training images, then test images.

    Raises:
        InputError: the file cannot be read.
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingExtraError("feddrm compare with CIFAR-10", "compare", "PIL") from error
    arrays = _load(folder / public.CIFAR10.name)
    blob, offsets = arrays["blob"].tobytes(), arrays["offsets"]
    order = np.argsort(arrays["is_test"], kind="stable")
    decoded = np.empty((len(order), 32, 32, 3), dtype=np.uint8)
    for place, number in enumerate(order):
        with Image.open(io.BytesIO(blob[offsets[number] : offsets[number + 1]])) as image:
            decoded[place] = np.asarray(image.convert("RGB"))
    return decoded, arrays["labels"][order].astype(np.int64)


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except OSError as error:
        raise file_error(error, path) from error
    except (ValueError, KeyError) as error:
        raise InputError(f"{path} is not a file of arrays.") from error
