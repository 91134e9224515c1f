"""What a row's bits follow from besides the settings: code, libraries, the processor's instructions, a user's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from importlib.resources.abc import Traversable
from typing import Final

import torch

from feddrm.compare.settings import Settings
from feddrm.contract.files import file_error

# Packages and modules of ours that a row is made by.
_CODE: Final = {
    "feddrm": ("arrays.py", "compare", "contract", "features.py", "method", "tables.py"),
    "privacy": (".",),
}
_LIBRARIES: Final = ("torch", "opacus", "numpy", "scipy", "dp-accounting", "pillow")


def provenance(settings: Settings) -> dict[str, str]:
    """By name: a version, a name, or a SHA-256.

    Raises:
        InputError: a user's file cannot be read.
    """
    found = {"code": _hash_of_code(), "processor": torch.backends.cpu.get_cpu_capability()}
    found |= {name: _version(name) for name in _LIBRARIES}
    for silo, path in settings.data.files.silos.items() if settings.data.files else ():
        try:
            with path.open("rb") as file:
                found[f"records of {silo}"] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise file_error(error, path) from error
    return found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _hash_of_code() -> str:
    digest = hashlib.sha256()
    for package, parts in _CODE.items():
        for part in parts:
            for name, file in _files(resources.files(package) / part, f"{package}/{part}"):
                raw = file.read_bytes()
                digest.update(f"{name}\n{len(raw)}\n".encode() + raw)
    return digest.hexdigest()


def _files(place: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    if place.is_file():
        yield name, place
        return
    for child in sorted(place.iterdir(), key=lambda each: each.name):
        if child.name != "__pycache__":
            yield from _files(child, f"{name}/{child.name}")
