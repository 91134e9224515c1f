"""Proofs that were altered, grown or made up are faults, whatever the change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from privacy_cases import DATA, NOW
from witness_cases import Play, altered, check, prove

from privacy.errors import LedgerFault
from privacy.gate import Gate
from privacy.ledger import Ledger
from privacy.witness import make_proof

ALTERATIONS: list[Callable[[Any], object]] = [
    lambda p: p.pop("head"),
    lambda p: p.pop("consistency"),
    lambda p: p.update(extra=1),
    lambda p: p.update(head=7),
    lambda p: p.update(head="feddrm"),
    lambda p: p.update(leaves={}),
    lambda p: p["leaves"][0].update(number=3),
    lambda p: p["leaves"][0].update(number=-1),
    lambda p: p["leaves"][0].update(number="1"),
    lambda p: p["leaves"][0].update(number=True),
    lambda p: p["leaves"][0].update(leaf=p["leaves"][1]["leaf"]),
    lambda p: p["leaves"][0].update(leaf=5),
    lambda p: p["leaves"][0].update(leaf=p["leaves"][0]["leaf"].replace('"steps":5', '"steps":4')),
    lambda p: p["leaves"][0]["path"].pop(),
    lambda p: p["leaves"][0]["path"].append("00" * 32),
    lambda p: p["leaves"][0]["path"].append("zz"),
    lambda p: p["leaves"][0]["path"].append(3),
    lambda p: p["leaves"][0].update(path="00"),
    lambda p: p["leaves"][0]["path"].reverse(),
    lambda p: p["leaves"][0]["path"].__setitem__(0, p["leaves"][0]["path"][0].upper()),
    lambda p: p["leaves"][0]["path"].__setitem__(0, " " + p["leaves"][0]["path"][0]),
    lambda p: p["leaves"].extend([p["leaves"][0]] * 32),
    lambda p: p["consistency"][0].update(path=[]),
    lambda p: p["consistency"][0]["path"].reverse(),
    lambda p: p["consistency"][0].update(size=2),
    lambda p: p["consistency"].clear(),
    lambda p: p["consistency"].extend([{"size": 1, "path": []}] * 200),
]


@pytest.mark.parametrize("change", ALTERATIONS)
def test_altered_proofs_are_faults(
    gate: Gate, ledger: Ledger, key: bytes, play: Play, change: Callable[[Any], object]
) -> None:
    play(gate, range(1, 2))
    witnessed = check(prove(gate, ledger, 1), key, round=1)
    size = ledger.size
    play(gate, range(2, 3))
    proof = prove(gate, ledger, 2, (size,))
    assert check(proof, key, witnessed) == ledger.head()
    with pytest.raises(LedgerFault):
        check(altered(proof, change), key, witnessed)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_changed_byte_of_a_proof_is_a_fault(played: Gate, ledger: Ledger, key: bytes, data: st.DataObject) -> None:
    proof = prove(played, ledger, 2, (3,))
    witnessed = None
    place = data.draw(st.integers(0, len(proof) - 1))
    changed = proof[:place] + bytes([proof[place] ^ data.draw(st.integers(1, 255))]) + proof[place + 1 :]
    try:
        head = check(changed, key, witnessed)
    except LedgerFault:
        return
    # Without a witnessed head the consistency paths prove nothing yet; all else is bound.
    assert head == ledger.head()
    assert proof.index(b'"asked"') < place < proof.index(b'"head"')


@given(st.binary(max_size=200))
def test_random_bytes_are_faults(proof: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"s" * 32).public_key().public_bytes_raw()
    with pytest.raises(LedgerFault):
        check(proof, key)
    with pytest.raises(LedgerFault):
        check(b" " * 300_000, key)


def test_a_proof_shows_at_most_thirty_two_leaves(played: Gate, ledger: Ledger) -> None:
    for _ in range(40):
        ledger.append(DATA, now_ms=NOW)
    with pytest.raises(ValueError, match="at most"):
        make_proof(ledger, range(33), ())
    with pytest.raises(ValueError, match="no leaf"):
        make_proof(ledger, (ledger.size,), ())


def test_a_proof_of_a_hundred_peers_is_small(gate: Gate, ledger: Ledger, play: Play) -> None:
    play(gate, range(1, 3))
    for number in range(300):
        ledger.append(replace(DATA, commitment=number.to_bytes(32)), now_ms=NOW)
    proof = prove(gate, ledger, 2, tuple(range(1, 101)))
    assert len(proof) < 128 << 10
