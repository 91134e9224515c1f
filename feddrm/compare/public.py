"""The folder of public data sets: what a comparison needs there, and where it is from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feddrm.compare.settings import Data
from feddrm.contract.errors import InputError

_SPLIT: Final = (
    "a division into eight silos: arrays src, client, train; or draw one by data.split in a file of settings"
)


@dataclass(frozen=True, slots=True)
class PublicFile:
    """A file by its place below the folder, and what it is, in words."""

    name: str
    what: str


MNIST: Final = PublicFile("mnist/mnist.npz", "MNIST as Keras publishes it: arrays x_train, y_train, x_test, y_test")
MNIST_SPLIT: Final = PublicFile("mnist/split_dirichlet03_seed2025.npz", _SPLIT)
CIFAR10: Final = PublicFile(
    "cifar10/cifar10_jpegblob.npz",
    "CIFAR-10 of Krizhevsky, its images as JPEG files: arrays blob, offsets, labels, is_test",
)
CIFAR10_SPLIT: Final = PublicFile("cifar10/split_dirichlet03_seed2025.npz", _SPLIT)
HEART: Final = {
    hospital: PublicFile(f"heart_uci/processed.{hospital}.data", "Heart Disease, UCI Machine Learning Repository")
    for hospital in ("cleveland", "hungarian", "switzerland", "va")
}
_IMAGES: Final = {"mnist": (MNIST, MNIST_SPLIT), "cifar10": (CIFAR10, CIFAR10_SPLIT)}


def files(settings: Data) -> tuple[PublicFile, ...]:
    """What these data are read from; RAND comes with the package, and a user's own files lie where he says."""
    if settings.source in _IMAGES:
        images, split = _IMAGES[settings.source]
        return (images, split) if settings.split == "fixed" else (images,)
    return tuple(HEART.values()) if settings.source == "heart" else ()


def require(settings: Data, folder: Path) -> None:
    """Look whether all that is needed is there.

    Raises:
        InputError: it is not; says what belongs there.
    """
    needed = files(settings)
    missing = [file.name for file in needed if not (folder / file.name).exists()]
    if not missing:
        return
    said = f"{folder} lacks {', '.join(missing)}." if folder.is_dir() else f"There is no folder {folder}."
    # The same is said of several files once.
    whole = {file.what: [each.name for each in needed if each.what == file.what] for file in needed}
    layout = "; ".join(f"{', '.join(names)} ({what})" for what, names in whole.items())
    raise InputError(
        said, remedy=f"Name the folder of the public data sets by --data or FEDDRM_DATA. It must hold {layout}."
    )
