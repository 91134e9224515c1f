"""What was done to a ledger whose leaves do not give a root that its hospital signed.

A root says only that something differs. Most of the rest can be found by trial: whoever exchanges two leaves, moves one
or adds some leaves everything behind from which the signed root follows again, and that is proof. Edits and deletions
are told by what remains: the prefixes that signed heads still fit, and COMMIT leaves, which name a leaf by its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from privacy.errors import MalformedError
from privacy.leaves import Commit, Leaf, Record, Reserve
from privacy.merkle import Tree, leaf_hash, node_hash
from privacy.note import Head

# Trials cost a few hashes each: less than a second for a ledger of any size.
_TRIALS: Final = 20_000
# To leave each leaf out in turn costs a whole tree every time.
_LARGEST_LEFT_OUT: Final = 512


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
    if head.size < len(leaves) <= min(head.size + 1, _LARGEST_LEFT_OUT):
        for number in range(sound, len(leaves)):
            if _Roots([*leaves[:number], *leaves[number + 1 :]]).root() == head.root:
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


def _reordered(leaves: Sequence[bytes], root: bytes, sound: int) -> str:
    """Which exchange of two leaves, or move of one, gives the signed root again; empty if none of those tried."""
    roots, trials = _Roots(leaves), 0
    hashes = roots.hashes
    for distance in range(1, len(leaves)):
        for first in range(sound, len(leaves) - distance):
            last = first + distance
            trials += 2 * distance
            if trials > _TRIALS:
                return ""
            if roots.root({first: hashes[last], last: hashes[first]}) == root:
                return f"leaves {first} and {last} changed places"
            span = hashes[first : last + 1]
            for turned, text in (
                ([*span[1:], span[0]], f"leaf {last} was moved to {first}"),
                ([span[-1], *span[:-1]], f"leaf {first} was moved to {last}"),
            ):
                if roots.root(dict(enumerate(turned, start=first))) == root:
                    return text
    return ""


class _Roots:
    """A tree whose root with a few other leaf hashes costs a few hashes. A last node without a neighbour rises as it
    is, which gives the tree of RFC 6962."""

    __slots__ = ("_levels",)

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels = [[leaf_hash(leaf) for leaf in leaves]]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            self._levels.append(
                [node_hash(*below[at : at + 2]) if at + 1 < len(below) else below[at] for at in range(0, len(below), 2)]
            )

    @property
    def hashes(self) -> list[bytes]:
        return self._levels[0]

    def root(self, changed: dict[int, bytes] | None = None) -> bytes:
        """The root where leaves at some positions have other hashes (bytes, 32)."""
        changed = changed or {}
        for below in self._levels[:-1]:
            above: dict[int, bytes] = {}
            for at in {position // 2 for position in changed}:
                left = changed.get(2 * at, below[2 * at])
                if 2 * at + 1 < len(below):
                    above[at] = node_hash(left, changed.get(2 * at + 1, below[2 * at + 1]))
                else:
                    above[at] = left
            changed = above
        top = self._levels[-1]
        return changed.get(0, top[0] if top else b"")
