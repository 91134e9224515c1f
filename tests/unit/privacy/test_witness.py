from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, DATA, EVENT, NOW, ORIGIN, PLAN, note_data
from witness_cases import Play, altered, check, prove

from privacy.canonical import canonical_json
from privacy.errors import ForkFault, LedgerFault, MalformedError, UnaskedFault
from privacy.gate import Gate
from privacy.leaves import Commit
from privacy.ledger import Ledger
from privacy.note import open_head, sign_head
from privacy.witness import check_answer, check_fork, make_fork, make_proof


def test_an_honest_proof_gives_the_head_to_witness(played: Gate, ledger: Ledger, key: bytes) -> None:
    assert check(prove(played, ledger, 2), key) == ledger.head()


def test_witnessing_goes_on_from_head_to_head(gate: Gate, ledger: Ledger, key: bytes, play: Play) -> None:
    witnessed, size = None, 0
    for number in range(1, 5):
        play(gate, range(number, number + 1))
        proof = prove(gate, ledger, number, (size, 1))
        witnessed = check(proof, key, witnessed, round=number)
        assert witnessed == check(proof, key, witnessed, round=number)
        size = ledger.size


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 3},
        {"stage": 2},
        {"plan": b"q" * 32},
        {"event": replace(EVENT, noise_multiplier=1.6)},
        {"event": replace(EVENT, steps=6)},
        {"origin": "feddrm/retina/hospital-b"},
    ],
)
def test_another_round_plan_or_charge_is_a_fault(
    played: Gate, ledger: Ledger, key: bytes, changes: dict[str, Any]
) -> None:
    with pytest.raises(LedgerFault):
        check(prove(played, ledger, 2), key, **changes)


def test_another_key_is_a_fault(played: Gate, ledger: Ledger) -> None:
    other = Ed25519PrivateKey.from_private_bytes(b"o" * 32).public_key().public_bytes_raw()
    with pytest.raises(LedgerFault):
        check(prove(played, ledger, 2), other)


def test_reserve_without_commit_and_commit_without_reserve_are_faults(played: Gate, ledger: Ledger, key: bytes) -> None:
    reservation, commit = played.reserved(PLAN, 1, 2), played.committed(PLAN, 1, 2)
    assert reservation is not None
    assert commit is not None
    with pytest.raises(LedgerFault, match="committed"):
        check(make_proof(ledger, (reservation.leaf,), ()), key)
    with pytest.raises(LedgerFault, match="charged"):
        check(make_proof(ledger, (commit,), ()), key)
    with pytest.raises(LedgerFault, match="charged"):
        check(make_proof(ledger, (), ()), key)


def test_a_charge_from_another_model_than_the_announced_does_not_count(
    played: Gate, ledger: Ledger, key: bytes
) -> None:
    with pytest.raises(LedgerFault, match="announced model"):
        check(prove(played, ledger, 2), key, model=b"m" * 32)


def test_the_commit_of_another_round_does_not_count(played: Gate, ledger: Ledger, key: bytes) -> None:
    reservation, commit = played.reserved(PLAN, 1, 2), played.committed(PLAN, 1, 1)
    assert reservation is not None
    assert commit is not None
    with pytest.raises(LedgerFault, match="committed"):
        check(make_proof(ledger, (reservation.leaf, commit), ()), key)


def test_a_commit_to_another_reservation_does_not_count(gate: Gate, ledger: Ledger, key: bytes, play: Play) -> None:
    play(gate, range(1, 2))
    reservation = gate.reserve(PLAN, 1, 2, EVENT, model=bytes(32), now_ms=NOW)
    other = gate.reserved(PLAN, 1, 1)
    assert other is not None
    commit = ledger.append(Commit(PLAN, 1, 2, other.leaf, bytes(32)), now_ms=NOW)
    with pytest.raises(LedgerFault, match="committed"):
        check(make_proof(ledger, (reservation.leaf, commit), ()), key)


def test_a_missing_consistency_proof_is_a_fault(played: Gate, ledger: Ledger, key: bytes) -> None:
    witnessed = check(prove(played, ledger, 2), key)
    ledger.append(DATA, now_ms=NOW)
    size = open_head(witnessed, ORIGIN, key).size
    silent = altered(prove(played, ledger, 2, (size,)), lambda proof: proof.update(consistency=[]))
    with pytest.raises(LedgerFault, match="does not prove"):
        check(silent, key, witnessed)
    assert check(prove(played, ledger, 2, (size,)), key, witnessed) == ledger.head()


def test_who_was_not_asked_is_not_at_fault(played: Gate, ledger: Ledger, key: bytes) -> None:
    """Or a coordinator that hides a size from one hospital would make another one accuse it."""
    witnessed = check(prove(played, ledger, 2), key)
    size = open_head(witnessed, ORIGIN, key).size
    ledger.append(DATA, now_ms=NOW)
    for asked in ((), (1, size - 1)):
        with pytest.raises(UnaskedFault, match="was not asked"):
            check(prove(played, ledger, 2, asked), key, witnessed)
    # A path that is there is checked all the same.
    reservation = played.reserved(PLAN, 1, 2)
    assert reservation is not None
    wrong = altered(
        make_proof(ledger, (reservation.leaf,), (), (size,)),
        lambda proof: proof["consistency"][0].update(path=["00" * 32]),
    )
    with pytest.raises(LedgerFault, match="no longer extends"):
        check(wrong, key, witnessed)


