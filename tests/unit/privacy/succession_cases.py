"""A ledger that is lost, the keys that it had, and who looks at what takes its place."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, EVENT, NOW, ORIGIN, PLAN, ROUNDS, WHOLE, note_data

from privacy.checks import Check, PlanTerms, StageTerms
from privacy.gate import Gate
from privacy.ledger import Ledger
from privacy.succession import Owed
from privacy.verify import verify_log
from privacy.witness import check_proof, make_proof

OLD, NEW, OTHER = (Ed25519PrivateKey.from_private_bytes(letter * 32) for letter in (b"o", b"n", b"x"))


TERMS = {PLAN: PlanTerms("job", 1e-5, {1: StageTerms(EVENT, 1, ROUNDS)}, "id", bytes(32), bytes(32))}


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
