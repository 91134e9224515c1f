"""An honest ledger on paper, and what becomes of it when leaves are changed."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, DATA, EVENT, ORIGIN, PLAN, ROUNDS, WHOLE

from privacy.accounting import claim, epsilon
from privacy.checks import StageTerms
from privacy.leaves import Commit, Key, Leaf, Plan, Record, Release, Reserve
from privacy.merkle import Tree
from privacy.note import sign_head
from privacy.verify import Check, PlanTerms, verify_log

SIGNER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)


KEY = SIGNER.public_key().public_bytes_raw()


TERMS = {PLAN: PlanTerms("job", 1e-5, {1: StageTerms(EVENT, 1, ROUNDS)}, "id", bytes(32), bytes(32))}


COST = claim(epsilon(WHOLE, 1e-5).pld)


TIME = "2027-01-15T08:00:00Z"


PLAN_LEAF = Plan(PLAN, "job", 1e-5, COST, COST, WHOLE, CAPS, "0.1.0")


def bodies(*leaves: Leaf, data: tuple[Leaf, ...] = (DATA,)) -> tuple[bytes, ...]:
    """KEY, DATASET and `leaves`, so that the first of these is leaf 2."""
    return tuple(Record(TIME, leaf).encode() for leaf in (Key(ORIGIN, KEY), *data, *leaves))


def rounds(*numbers: int, first: int = 3) -> list[Leaf]:
    result: list[Leaf] = []
    for number in numbers:
        result += [
            Reserve(PLAN, 1, number, EVENT, bytes(32)),
            Commit(PLAN, 1, number, first + len(result), bytes(32)),
            Release(PLAN, 1, number, bytes(32), bytes(32)),
        ]
    return result


def sealed(leaves: tuple[bytes, ...]) -> bytes:
    """A head that the hospital itself signed over these leaves: it holds the key, so it can lie consistently."""
    return sign_head(ORIGIN, len(leaves), Tree(leaves).root(), SIGNER)


def checked(leaves: tuple[bytes, ...], head: bytes | None = None, **changes: object) -> tuple[Check, ...]:
    arguments: dict[str, object] = {"plans": TERMS, "witnessed": {}, "origin": ORIGIN, "key": KEY, **changes}
    return verify_log(leaves=leaves, head=head or sealed(leaves), **arguments)  # type: ignore[arg-type]


def failed(checks: tuple[Check, ...]) -> list[tuple[str, int | None]]:
    return [(check.name, check.leaf) for check in checks if not check.passed]


HONEST = bodies(PLAN_LEAF, *rounds(1, 2))
