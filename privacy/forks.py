"""Proof that a hospital keeps two ledgers: two heads that it signed and that cannot belong to one append-only log.

Two heads of one size with two roots are one (`privacy.witness.check_fork`). Heads of different sizes are one together
with the consistency path from another root of the smaller size: the larger log then has a beginning that is not the
smaller one. RFC 6962 section 2.1.2; the proof convinces whoever knows the hospital's key and needs no leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from privacy import fields
from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import MalformedError
from privacy.merkle import Tree, consistency_valid
from privacy.note import Head, open_head
from privacy.witness import check_fork, make_fork

MAXIMUM_PROOF: Final = 64 << 10
_MAXIMUM_PATH: Final = 128


def find_fork(heads: Iterable[Head], logs: Iterable[tuple[Head, Sequence[bytes]]] = ()) -> bytes | None:
    """The first proof of a fork among heads of one log, or None: nothing is proven.

    Args:
        heads: verified heads of one log.
        logs: further verified heads of it, each with the leaves over which it was signed.
    """
    trees = [(head, Tree(leaves)) for head, leaves in logs]
    known = sorted({head.note: head for head in (*heads, *(head for head, _ in trees))}.values(), key=_order)
    by_size: dict[int, Head] = {}
    for head in known:
        other = by_size.setdefault(head.size, head)
        if other.root != head.root:
            return make_fork(other.note, head.note)
    for longer, tree in trees:
        for head in known:
            if 0 < head.size < longer.size and tree.root(head.size) != head.root:
                return canonical_json(
                    {
                        "first": head.note.decode(),
                        "second": longer.note.decode(),
                        "root": tree.root(head.size).hex(),
                        "path": [digest.hex() for digest in tree.consistency(head.size, longer.size)],
                    }
                )
    return None


def check_fork_proof(proof: bytes, *, origin: str, key: bytes) -> str:
    """Judge a proof without trusting whoever brought it; returns in words what it shows.

    Args:
        proof: as `find_fork` or `witness.make_fork` gave it.
        origin: the log.
        key: the hospital's Ed25519 key (32 bytes), from a roster.

    Raises:
        MalformedError: it proves nothing.
    """
    if len(proof) > MAXIMUM_PROOF:
        raise MalformedError(f"a proof of {len(proof)} bytes exceeds the limit of {MAXIMUM_PROOF}")
    parts: Any = parse_canonical(proof)
    if not isinstance(parts, dict) or set(parts) not in ({"first", "second"}, {"first", "second", "root", "path"}):
        raise MalformedError("a proof holds two heads, and where their sizes differ a root and a path")
    if "root" not in parts:
        size = check_fork(proof, origin=origin, key=key)
        return f"signed two different heads of {size} leaves"
    if not all(isinstance(parts[name], str) for name in ("first", "second")) or not isinstance(parts["path"], list):
        raise MalformedError("heads are text, and a path is a list")
    if len(parts["path"]) > _MAXIMUM_PATH:
        raise MalformedError("the path is too long")
    first, second = (open_head(parts[name].encode(), origin, key) for name in ("first", "second"))
    root, path = fields.digest(parts["root"]), tuple(fields.digest(item) for item in parts["path"])
    if not 0 < first.size < second.size or root == first.root:
        raise MalformedError("these two heads can belong to one log")
    if not consistency_valid(first.size, root, second.size, second.root, path):
        raise MalformedError("the path does not lead from the root to the larger head")
    return f"signed a head of {second.size} leaves that does not extend its head of {first.size} leaves"


def _order(head: Head) -> tuple[int, bytes]:
    return head.size, head.note
