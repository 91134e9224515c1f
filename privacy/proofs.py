"""The parts of proofs about ledgers, read strictly, and what peers keep of each other's ledgers: sightings.

A sighting is a signed head with some leaves and their audit paths (RFC 6962 section 2.1.1): proof that the hospital
itself logged them, also when its ledger is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from privacy import fields
from privacy.canonical import parse_canonical
from privacy.errors import MalformedError
from privacy.leaves import Leaf, Record
from privacy.merkle import inclusion_valid
from privacy.note import Head, InvalidNoteError
from privacy.succession import open_any

MAXIMUM_PROOF: Final = 192 << 10
# A round's RESERVE and COMMIT, and why the log may be under its key: up to thirty handovers, losses and carried jobs.
MAXIMUM_LEAVES: Final = 32
_MAXIMUM_PATH: Final = 128


def sighting_of(proof: bytes) -> bytes:
    """What to keep of a proof that `check_proof` accepted: the signed head and the leaves in it.

    Returns:
        Canonical JSON, for `check_sighting`.
    """
    # Whoever accepted it has read it strictly: canonical, so keys come in order, and what stands before the head are
    # numbers and hexadecimal digits.
    return b"{" + proof[proof.index(b'"head":') :]


def check_sighting(sighting: bytes, *, origin: str, keys: Iterable[bytes]) -> tuple[Head, bytes, dict[int, Leaf]]:
    """Judge what a peer kept of a log, whoever brings it: the head, the key among `keys` that signed it, the leaves.

    Raises:
        MalformedError: it proves nothing.
    """
    if len(sighting) > MAXIMUM_PROOF:
        raise MalformedError(f"a sighting of {len(sighting)} bytes exceeds the limit of {MAXIMUM_PROOF}")
    parts = read_object(parse_canonical(sighting), {"head", "leaves"})
    note = read_text(parts["head"])
    head, key = open_any(note, origin, keys)
    check_alone(note, head)
    return head, key, read_leaves(parts["leaves"], head)


def check_alone(note: bytes, head: Head) -> None:
    """Whether a note is the head's text with the log's one signature. Raises MalformedError otherwise."""
    if note != head.note:
        raise MalformedError(f"the tree head of {head.origin} carries more than the one signature of its silo")


def read_leaves(items: Any, head: Head) -> dict[int, Leaf]:
    """Leaves with their audit paths, in the order of their numbers, each once and in the tree of `head`.

    Raises:
        MalformedError: they are not.
    """
    leaves: dict[int, Leaf] = {}
    for item in read_list(items, MAXIMUM_LEAVES):
        entry = read_object(item, {"number", "path", "leaf"})
        number, body = read_number(entry["number"]), read_text(entry["leaf"])
        if not inclusion_valid(body, number, head.size, read_path(entry["path"]), head.root):
            raise InvalidNoteError(f"leaf {number} is not in the tree")
        if leaves and number <= max(leaves):
            raise MalformedError("leaves come in the order of their numbers, each once")
        leaves[number] = Record.decode(body).leaf
    return leaves


def read_object(value: Any, names: set[str]) -> dict[str, Any]:
    """An object with exactly these names. Raises MalformedError otherwise."""
    if not isinstance(value, dict) or set(value) != names:
        raise MalformedError(f"an object with exactly {', '.join(sorted(names))} is expected")
    return value


def read_list(value: Any, limit: int) -> list[Any]:
    """A list of at most `limit`. Raises MalformedError otherwise."""
    if not isinstance(value, list) or len(value) > limit:
        raise MalformedError(f"a list of at most {limit} is expected")
    return value


def read_text(value: Any) -> bytes:
    """Text, as bytes. Raises MalformedError otherwise."""
    if not isinstance(value, str):
        raise MalformedError("text is expected")
    return value.encode()


def read_number(value: Any) -> int:
    """A whole number that is not negative. Raises MalformedError otherwise."""
    if type(value) is not int or value < 0:
        raise MalformedError("a number that is not negative is expected")
    return value


def read_path(value: Any) -> tuple[bytes, ...]:
    """An audit path. Raises MalformedError otherwise."""
    return tuple([fields.digest(item) for item in read_list(value, _MAXIMUM_PATH)])
