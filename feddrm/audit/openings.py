"""An opening that a hospital gave to its auditor, held against the leaf that it opens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from feddrm.audit.exhibit import Exhibit
from feddrm.contract.errors import InputError
from feddrm.contract.files import read_bounded
from privacy.commitments import MAXIMUM_OPENING, Opening, parse_opening
from privacy.errors import MalformedError
from privacy.leaves import Commit, Dataset, Record


@dataclass(frozen=True, slots=True)
class Opened:
    """What an opening shows; `digest` is the SHA-256 of the records or of the update, if it holds."""

    holds: bool
    says: str
    digest: bytes


def read_opening(path: Path) -> Opening:
    """Read an opening's file.

    Raises:
        InputError: it is none.
    """
    try:
        return parse_opening(read_bounded(path, limit=MAXIMUM_OPENING))
    except MalformedError as error:
        raise InputError(f"{path} is not an opening: {error}.", remedy="feddrm-silo ledger open makes them.") from error


def judge_opening(opening: Opening, exhibit: Exhibit) -> Opened:
    """Whether an opening is of its leaf in this ledger; whether the ledger holds is `verify`'s matter."""
    leaves = exhibit.bundle.leaves
    if opening.origin != exhibit.bundle.origin:
        return Opened(False, f"the opening is of {opening.origin}, the ledger of {exhibit.bundle.origin}", b"")
    if opening.leaf >= len(leaves):
        return Opened(False, f"the ledger has {len(leaves)} leaves, none of number {opening.leaf}", b"")
    try:
        leaf = Record.decode(leaves[opening.leaf]).leaf
    except MalformedError as error:
        return Opened(False, f"leaf {opening.leaf} cannot be read: {error}", b"")
    if isinstance(leaf, Dataset):
        commitment, what = leaf.commitment, "the records that were read"
    elif isinstance(leaf, Commit):
        commitment, what = leaf.update, f"the update of round {leaf.round} of stage {leaf.stage}"
    else:
        return Opened(False, f"leaf {opening.leaf} is a {leaf.TYPE} leaf and commits to nothing", b"")
    if not opening.opens(commitment):
        return Opened(False, f"leaf {opening.leaf} does not commit to this", b"")
    return Opened(
        True, f"leaf {opening.leaf} commits to {what}, whose SHA-256 is {opening.digest.hex()}", opening.digest
    )
