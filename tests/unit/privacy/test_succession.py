"""A ledger whose key changes, and one that is lost: what its peers and an auditor then demand of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, EVENT, NOW, ORIGIN, PLAN, ROUNDS, WHOLE, note_data

from privacy.accounting import claim, epsilon
from privacy.checks import Check, PlanTerms, StageTerms
from privacy.errors import BudgetRefused, ForkFault, LedgerCorrupt, LedgerError, LedgerFault, MalformedError
from privacy.gate import Gate
from privacy.handover import Carry, Recovered, Successor, hand_over, recovered_from
from privacy.leaves import Leaf
from privacy.ledger import Ledger
from privacy.note import open_head, sign_head
from privacy.proofs import check_sighting, sighting_of
from privacy.succession import Charged, Owed
from privacy.verify import verify_log
from privacy.witness import check_proof, make_proof

OLD, NEW, OTHER = (Ed25519PrivateKey.from_private_bytes(letter * 32) for letter in (b"o", b"n", b"x"))
COST = claim(epsilon(WHOLE, 1e-5).pld)
CARRY = Carry(PLAN, "job", 1e-5, COST, COST, WHOLE, "id", 1000)
TERMS = {PLAN: PlanTerms("job", 1e-5, {1: StageTerms(EVENT, 1, ROUNDS)}, "id", bytes(32), bytes(32))}
SECOND = b"q" * 32
OWED = Owed(PLAN, "job", 1e-5, COST, COST, WHOLE, "id")


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def charge(ledger: Ledger, number: int, plan: bytes = PLAN) -> bytes:
    """One round, charged and committed; returns the proof that R1 would carry."""
    gate = Gate(ledger, CAPS)
    gate.open_job(plan, "job", 1e-5, WHOLE, now_ms=NOW)
    note_data(gate, plan)
    reservation = gate.reserve(plan, 1, number, EVENT, model=bytes(32), now_ms=NOW)
    commit = gate.commit(reservation, bytes(32), now_ms=NOW)
    proof = make_proof(ledger, (reservation.leaf, commit, *ledger.succession()), range(1, 100))
    gate.release(plan, 1, number, sum=bytes(32), model=bytes(32), now_ms=NOW)
    return proof


def witness(
    proof: bytes,
    key: Ed25519PrivateKey,
    seen: bytes | None,
    by: Ed25519PrivateKey,
    number: int,
    plan: bytes = PLAN,
    owed: tuple[Owed, ...] = (),
) -> bytes:
    return check_proof(
        proof,
        origin=ORIGIN,
        key=public(key),
        witnessed=seen,
        witnessed_key=public(by),
        plan=plan,
        stage=1,
        round=number,
        event=EVENT,
        model=bytes(32),
        owed=owed,
    )


@pytest.fixture
def lost(tmp_path: Path) -> tuple[bytes, bytes]:
    """The head and the sighting that a peer keeps of a ledger that is no more."""
    with Ledger.open(tmp_path / "lost.db", ORIGIN, OLD, now_ms=NOW) as ledger:
        proof = charge(ledger, 1)
    return witness(proof, OLD, None, OLD, 1), sighting_of(proof)


def begin_again(tmp_path: Path, *leaves: Leaf, key: Ed25519PrivateKey = NEW) -> Ledger:
    return Ledger.begin_again(tmp_path / "ledger.db", ORIGIN, key, leaves, now_ms=NOW)


def answer(head: bytes) -> Recovered:
    return recovered_from(open_head(head, ORIGIN, public(OLD)), public(OLD))


def verify(ledger: Ledger, key: Ed25519PrivateKey = NEW, **changes: object) -> dict[str, list[Check]]:
    arguments: dict[str, object] = {"plans": TERMS, "witnessed": {}, "former": (public(OLD),), **changes}
    checks = verify_log(
        origin=ORIGIN,
        key=public(key),
        leaves=ledger.bodies(),
        head=ledger.head(),
        **arguments,  # type: ignore[arg-type]
    )
    found: dict[str, list[Check]] = {}
    for check in checks:
        found.setdefault(check.name, []).append(check)
    return found


def failed(found: dict[str, list[Check]]) -> set[str]:
    return {name for name, checks in found.items() if not all(check.passed for check in checks)}


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


def test_a_new_log_that_answers_for_the_lost_one_is_taken(tmp_path: Path, lost: tuple[bytes, bytes]) -> None:
    head, sighting = lost
    seen, key, leaves = check_sighting(sighting, origin=ORIGIN, keys=(public(NEW), public(OLD)))
    assert (seen.note, key) == (head, public(OLD))
    assert {leaf.TYPE for leaf in leaves.values()} == {"RESERVE", "COMMIT"}
    with begin_again(tmp_path, answer(head), CARRY) as ledger:
        proof = charge(ledger, 1, SECOND)
        new = witness(proof, NEW, head, OLD, 1, SECOND)
        assert witness(charge(ledger, 2, SECOND), NEW, new, NEW, 2, SECOND)
        second = {SECOND: TERMS[PLAN]}
        found = verify(
            ledger, plans=TERMS | second, witnessed={"b": head}, charged=(Charged(public(OLD), PLAN, "b's sighting"),)
        )
        assert failed(found) == set()
        (note,) = found["recovery"]
        assert note.note
        assert "answers for a lost one" in note.message


def test_a_new_log_without_an_answer_is_refused_by_peers_and_by_the_audit(
    tmp_path: Path, lost: tuple[bytes, bytes]
) -> None:
    head, _ = lost
    with begin_again(tmp_path) as ledger:
        proof = charge(ledger, 1)
        with pytest.raises(LedgerFault, match="neither that the old one handed it over nor that a new log answers"):
            witness(proof, NEW, head, OLD, 1)
        assert failed(verify(ledger, witnessed={"b": head})) == {"witnesses"}


@pytest.mark.parametrize("how", ["shorter", "forked", "unsigned", "another key"])
def test_answering_for_less_than_was_witnessed_is_not_enough(
    tmp_path: Path, lost: tuple[bytes, bytes], how: str
) -> None:
    head, _ = lost
    size = open_head(head, ORIGIN, public(OLD)).size
    leaf = answer(head)
    if how == "shorter":
        leaf = answer(sign_head(ORIGIN, size - 1, bytes(32), OLD))
    elif how == "forked":
        leaf = answer(sign_head(ORIGIN, size, bytes(32), OLD))
    elif how == "unsigned":
        leaf = replace(leaf, size=size + 1)
    else:
        leaf = recovered_from(
            open_head(sign_head(ORIGIN, size, bytes(32), OTHER), ORIGIN, public(OTHER)), public(OTHER)
        )
    with begin_again(tmp_path, leaf, CARRY) as ledger:
        proof = charge(ledger, 1, SECOND)
        with pytest.raises(LedgerFault, match="witnessed"):
            witness(proof, NEW, head, OLD, 1, SECOND)
        assert "witnesses" in failed(verify(ledger, witnessed={"b": head}, plans=TERMS | {SECOND: TERMS[PLAN]}))
        # It may answer for more later on.
        ledger.append(answer(head), now_ms=NOW)
        assert witness(charge(ledger, 2, SECOND), NEW, head, OLD, 2, SECOND)


def test_under_the_same_key_nothing_excuses_a_new_log(tmp_path: Path, lost: tuple[bytes, bytes]) -> None:
    """Two logs under one key are a fork, whatever the second one says of the first."""
    head, _ = lost
    with begin_again(tmp_path, answer(head), CARRY, key=OLD) as ledger:
        proof = charge(ledger, 1, SECOND)
        with pytest.raises((LedgerFault, ForkFault)):
            witness(proof, OLD, head, OLD, 1, SECOND)
        assert "witnesses" in failed(verify(ledger, OLD, witnessed={"b": head}, former=()))


UNDERSTATED = [
    ((), "does not show that it carries job job"),
    ((replace(CARRY, plan=SECOND),), "does not show"),
    ((replace(CARRY, epsilon=COST / 2),), "carries job job at epsilon"),
    ((replace(CARRY, epsilon_alone=COST / 2),), "carries job job at epsilon"),
    ((replace(CARRY, epsilon=COST - 1e-6),), "carries job job at epsilon"),
    ((replace(CARRY, delta=1e-6),), "other terms"),
    ((replace(CARRY, events=()),), "other terms"),
    ((replace(CARRY, name="another"),), "other terms"),
    ((replace(CARRY, patient="visit"),), "other terms"),
]


@pytest.mark.parametrize(("carry", "message"), UNDERSTATED)
def test_peers_refuse_a_log_that_carries_less_than_they_saw_charged(
    tmp_path: Path, lost: tuple[bytes, bytes], carry: tuple[Carry, ...], message: str
) -> None:
    """The head is answered for; the budget would be forgotten all the same."""
    head, _ = lost
    third = b"r" * 32
    with begin_again(tmp_path, answer(head), *carry) as ledger:
        proof = charge(ledger, 1, third)
        with pytest.raises(LedgerFault, match=message):
            witness(proof, NEW, head, OLD, 1, third, (OWED,))
        # A second leaf of the same job cannot come; whoever understated it begins another log.
        if not any(leaf.plan == PLAN for leaf in carry):
            ledger.append(CARRY, now_ms=NOW)
            assert witness(charge(ledger, 2, third), NEW, head, OLD, 2, third, (OWED,))


def test_peers_take_a_log_that_carries_what_they_saw(tmp_path: Path, lost: tuple[bytes, bytes]) -> None:
    head, _ = lost
    with begin_again(tmp_path, answer(head), replace(CARRY, epsilon=COST + 1)) as ledger:
        assert witness(charge(ledger, 1, SECOND), NEW, head, OLD, 1, SECOND, (OWED,))


def test_thirty_jobs_can_be_shown_and_the_answer_itself_always(tmp_path: Path, lost: tuple[bytes, bytes]) -> None:
    head, _ = lost
    jobs = [replace(CARRY, plan=number.to_bytes(32), epsilon=0.0, epsilon_alone=0.0) for number in range(60)]
    with begin_again(tmp_path, answer(head), *jobs) as ledger:
        shown = ledger.succession()[-30:]
        assert isinstance(ledger.leaf(shown[-1]), Recovered)
        assert len({leaf.plan for leaf in map(ledger.leaf, shown) if isinstance(leaf, Carry)}) == 29


def test_a_public_size_stays_fixed_across_a_loss(tmp_path: Path, lost: tuple[bytes, bytes]) -> None:
    head, _ = lost
    with begin_again(tmp_path, answer(head), replace(CARRY, public_size=2000)) as ledger:
        charge(ledger, 1, SECOND)
        found = verify(ledger, plans=TERMS | {SECOND: TERMS[PLAN]}, witnessed={"b": head})
        assert failed(found) == {"patients"}
        assert "public size changed from 2000 to 1000" in found["patients"][0].message


def test_what_was_not_there_is_in_the_log_and_said(tmp_path: Path, lost: tuple[bytes, bytes]) -> None:
    leaf = recovered_from(open_head(lost[0], ORIGIN, public(OLD)), public(OLD), ("west", "east", "east"))
    with begin_again(tmp_path, leaf, CARRY) as ledger:
        assert leaf.without == ("east", "west")
        (note,) = verify(ledger, witnessed={"b": lost[0]})["recovery"]
        assert note.message.endswith("the exports of east, west were not there to show more")


@pytest.mark.parametrize(
    "carry",
    [
        (),
        (replace(CARRY, epsilon=COST / 2),),
        (replace(CARRY, epsilon_alone=COST / 2),),
        (replace(CARRY, delta=1e-6),),
        (replace(CARRY, events=()),),
        (replace(CARRY, patient="visit"),),
    ],
)
def test_what_others_can_prove_must_be_carried_in_full(
    tmp_path: Path, lost: tuple[bytes, bytes], carry: tuple[Carry, ...]
) -> None:
    head, _ = lost
    with begin_again(tmp_path, answer(head), *carry) as ledger:
        found = verify(ledger, witnessed={"b": head}, charged=(Charged(public(OLD), PLAN, "b"),))
        assert failed(found) == {"recovery"}


def test_a_carried_job_is_over_and_counts_for_life(tmp_path: Path, lost: tuple[bytes, bytes]) -> None:
    with begin_again(tmp_path, answer(lost[0]), CARRY) as ledger:
        gate = Gate(ledger, replace(CAPS, life_epsilon=1.5 * COST))
        size = ledger.size
        with pytest.raises(BudgetRefused, match="ledger that was lost"):
            gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
        with pytest.raises(BudgetRefused, match="for life"):
            gate.open_job(SECOND, "job", 1e-5, WHOLE, now_ms=NOW)
        assert ledger.size == size


def test_a_log_is_not_begun_beside_another_and_never_by_half(tmp_path: Path, lost: tuple[bytes, bytes]) -> None:
    begin_again(tmp_path, answer(lost[0]), CARRY).close()
    with pytest.raises(LedgerError, match="there is a ledger"):
        begin_again(tmp_path, answer(lost[0]))
    again = Ledger.read(tmp_path / "ledger.db", ORIGIN, public(NEW))
    assert [record.leaf.TYPE for record in again.leaves()] == ["KEY", "RECOVERED", "CARRY"]


def test_a_changed_sighting_proves_nothing(lost: tuple[bytes, bytes]) -> None:
    parts = json.loads(lost[1])
    parts["leaves"][0]["leaf"] = parts["leaves"][0]["leaf"].replace('"round":1', '"round":2')
    changed = json.dumps(parts, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
    with pytest.raises(MalformedError, match="not in the tree"):
        check_sighting(changed, origin=ORIGIN, keys=(public(OLD),))
    with pytest.raises(MalformedError, match="signature"):
        check_sighting(lost[1], origin=ORIGIN, keys=(public(NEW),))
