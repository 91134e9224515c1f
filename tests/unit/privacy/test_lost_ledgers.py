"""A new log for a lost one: what it must answer for and carry, before peers and auditors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, NOW, ORIGIN, PLAN, WHOLE
from succession_cases import NEW, OLD, OTHER, TERMS, charge, failed, public, verify, witness

from privacy.accounting import claim, epsilon
from privacy.errors import BudgetRefused, ForkFault, LedgerError, LedgerFault, MalformedError
from privacy.gate import Gate
from privacy.handover import Carry, Recovered, recovered_from
from privacy.leaves import Leaf
from privacy.ledger import Ledger
from privacy.note import open_head, sign_head
from privacy.proofs import check_sighting, sighting_of
from privacy.succession import Charged, Owed

COST = claim(epsilon(WHOLE, 1e-5).pld)


CARRY = Carry(PLAN, "job", 1e-5, COST, COST, WHOLE, "id", 1000)


SECOND = b"q" * 32


OWED = Owed(PLAN, "job", 1e-5, COST, COST, WHOLE, "id")


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
    ((replace(CARRY, epsilon=COST * (1 - 3e-4)),), "carries job job at epsilon"),
    ((replace(CARRY, epsilon_alone=COST * (1 - 3e-4)),), "carries job job at epsilon"),
    ((replace(CARRY, epsilon=0.0, epsilon_alone=0.0),), "carries job job at epsilon"),
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


@pytest.mark.parametrize("apart", [1e-6, 5e-5 * COST], ids=["the last digit", "another discretisation"])
def test_a_figure_that_another_machine_rounds_otherwise_keeps_no_silo_out(
    tmp_path: Path, lost: tuple[bytes, bytes], apart: float
) -> None:
    """The log can only grow, so that a refusal for the sake of a digit would be one for good."""
    head, _ = lost
    carry = replace(CARRY, epsilon=COST - apart, epsilon_alone=COST - apart)
    with begin_again(tmp_path, answer(head), carry) as ledger:
        assert witness(charge(ledger, 1, SECOND), NEW, head, OLD, 1, SECOND, (OWED,))
        found = verify(
            ledger,
            plans=TERMS | {SECOND: TERMS[PLAN]},
            witnessed={"b": head},
            charged=(Charged(public(OLD), PLAN, "b"),),
        )
        assert failed(found) == set()


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
        (replace(CARRY, epsilon=COST * (1 - 3e-4)),),
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
