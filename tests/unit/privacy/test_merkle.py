from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import MalformedError
from privacy.merkle import EMPTY_ROOT, Tree, consistency_valid, inclusion_valid, leaf_hash, node_hash

# The eight leaves of the test vectors of Certificate Transparency (RFC 6962 reference implementation).
CT_LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
CT_ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


def slow_root(leaves: list[bytes]) -> bytes:
    """RFC 6962 section 2.1, word for word."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaf_hash(leaves[0])
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(slow_root(leaves[:split]), slow_root(leaves[split:]))


def grown(count: int) -> Tree:
    return Tree(str(number).encode() for number in range(count))


def test_known_roots() -> None:
    for size, root in CT_ROOTS.items():
        assert Tree(CT_LEAVES[:size]).root().hex() == root
    assert Tree().root() == EMPTY_ROOT
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@given(st.lists(st.binary(max_size=4), max_size=70))
def test_roots_are_those_of_the_definition(leaves: list[bytes]) -> None:
    tree = Tree()
    for count, leaf in enumerate(leaves):
        assert tree.root() == slow_root(leaves[:count])
        assert tree.root_with(leaf) == slow_root(leaves[: count + 1])
        tree.append(leaf)
    assert [tree.root(size) for size in range(len(leaves) + 1)] == [
        slow_root(leaves[:size]) for size in range(len(leaves) + 1)
    ]


@given(st.data())
def test_honest_proofs_verify(data: st.DataObject) -> None:
    tree = grown(data.draw(st.integers(1, 80)))
    size = data.draw(st.integers(1, tree.size))
    index = data.draw(st.integers(0, size - 1))
    old = data.draw(st.integers(1, size))
    assert inclusion_valid(str(index).encode(), index, size, tree.inclusion(index, size), tree.root(size))
    assert consistency_valid(old, tree.root(old), size, tree.root(size), tree.consistency(old, size))


@given(st.data())
def test_altered_inclusion_proofs_fail(data: st.DataObject) -> None:
    tree = grown(data.draw(st.integers(2, 80)))
    index = data.draw(st.integers(0, tree.size - 1))
    path, root, leaf = tree.inclusion(index), tree.root(), str(index).encode()
    place = data.draw(st.integers(0, len(path) - 1))
    other = bytes([path[place][0] ^ 1]) + path[place][1:]
    assert not inclusion_valid(leaf, index, tree.size, (*path[:place], other, *path[place + 1 :]), root)
    assert not inclusion_valid(leaf, index, tree.size, path[:-1], root)
    assert not inclusion_valid(leaf, index, tree.size, (*path, bytes(32)), root)
    assert not inclusion_valid(leaf + b"x", index, tree.size, path, root)
    elsewhere = data.draw(st.integers(0, tree.size - 1).filter(lambda i: i != index))
    assert not inclusion_valid(leaf, elsewhere, tree.size, path, root)
    assert not inclusion_valid(leaf, tree.size, tree.size, path, root)
    assert not inclusion_valid(leaf, -1, tree.size, path, root)
    assert not inclusion_valid(leaf, index, 0, path, root)


@given(st.data())
def test_a_rewritten_log_has_no_consistency_proof(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 60))
    old = data.draw(st.integers(1, size))
    edited = data.draw(st.integers(0, old - 1))
    honest = grown(size)
    rewritten = Tree(b"other" if number == edited else str(number).encode() for number in range(size))
    for path in (honest.consistency(old), rewritten.consistency(old)):
        assert not consistency_valid(old, honest.root(old), size, rewritten.root(), path)


@given(st.data())
def test_altered_consistency_proofs_fail(data: st.DataObject) -> None:
    tree = grown(data.draw(st.integers(2, 80)))
    old = data.draw(st.integers(1, tree.size - 1))
    path, before, root = tree.consistency(old), tree.root(old), tree.root()
    place = data.draw(st.integers(0, len(path) - 1))
    other = bytes([path[place][0] ^ 1]) + path[place][1:]
    assert not consistency_valid(old, before, tree.size, root, (*path[:place], other, *path[place + 1 :]))
    assert not consistency_valid(old, before, tree.size, root, path[:-1])
    assert not consistency_valid(old, before, tree.size, root, (*path, bytes(32)))
    assert not consistency_valid(0, EMPTY_ROOT, tree.size, root, path)
    assert not consistency_valid(tree.size + 1, before, tree.size, root, path)
    assert not consistency_valid(tree.size, before, tree.size, root, ())
    assert not consistency_valid(tree.size, root, tree.size, root, path)


def test_a_leaf_cannot_pass_for_a_node() -> None:
    left, right = leaf_hash(b"a"), leaf_hash(b"b")
    assert leaf_hash(left + right) != node_hash(left, right)


def test_what_is_out_of_range_is_refused() -> None:
    tree = grown(5)
    for call in (
        lambda: tree.root(6),
        lambda: tree.root(-1),
        lambda: tree.inclusion(5),
        lambda: tree.inclusion(-1),
        lambda: tree.inclusion(3, 3),
        lambda: tree.consistency(0),
        lambda: tree.consistency(6),
    ):
        with pytest.raises(ValueError):
            call()


def test_hashes_of_another_length_are_refused() -> None:
    tree = grown(3)
    with pytest.raises(MalformedError):
        inclusion_valid(b"0", 0, 3, (b"short",), tree.root())
    with pytest.raises(MalformedError):
        consistency_valid(2, tree.root(2), 3, tree.root() + b"x", tree.consistency(2))
