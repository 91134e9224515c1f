"""A plan as the operator signed it: verified, then parsed, and named by the hash of the bytes as received."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract import labels
from feddrm.contract.documents import parse_body
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.plan import Plan, plan_hash
from feddrm.contract.signed import Signed, sign, verify


@dataclass(frozen=True, slots=True)
class SignedPlan:
    """A verified plan.

    Attributes:
        plan: parsed.
        hash: 32 bytes that name it everywhere.
        signed: the document as received, for whoever must verify it again.
    """

    plan: Plan
    hash: bytes
    signed: Signed


def sign_plan(plan: Plan, operator: Ed25519PrivateKey) -> SignedPlan:
    """Sign a plan as the operator.

    Raises:
        InputError: no querier could be routed by what it trains.
    """
    if plan.unroutable:
        raise InputError(
            f"{plan.unroutable}.", remedy='Keep trunk and routing head shared, such as by personal = ["target_head.*"].'
        )
    signed = sign(operator, labels.PLAN, plan.body())
    return SignedPlan(plan, plan_hash(signed.body), signed)


def verify_plan(signed: Signed, *, federation: str, operator: bytes) -> SignedPlan:
    """Verify the operator's signature, then parse.

    Args:
        operator: the operator's Ed25519 key from the trust anchor.

    Raises:
        VerificationError: not signed by the operator, or another federation's.
        MalformedError: not a plan, or one by which no querier could be routed.
    """
    body = verify(signed, labels.PLAN, operator, what="The plan")
    plan = parse_body(body, Plan, what="The plan")
    if plan.federation != federation:
        raise VerificationError(f"The plan is for federation {plan.federation}, not for {federation}.")
    if plan.unroutable:
        raise MalformedError(f"{plan.unroutable}.")
    return SignedPlan(plan, plan_hash(body), signed)
