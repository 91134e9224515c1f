"""What verify says was done to a ledger: each kind of tampering has words of its own."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_cases import CAPS, DATA, EVENT, ORIGIN, PLAN, WHOLE

from privacy.leaves import Commit, Key, Leaf, Plan, Record, Release, Reserve
from privacy.merkle import Tree
from privacy.note import Head, open_head, sign_head
from privacy.tampering import explain
from privacy.verify import verify_log

SIGNER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
KEY = SIGNER.public_key().public_bytes_raw()


def log(rounds: int) -> tuple[bytes, ...]:
    leaves: list[Leaf] = [Key(ORIGIN, KEY), DATA, Plan(PLAN, "job", 1e-5, 1.0, 1.0, WHOLE, CAPS, "0.1.0")]
    for number in range(1, rounds + 1):
        leaves += [
            Reserve(PLAN, 1, number, EVENT, bytes(32)),
            Commit(PLAN, 1, number, len(leaves), bytes(32)),
            Release(PLAN, 1, number, bytes(32), bytes(32)),
        ]
    return tuple(Record("2027-01-15T08:00:00Z", leaf).encode() for leaf in leaves)


LOG = log(6)


def note(leaves: tuple[bytes, ...]) -> bytes:
    return sign_head(ORIGIN, len(leaves), Tree(leaves).root(), SIGNER)


def head(leaves: tuple[bytes, ...]) -> Head:
    return open_head(note(leaves), ORIGIN, KEY)


def without(number: int) -> tuple[bytes, ...]:
    return LOG[:number] + LOG[number + 1 :]


EDITED = (*LOG[:7], LOG[7].replace(b'"round":2', b'"round":9'), *LOG[8:])
EXCHANGED = (*LOG[:4], LOG[8], *LOG[5:8], LOG[4], *LOG[9:])
MOVED = (*LOG[:4], *LOG[5:9], LOG[4], *LOG[9:])
CASES = {
    "edited": (EDITED, "a leaf was edited"),
    "exchanged": (EXCHANGED, "reordered: leaves 4 and 8 changed places"),
    "moved": (MOVED, "reordered: leaf 4 was moved to 8"),
    "deleted": (without(5), "1 leaf was deleted before leaf 5, which later leaves know by the number 6"),
    "cut": (LOG[:10], "the log was cut short"),
    "added": ((*LOG, LOG[3]), f"leaves were added: from leaf {len(LOG)} on"),
    "inserted": ((*LOG[:6], LOG[3], *LOG[6:]), "leaf 6 was inserted"),
}


@pytest.mark.parametrize(("leaves", "words"), CASES.values(), ids=CASES)
def test_each_kind_of_tampering_without_the_key_has_its_own_words(leaves: tuple[bytes, ...], words: str) -> None:
    said = explain(leaves, head(LOG))
    assert words in said
    assert not [other for _, other in CASES.values() if other != words and other in said]


@pytest.mark.parametrize("kind", ["edited", "exchanged", "moved"])
def test_a_hospital_that_signs_again_is_told_the_same_by_a_peer_s_head(kind: str) -> None:
    leaves, words = CASES[kind]
    checks = verify_log(
        origin=ORIGIN, key=KEY, leaves=leaves, head=note(leaves), plans={}, witnessed={"hospital-b": note(LOG[:20])}
    )
    (bad,) = [check for check in checks if check.name == "witnesses"]
    assert not bad.passed
    assert words in bad.message


def test_an_old_copy_is_told_from_a_log_that_was_cut() -> None:
    """The old copy carries its own old head; the cut log still carries the newest."""
    for leaves, signed, name, words in (
        (LOG[:12], note(LOG[:12]), "witnesses", "an older copy was put back"),
        (LOG[:12], note(LOG), "tree", "the log was cut short"),
    ):
        checks = verify_log(
            origin=ORIGIN, key=KEY, leaves=leaves, head=signed, plans={}, witnessed={"hospital-b": note(LOG[:20])}
        )
        assert any(not c.passed and c.name == name and words in c.message for c in checks)


def test_heads_that_fit_show_how_far_nothing_was_changed() -> None:
    seen = [head(LOG[:4]), head(LOG[:6]), head(LOG[:9])]
    assert "the first 6 leaves are as signed" in explain(EDITED, head(LOG), seen)
    assert explain(LOG[:6], head(LOG), seen).endswith("the 6 leaves that are left are as signed")


def test_unreadable_and_empty_logs_are_explained_too() -> None:
    assert "cut short" in explain((), head(LOG))
    assert "edited" in explain(tuple(b"junk%d" % n for n in range(len(LOG))), head(LOG))
    assert "added" in explain(LOG, head(()))


def test_a_long_log_is_explained_in_time() -> None:
    long = log(1000)
    changed = (*long[:1500], long[1501], long[1500], *long[1502:])
    assert "leaves 1500 and 1501 changed places" in explain(changed, head(long))
    assert "edited" in explain((*long[:1500], long[3], *long[1501:]), head(long))


@pytest.mark.parametrize(("size", "first", "last"), [(40, 0, 35), (100, 0, 99)])
def test_leaves_far_from_each_other_are_found_in_their_places(size: int, first: int, last: int) -> None:
    leaves = [b"%d" % number for number in range(size)]
    signed = head(tuple(leaves))
    exchanged = list(leaves)
    exchanged[first], exchanged[last] = exchanged[last], exchanged[first]
    assert f"leaves {first} and {last} changed places" in explain(exchanged, signed)
    leaves.insert(last, leaves.pop(first))
    assert f"leaf {first} was moved to {last}" in explain(leaves, signed)


@settings(max_examples=60)
@given(st.integers(2, 40), st.data())
def test_any_exchange_move_or_insertion_is_found_and_put_back(size: int, data: st.DataObject) -> None:
    leaves = tuple(b"%d" % number for number in range(size))
    one, other = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True))
    signed = head(leaves)

    changed = list(leaves)
    changed[one], changed[other] = changed[other], changed[one]
    exchange = f"leaves {min(one, other)} and {max(one, other)} changed places"
    assert exchange in explain(changed, signed)

    changed = list(leaves)
    changed.insert(other, changed.pop(one))
    # Neighbours that change places were moved as well.
    assert (exchange if abs(one - other) == 1 else f"leaf {one} was moved to {other}") in explain(changed, signed)

    assert f"leaf {one} was inserted" in explain((*leaves[:one], b"new", *leaves[one:]), signed)
