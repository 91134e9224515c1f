"""The Merkle tree of RFC 6962 section 2.1 with inclusion and consistency proofs; their checks follow RFC 9162
sections 2.1.3.2 and 2.1.4.2 (the same tree, the checks spelled out)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from privacy.errors import MalformedError

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = sha256(b"").digest()


def leaf_hash(leaf: bytes) -> bytes:
    """SHA-256(0x00 || leaf): no leaf can pass for an inner node."""
    return sha256(b"\0" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 || left || right)."""
    return sha256(b"\1" + left + right).digest()


class Tree:
    """An append-only tree over leaf hashes. Keeps the root of every complete subtree, so that appending costs O(1)
    on average, and roots and proofs of any size up to the present one O(log n) and O(log**2 n)."""

    __slots__ = ("_levels",)

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self._levels: list[list[bytes]] = [[]]
        for leaf in leaves:
            self.append(leaf)

    @property
    def size(self) -> int:
        """Number of leaves."""
        return len(self._levels[0])

    def append(self, leaf: bytes) -> None:
        """Add the leaf whose bytes (not hash) are given."""
        self._levels[0].append(leaf_hash(leaf))
        level = 0
        while len(self._levels[level]) % 2 == 0:
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].append(node_hash(*self._levels[level][-2:]))
            level += 1

    def root(self, size: int | None = None) -> bytes:
        """The root over the first `size` leaves (all by default).

        Raises:
            ValueError: size out of range.
        """
        size = self._checked(self.size if size is None else size)
        return self._range(0, size) if size else EMPTY_ROOT

    def root_with(self, leaf: bytes) -> bytes:
        """The root that the tree would have after `append(leaf)`."""
        digest = leaf_hash(leaf)
        for level, nodes in enumerate(self._levels):
            if self.size >> level & 1:
                digest = node_hash(nodes[-1], digest)
        return digest

    def inclusion(self, index: int, size: int | None = None) -> tuple[bytes, ...]:
        """The audit path of leaf `index` in the tree of the first `size` leaves.

        Raises:
            ValueError: index or size out of range.
        """
        size = self._checked(self.size if size is None else size)
        if not 0 <= index < size:
            raise ValueError(f"there is no leaf {index} in a tree of {size}")
        path: list[bytes] = []
        start, end = 0, size
        while end - start > 1:
            middle = start + _split(end - start)
            if index < middle:
                path.append(self._range(middle, end))
                end = middle
            else:
                path.append(self._range(start, middle))
                start = middle
        return tuple(reversed(path))

    def consistency(self, old: int, size: int | None = None) -> tuple[bytes, ...]:
        """The proof that the tree of `size` leaves extends the one of the first `old`.

        Raises:
            ValueError: not 1 <= old <= size <= self.size.
        """
        size = self._checked(self.size if size is None else size)
        if not 1 <= old <= size:
            raise ValueError(f"there is no consistency proof from {old} to {size} leaves")
        path: list[bytes] = []
        start, end, whole = 0, size, True
        while old != end:
            middle = start + _split(end - start)
            if old <= middle:
                path.append(self._range(middle, end))
                end = middle
            else:
                path.append(self._range(start, middle))
                start, whole = middle, False
        if not whole:
            path.append(self._range(start, end))
        return tuple(reversed(path))

    def _checked(self, size: int) -> int:
        if not 0 <= size <= self.size:
            raise ValueError(f"there is no tree of {size} leaves")
        return size

    def _range(self, start: int, end: int) -> bytes:
        width = end - start
        if width & (width - 1) == 0:
            level = width.bit_length() - 1
            return self._levels[level][start >> level]
        middle = start + _split(width)
        return node_hash(self._range(start, middle), self._range(middle, end))


def inclusion_valid(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Whether `path` proves that `leaf` (its bytes) stands at `index` in the tree of `size` leaves with `root`.

    Raises:
        MalformedError: a hash is not 32 bytes.
    """
    _check_hashes((*path, root))
    if not 0 <= index < size:
        return False
    node, last, digest = index, size - 1, leaf_hash(leaf)
    for sibling in path:
        if last == 0:
            return False
        if node & 1 or node == last:
            digest = node_hash(sibling, digest)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            digest = node_hash(digest, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and compare_digest(digest, root)


def consistency_valid(old: int, old_root: bytes, size: int, root: bytes, path: Sequence[bytes]) -> bool:
    """Whether `path` proves that the tree (size, root) extends (old, old_root). Needs old >= 1: nothing has to be
    proven about an empty tree.

    Raises:
        MalformedError: a hash is not 32 bytes.
    """
    _check_hashes((*path, old_root, root))
    if not 1 <= old <= size:
        return False
    if old == size:
        return not path and compare_digest(old_root, root)
    nodes = list(path)
    if old & (old - 1) == 0:
        nodes.insert(0, old_root)
    if not nodes:
        return False
    node, last = old - 1, size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    before = after = nodes[0]
    for sibling in nodes[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            before, after = node_hash(sibling, before), node_hash(sibling, after)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            after = node_hash(after, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and compare_digest(before, old_root) and compare_digest(after, root)


def _split(width: int) -> int:
    """The largest power of two below `width`."""
    return 1 << (width - 1).bit_length() - 1


def _check_hashes(hashes: Sequence[bytes]) -> None:
    if any(len(digest) != HASH_BYTES for digest in hashes):
        raise MalformedError("a hash in a Merkle proof is not 32 bytes long")
