"""A ledger whose key changes, and one that is lost: what its peers and an auditor then demand of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from privacy_cases import NOW, ORIGIN
from succession_cases import NEW, OLD, OTHER, charge, failed, public, verify, witness

from privacy.errors import LedgerCorrupt, LedgerFault
from privacy.handover import Successor, hand_over
from privacy.ledger import Ledger
from privacy.note import open_head, sign_head


def test_a_ledger_goes_on_under_the_key_that_it_was_handed_to(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, ORIGIN, OLD, now_ms=NOW) as ledger:
        seen = witness(charge(ledger, 1), OLD, None, OLD, 1)
        number = ledger.hand_over(NEW, now_ms=NOW)
        assert isinstance(ledger.leaf(number), Successor)
        assert witness(charge(ledger, 2), NEW, seen, OLD, 2) != seen
        assert failed(verify(ledger, witnessed={"b": seen})) == set()
        size = ledger.size
    with pytest.raises(LedgerCorrupt, match="not under the key"):
        Ledger.open(path, ORIGIN, OLD, now_ms=NOW)
    with Ledger.open(path, ORIGIN, NEW, now_ms=NOW) as again:
        assert again.size == size
        again.hand_over(OTHER, now_ms=NOW)
        assert witness(charge(again, 3), OTHER, seen, OLD, 3), "two handovers since that peer was there"
    assert Ledger.read(path, ORIGIN, public(OTHER)).size > size


def test_without_the_old_keys_signature_nobody_takes_a_log_over(tmp_path: Path) -> None:
    """Who holds all leaves and the new key, but not the old one (an operator who put its own key into a roster)."""
    with Ledger.open(tmp_path / "ledger.db", ORIGIN, OLD, now_ms=NOW) as ledger:
        seen = witness(charge(ledger, 1), OLD, None, OLD, 1)
        forged = hand_over(ORIGIN, ledger.size, bytes(32), OTHER, NEW)
        root = bytes(32)
        ledger.append(replace(forged, old=public(OLD), root=root), now_ms=NOW)
        proof = charge(ledger, 2)
        with pytest.raises(LedgerFault, match="signatures of both keys"):
            witness(resigned(ledger, proof), NEW, seen, OLD, 2)
        assert failed(verify(ledger, OLD)) == {"key"}


def resigned(ledger: Ledger, proof: bytes) -> bytes:
    from privacy.canonical import canonical_json, parse_canonical

    parts = parse_canonical(proof)
    head = open_head(parts["head"].encode(), ORIGIN, public(OLD))
    note = sign_head(ORIGIN, head.size, head.root, NEW)
    return canonical_json({**parts, "head": note.decode()})


def test_a_handover_belongs_to_one_place_of_one_log(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", ORIGIN, OLD, now_ms=NOW) as ledger:
        charge(ledger, 1)
        leaf = hand_over(ORIGIN, ledger.size, bytes(32), OLD, NEW)
        ledger.append(leaf, now_ms=NOW)
        (check,) = (check for check in verify(ledger, OLD)["key"] if not check.passed)
        assert "other leaves than stand before it" in check.message
    with Ledger.open(tmp_path / "other.db", ORIGIN, OLD, now_ms=NOW) as ledger:
        ledger.append(hand_over(ORIGIN, 7, bytes(32), OLD, NEW), now_ms=NOW)
        assert "signatures of both keys" in verify(ledger, OLD)["key"][0].message
    with pytest.raises(LedgerCorrupt, match="handed over"):
        Ledger.read(tmp_path / "other.db", ORIGIN, public(NEW))
