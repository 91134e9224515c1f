"""What an auditor is given, read from files: ledger bundles and the trust anchor. Nothing here is verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from feddrm.contract.errors import InputError, VerificationError
from feddrm.contract.files import read_bounded
from feddrm.contract.fingerprint import normalise_fingerprint
from feddrm.contract.kit import FederationRoot, load_federation_root
from privacy.bundle import MAXIMUM_BUNDLE, Bundle, check_form, parse_bundle
from privacy.errors import MalformedError

KeysOf = Callable[[str], tuple[bytes, ...]]
"""The identity keys of a silo by its name, newest first, from rosters that the operator signed; none: not listed."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A bundle and the file that it came from; `copies` are files with the same content."""

    path: Path
    bundle: Bundle
    copies: tuple[Path, ...] = ()

    @property
    def silo(self) -> str:
        """The hospital that the bundle says it is of."""
        return self.bundle.origin.rsplit("/", 1)[1]


def read_exhibit(path: Path) -> Exhibit:
    """Read a bundle's file.

    Raises:
        InputError: it cannot be read, or is no bundle, or not as it was exported.
    """
    text = read_bounded(path, limit=MAXIMUM_BUNDLE)
    try:
        bundle = parse_bundle(text)
        check_form(text, bundle)
        return Exhibit(path, bundle)
    except MalformedError as error:
        raise InputError(
            f"{path} is not a ledger bundle: {error}.", remedy="Bundles are made by feddrm-silo ledger export."
        ) from error


def read_exhibits(paths: Sequence[Path]) -> tuple[Exhibit, ...]:
    """Read bundles; those with the same content become one, which names its copies: a copy witnesses nothing.

    Raises:
        InputError: as `read_exhibit`.
    """
    distinct: list[Exhibit] = []
    for path in paths:
        exhibit = read_exhibit(path)
        for number, known in enumerate(distinct):
            if known.bundle == exhibit.bundle:
                distinct[number] = replace(known, copies=(*known.copies, path))
                break
        else:
            distinct.append(exhibit)
    return tuple(distinct)


def read_root(path: Path, fingerprint: str | None) -> FederationRoot:
    """Read the trust anchor.

    Args:
        path: the file federation.root.
        fingerprint: the federation's, as it came by another way, or None to take the file as it is.

    Raises:
        InputError: file or fingerprint is none.
        VerificationError: the file is of another federation than the fingerprint.
    """
    anchor = load_federation_root(path)
    if fingerprint is not None and normalise_fingerprint(fingerprint) != anchor.fingerprint:
        raise VerificationError(
            f"{path} is not the root of the federation whose fingerprint you gave.",
            remedy="Do not rely on it; ask the operator for both again, by two ways.",
        )
    return anchor
