from __future__ import annotations

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import DATA, NOW, ORIGIN, PLAN, ROUNDS, WHOLE, note_data
from verify_cases import COST, HONEST, PLAN_LEAF, SIGNER, TIME, bodies, checked, failed, rounds, sealed

from privacy.accounting import epsilon
from privacy.gate import Gate
from privacy.leaves import Key, Record
from privacy.ledger import Ledger
from privacy.merkle import Tree
from privacy.note import sign_head
from privacy.summary import summarise


def test_an_honest_ledger_passes_every_check() -> None:
    result = checked(HONEST, witnessed={"hospital-b": sealed(HONEST[:4]), "hospital-c": sealed(HONEST)})
    assert failed(result) == []
    assert {check.name for check in result} == {
        *("head", "tree", "witnesses", "leaves", "key", "times", "order", "plan"),
        *("caps", "reservations", "epsilon", "unreleased", "patients", "models"),
    }
    assert not any(check.note for check in result)


def test_a_whole_real_ledger_passes(gate: Gate, ledger: Ledger, play: Callable[..., None]) -> None:
    note_data(gate)
    play(gate, range(1, ROUNDS + 1))
    gate.close_job(PLAN, now_ms=NOW)
    assert failed(checked(ledger.bodies(), ledger.head())) == []
    jobs, life = summarise(record.leaf for record in ledger.leaves())
    assert (jobs[0].rounds_charged, jobs[0].rounds_released) == (ROUNDS, ROUNDS)
    assert jobs[0].spent == epsilon(WHOLE, 1e-5)
    assert life.epsilon == COST


def test_an_edited_leaf_is_named() -> None:
    edited = (*HONEST[:4], HONEST[4].replace(b'"round":1', b'"round":2'), *HONEST[5:])
    assert edited != HONEST
    assert ("tree", None) in failed(checked(edited, sealed(HONEST)))


@pytest.mark.parametrize(
    "leaves",
    [
        HONEST[:-1],
        HONEST[:4] + HONEST[5:],
        (*HONEST, HONEST[-1]),
        (*HONEST[:2], HONEST[3], HONEST[2], *HONEST[4:]),
        (),
    ],
    ids=["truncated", "deleted", "added", "reordered", "emptied"],
)
def test_deleting_reordering_adding_break_the_tree(leaves: tuple[bytes, ...]) -> None:
    assert ("tree", None) in failed(checked(leaves, sealed(HONEST)))


def test_a_head_of_another_key_or_log_fails() -> None:
    other = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    root = Tree(HONEST).root()
    for head in (
        sign_head(ORIGIN, len(HONEST), root, other),
        sign_head("feddrm/retina/hospital-b", len(HONEST), root, SIGNER),
        b"no note",
    ):
        assert ("head", None) in failed(checked(HONEST, head))


def test_a_truncated_and_resigned_log_fails_by_a_peer_s_head() -> None:
    witnessed = {"hospital-b": sealed(HONEST)}
    result = checked(HONEST[:5], witnessed=witnessed)
    assert failed(result) == [("witnesses", None)]
    assert any("cut short" in check.message and "hospital-b" in check.message for check in result)
    # Without that head it would pass: the reader is told.
    alone = checked(HONEST[:5])
    assert failed(alone) == []
    assert ("witnesses", True) in {(check.name, check.note) for check in alone}


def test_a_rewritten_and_resigned_log_fails_by_a_peer_s_head() -> None:
    other = bodies(PLAN_LEAF, *rounds(1, 3))
    assert len(other) == len(HONEST)
    for seen in (HONEST, HONEST[:7]):
        result = checked(other, witnessed={"hospital-b": sealed(seen)})
        assert failed(result) == [("witnesses", None)]
        assert any("rewritten or forked" in check.message for check in result)


def test_one_lying_witness_is_enough_to_fail_and_is_named() -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    forged = sign_head(ORIGIN, 99, bytes(32), stranger)
    for note in (forged, b"junk"):
        result = checked(HONEST, witnessed={"hospital-b": sealed(HONEST), "hospital-c": note})
        bad = [check for check in result if not check.passed]
        assert len(bad) == 1
        assert "hospital-c" in bad[0].message


@pytest.mark.parametrize("body", [b"{}", b"junk", HONEST[2].replace(b":", b": "), HONEST[2].replace(b"PLAN", b"PLOT")])
def test_an_unreadable_leaf_is_named(body: bytes) -> None:
    assert ("leaves", 2) in failed(checked((*HONEST[:2], body)))


def test_the_log_begins_with_its_key() -> None:
    assert ("key", 0) in failed(checked(HONEST[1:]))
    wrong = (Record(TIME, Key(ORIGIN, b"x" * 32)).encode(), *HONEST[1:])
    assert ("key", 0) in failed(checked(wrong))


def test_time_running_backwards_is_named() -> None:
    early = Record("2027-01-15T07:00:00Z", DATA).encode()
    assert ("times", len(HONEST)) in failed(checked((*HONEST, early)))
