"""What was done to a ledger whose leaves do not give a root that its hospital signed.

A root says only that something differs. Most of the rest can be found by trial: whoever exchanges two leaves, moves one
or adds some leaves everything behind from which the signed root follows again, and that is proof. Edits and deletions
are told by what remains: the prefixes that signed heads still fit, and COMMIT leaves, which name a leaf by its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from privacy.errors import MalformedError
from privacy.leaves import Commit, Leaf, Record, Reserve
from privacy.merkle import EMPTY_ROOT, Tree, leaf_hash, node_hash
from privacy.note import Head

# What looking for exchanges may cost, and for moves again: about a second. Every pair of a hundred leaves can be
# tried for that, and in a longer ledger the pairs that are nearest to each other.
_HASHES: Final = 300_000


def explain(leaves: Sequence[bytes], head: Head, seen: Iterable[Head] = ()) -> str:
    """Say in words what makes `leaves` differ from those over which `head` was signed.

    Args:
        leaves: bytes of all leaves of the ledger, as exported.
        head: a head of it that is signed and does not fit them.
        seen: other signed heads of the same log; those that fit show how far nothing was changed.
    """
    tree = Tree(leaves)
    sound = max((one.size for one in seen if one.size <= tree.size and tree.root(one.size) == one.root), default=0)
    since = f"; the first {sound} leaves are as signed" if sound else ""
    if len(leaves) < head.size:
        return _missing(leaves, head.size, sound, since)
    if len(leaves) > head.size and tree.root(head.size) == head.root:
        return f"leaves were added: from leaf {head.size} on there is no signature"
    if len(leaves) == head.size + 1:
        number = _inserted(leaves, head.root, sound)
        if number is not None:
            return f"leaf {number} was inserted: the signed root follows without it"
    elif len(leaves) == head.size:
        moved = _reordered(leaves, head.root, sound)
        if moved:
            return f"leaves were reordered: {moved}, and the signed root follows when they are put back"
    return f"a leaf was edited, or several were replaced as by an older copy that went on{since}"


def _missing(leaves: Sequence[bytes], size: int, sound: int, since: str) -> str:
    gone = size - len(leaves)
    count = f"{gone} leaves are" if gone > 1 else "1 leaf is"
    what = f"{count} missing of the {size} that were signed"
    shift = next((found for found in _shifts(leaves)), None)
    if shift is not None:
        number, by = shift
        deleted = f"{by} leaves were" if by > 1 else "1 leaf was"
        return f"{what}: {deleted} deleted before leaf {number}, which later leaves know by the number {number + by}"
    if sound == len(leaves):
        return f"{what}: the log was cut short, and the {sound} leaves that are left are as signed"
    return f"{what}: the log was cut short, or leaves near its end were deleted{since}"


def _shifts(leaves: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """RESERVE leaves that stand at a lower number than their COMMIT names, and by how much."""
    charged: dict[tuple[bytes, int, int], int] = {}
    for number, leaf in _readable(leaves):
        if isinstance(leaf, Reserve):
            charged[leaf.plan, leaf.stage, leaf.round] = number
        elif isinstance(leaf, Commit):
            found = charged.get((leaf.plan, leaf.stage, leaf.round))
            if found is not None and found < leaf.reserve:
                yield found, leaf.reserve - found


def _readable(leaves: Sequence[bytes]) -> Iterator[tuple[int, Leaf]]:
    for number, body in enumerate(leaves):
        try:
            yield number, Record.decode(body).leaf
        except MalformedError:
            continue


def _inserted(leaves: Sequence[bytes], root: bytes, sound: int) -> int | None:
    """Which leaf, from number `sound` on, has to be left out for the signed root."""
    rest = _Shuffled([*leaves[:sound], *leaves[sound + 1 :]])
    for number in range(sound, len(leaves)):
        if rest.root == root:
            return number
        if number + 1 < len(leaves):
            rest.put(number, leaf_hash(leaves[number]))
    return None


def _reordered(leaves: Sequence[bytes], root: bytes, sound: int) -> str:
    """Which exchange of two leaves, or move of one, gives the signed root again; empty if none of those tried."""
    width = max(len(leaves) - sound, 1)
    # An exchange is tried and undone, and changes two paths to the root.
    reach = max(1, _HASHES // (4 * width * len(leaves).bit_length()))
    tree = _Shuffled(leaves)
    return _exchanged(tree, root, sound, reach) or _moved(tree, root, sound, reach)


def _exchanged(tree: _Shuffled, root: bytes, sound: int, reach: int) -> str:
    for first in range(sound, tree.size):
        for last in range(first + 1, min(first + reach + 1, tree.size)):
            tree.exchange(first, last)
            if tree.root == root:
                return f"leaves {first} and {last} changed places"
            tree.exchange(first, last)
    return ""


def _moved(tree: _Shuffled, root: bytes, sound: int, reach: int) -> str:
    """A leaf travels by exchanges with its neighbours, so that each place it comes to costs one exchange."""
    for start in range(sound, tree.size):
        for way, end in ((1, min(start + reach, tree.size - 1)), (-1, max(start - reach, sound))):
            for at in range(start, end, way):
                tree.exchange(at, at + way)
                if tree.root == root:
                    return f"leaf {at + way} was moved to {start}"
            for at in range(end, start, -way):
                tree.exchange(at, at - way)
    return ""


class _Shuffled:
    """A tree in which a leaf can be replaced for a few hashes. A last node without a neighbour rises as it is, which
    gives the tree of RFC 6962."""

    __slots__ = ("_levels",)

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels = [[leaf_hash(leaf) for leaf in leaves]]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            self._levels.append(
                [node_hash(*below[at : at + 2]) if at + 1 < len(below) else below[at] for at in range(0, len(below), 2)]
            )

    @property
    def size(self) -> int:
        return len(self._levels[0])

    @property
    def root(self) -> bytes:
        return self._levels[-1][0] if self.size else EMPTY_ROOT

    def exchange(self, first: int, second: int) -> None:
        hashes = self._levels[0]
        hashes[first], hashes[second] = hashes[second], hashes[first]
        self._follow({first, second})

    def put(self, position: int, digest: bytes) -> None:
        self._levels[0][position] = digest
        self._follow({position})

    def _follow(self, changed: set[int]) -> None:
        for below, above in pairwise(self._levels):
            changed = {position // 2 for position in changed}
            for at in changed:
                pair = below[2 * at : 2 * at + 2]
                above[at] = node_hash(*pair) if len(pair) == 2 else pair[0]