def test_the_coordinator_counts_only_an_answer_to_what_it_asked(played: Gate, ledger: Ledger, key: bytes) -> None:
    asked = (-1, 0, 1, 4, ledger.size, ledger.size + 5, 1 << 60)
    proof = prove(played, ledger, 2, asked)
    assert check_answer(proof, origin=ORIGIN, key=key, asked=asked) == ledger.size
    assert json.loads(proof)["asked"] == [1, 4, ledger.size, ledger.size + 5]

    def refused(proof: bytes, match: str, asked: tuple[int, ...] = asked, origin: str = ORIGIN) -> None:
        with pytest.raises(LedgerFault, match=match):
            check_answer(proof, origin=origin, key=key, asked=asked)

    refused(proof, "another question", (1,))
    refused(proof, "another question", (*asked, 3))
    refused(prove(played, ledger, 2), "another question")
    refused(altered(proof, lambda value: value["consistency"].pop()), "head of 4 leaves")
    refused(altered(proof, lambda value: value["asked"].reverse()), "not acceptable")
    refused(altered(proof, lambda value: value.pop("asked")), "not acceptable")
    refused(proof, "not acceptable", origin="feddrm/retina/hospital-b")
    refused(b"", "not acceptable")


def test_sizes_are_bounded_and_those_that_this_ledger_showed_are_proven_beside_them(
    played: Gate, ledger: Ledger
) -> None:
    reservation = played.reserved(PLAN, 1, 2)
    assert reservation is not None
    proof = json.loads(make_proof(ledger, (reservation.leaf,), range(200), (2, 3)))
    assert proof["asked"] == list(range(96, 200))
    assert [entry["size"] for entry in proof["consistency"]] == [2, 3]
    with pytest.raises(ValueError, match="at most"):
        make_proof(ledger, (reservation.leaf,), (), range(1, 26))


def test_sizes_that_never_were_are_left_out(played: Gate, ledger: Ledger) -> None:
    proof = json.loads(prove(played, ledger, 2, (-3, 0, 1, 4, 10**9, ledger.size, ledger.size + 1)))
    assert [entry["size"] for entry in proof["consistency"]] == [1, 4]


def test_a_rolled_back_ledger_is_a_fault(
    path: Path, tmp_path: Path, signer: Ed25519PrivateKey, key: bytes, play: Play
) -> None:
    copy = tmp_path / "copy.db"
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        play(Gate(ledger, CAPS), range(1, 3))
    shutil.copy(path, copy)
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        gate = Gate(ledger, CAPS)
        play(gate, range(3, 4))
        witnessed = check(prove(gate, ledger, 3), key, round=3)
    shutil.copy(copy, path)
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        gate = Gate(ledger, CAPS)
        with pytest.raises(LedgerFault, match="rolled back"):
            check(prove(gate, ledger, 2), key, witnessed)
        # Going on from the copy with other content until it is as long again, or longer, does not help either.
        note_data(gate)
        reservation = gate.reserve(PLAN, 1, 3, EVENT, model=b"m" * 32, now_ms=NOW)
        gate.commit(reservation, b"x" * 32, now_ms=NOW)
        gate.release(PLAN, 1, 3, sum=bytes(32), model=bytes(32), now_ms=NOW)
        size = open_head(witnessed, ORIGIN, key).size
        assert ledger.size == size
        with pytest.raises(ForkFault) as fork:
            check(prove(gate, ledger, 3, (size,)), key, witnessed, round=3)
        assert check_fork(fork.value.evidence, origin=ORIGIN, key=key) == size
        ledger.append(DATA, now_ms=NOW)
        with pytest.raises(LedgerFault, match="no longer extends"):
            check(prove(gate, ledger, 3, (size,)), key, witnessed, round=3)


def test_what_is_no_fork_proves_nothing(played: Gate, ledger: Ledger, key: bytes) -> None:
    old = ledger.head()
    ledger.append(DATA, now_ms=NOW)
    for first, second in ((old, ledger.head()), (old, old)):
        with pytest.raises(MalformedError):
            check_fork(make_fork(first, second), origin=ORIGIN, key=key)
    for evidence in (b"", b"{}", b"null", canonical_json({"first": 1, "second": 2})):
        with pytest.raises(MalformedError):
            check_fork(evidence, origin=ORIGIN, key=key)


def test_a_fork_needs_the_silo_s_own_signature(played: Gate, ledger: Ledger, key: bytes) -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    forged = sign_head(ORIGIN, ledger.size, b"r" * 32, stranger)
    with pytest.raises(MalformedError):
        check_fork(make_fork(ledger.head(), forged), origin=ORIGIN, key=key)
