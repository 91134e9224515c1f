"""Making and checking proofs as silos and peers do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from privacy_cases import EVENT, ORIGIN, PLAN

from privacy.canonical import canonical_json
from privacy.gate import Gate
from privacy.ledger import Ledger
from privacy.witness import check_proof, make_proof

Play = Callable[..., None]


def prove(gate: Gate, ledger: Ledger, number: int, sizes: tuple[int, ...] = ()) -> bytes:
    reservation, commit = gate.reserved(PLAN, 1, number), gate.committed(PLAN, 1, number)
    assert reservation is not None
    assert commit is not None
    return make_proof(ledger, (reservation.leaf, commit), sizes)


def check(proof: bytes, key: bytes, witnessed: bytes | None = None, **changes: Any) -> bytes:
    terms = {"origin": ORIGIN, "plan": PLAN, "stage": 1, "round": 2, "event": EVENT, "model": bytes(32), **changes}
    return check_proof(proof, key=key, witnessed=witnessed, **terms)


def altered(proof: bytes, change: Callable[[Any], object]) -> bytes:
    value = json.loads(proof)
    change(value)
    return canonical_json(value)
