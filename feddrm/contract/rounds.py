"""How a round ended: certified by silos' acks, or declared lost by the coordinator (design section 5).

All acks of a round have the same body, so that a round has one outcome whoever happened to sign it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field

from feddrm.contract import labels
from feddrm.contract.documents import Hash, canonical, parse_body
from feddrm.contract.errors import VerificationError
from feddrm.contract.messages import RoundOutcome
from feddrm.contract.names import Document
from feddrm.contract.plan import MAXIMUM_ROUNDS, Plan
from feddrm.contract.roster import Roster
from feddrm.contract.schedule import last_round, stage_of
from feddrm.contract.sections import MAXIMUM_SILOS
from feddrm.contract.signed import Signed, sign, signers, verify

RoundNumber = Annotated[int, Field(ge=1, le=MAXIMUM_ROUNDS)]


class Ack(Document):
    """What a silo signs after it verified and applied a sum.

    Attributes:
        plan: plan hash.
        session: sid of the secure aggregation that made the sum.
        sum: the name of the published sum as a blob (BLAKE3 of its bytes).
        count: silos in the sum.
        round: numbered through all stages.
        model: hash of the job's state after the round: the shared model, and what later stages add to it.
    """

    format: Literal["feddrm ack 1"] = "feddrm ack 1"
    plan: Hash
    stage: Annotated[int, Field(ge=1, le=5)] = 1
    round: RoundNumber
    session: Hash
    sum: Hash
    count: Annotated[int, Field(ge=2, le=MAXIMUM_SILOS)]
    model: Hash


class Lost(Document):
    """The coordinator's statement that a round ended without a certified sum; its budget stays spent."""

    format: Literal["feddrm lost 1"] = "feddrm lost 1"
    plan: Hash
    stage: Annotated[int, Field(ge=1, le=5)] = 1
    round: RoundNumber
    reason: Annotated[str, Field(max_length=200)]


def sign_ack(ack: Ack, identity: Ed25519PrivateKey) -> Signed:
    """Sign an ack as a silo."""
    return sign(identity, labels.ROUND_ACK, canonical(ack))


def sign_lost(lost: Lost, round_key: Ed25519PrivateKey) -> Signed:
    """Sign a lost-round record as the coordinator."""
    return sign(round_key, labels.ROUND_LOST, canonical(lost))


def verify_ack(signed: Signed, *, identity: bytes) -> Ack:
    """Verify one silo's ack.

    Args:
        identity: the Ed25519 key that the roster lists for the silo that sent it.

    Raises:
        VerificationError: not exactly that silo's signature.
        MalformedError: not an ack.
    """
    if len(signed.signatures) != 1:
        raise VerificationError("An ack carries exactly one signature.")
    return parse_body(verify(signed, labels.ROUND_ACK, identity, what="The ack"), Ack, what="The ack")


def verify_outcome(outcome: RoundOutcome, plan: Plan, roster: Roster, *, plan_hash: bytes) -> Ack | Lost:
    """Verify a round's outcome against the plan's silos and threshold.

    Args:
        plan_hash: hash of the signed plan body, as received.

    Returns:
        the acknowledged or the lost record; its `round` equals the outcome's.

    Raises:
        VerificationError: signatures missing or too few, acks that differ, both kinds at once, another plan or round.
        MalformedError: a body is malformed.
    """
    record = _lost(outcome, roster) if outcome.lost is not None else _acknowledged(outcome, plan, roster)
    if (record.plan, record.round) != (plan_hash, outcome.round):
        raise VerificationError(f"The outcome of round {outcome.round} is about another plan or round.")
    if not 1 <= record.round <= last_round(plan):
        raise VerificationError(f"The plan has no round {record.round}.")
    if record.stage != stage_of(plan, record.round):
        raise VerificationError(f"The outcome of round {record.round} is about another stage.")
    return record


def _lost(outcome: RoundOutcome, roster: Roster) -> Lost:
    if outcome.lost is None or outcome.acks or outcome.sum:
        raise VerificationError(f"Round {outcome.round} is said to be both published and lost.")
    body = verify(outcome.lost, labels.ROUND_LOST, roster.round_key, what="The lost-round record")
    return parse_body(body, Lost, what="The lost-round record")


def _acknowledged(outcome: RoundOutcome, plan: Plan, roster: Roster) -> Ack:
    if not outcome.acks:
        raise VerificationError(f"The outcome of round {outcome.round} carries neither acks nor a lost-round record.")
    if len(outcome.acks) > len(plan.silos):
        raise VerificationError(f"Round {outcome.round} carries more acks than the plan has silos.")
    body = outcome.acks[0].body
    if any(ack.body != body for ack in outcome.acks):
        raise VerificationError(f"The acks of round {outcome.round} differ.")
    names = {roster.find(name, "silo").identity: name for name in plan.silos}
    # Distinct keys are counted, not signatures: one silo's ack ten times over is one ack.
    confirmed = {key for ack in outcome.acks for key in signers(ack, labels.ROUND_ACK) if key in names}
    threshold = plan.secure_aggregation.threshold
    if len(confirmed) < threshold:
        raise VerificationError(
            f"Round {outcome.round} is acknowledged by {len(confirmed)} silos; the plan demands {threshold}."
        )
    ack = parse_body(body, Ack, what="The ack")
    if ack.sum != outcome.sum:
        raise VerificationError(f"The acks of round {outcome.round} are about another sum.")
    if ack.count > len(plan.silos):
        raise VerificationError(f"The acks of round {outcome.round} count more silos than the plan has.")
    return ack
