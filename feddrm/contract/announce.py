"""The announcement of a round (R0), derived from the plan by one function that both sides use (design 6, R0).

The coordinator sends `announcement_of(...)`; a silo calls `check_announcement`, which derives the same value from its
own plan, model and outcome and refuses whatever differs. Only cohort, attempt, deadline and nonce are the
coordinator's to choose, and the cohort only within the plan's bounds.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final

import rfc8785

from feddrm.contract import labels
from feddrm.contract.errors import VerificationError
from feddrm.contract.messages import RoundOutcome
from feddrm.contract.plan import Plan, plan_hash
from feddrm.contract.schedule import STAGE_TRAIN
from secagg.session import Announcement

NO_PREVIOUS: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class Place:
    """What both sides know of a round without each other.

    Attributes:
        plan: hash of the signed plan body, as received.
        roster: hash of the roster body that the plan's version names.
        layout: fingerprint of the shared layout.
        words32, words64: entries of one masked vector (tags apart), which its stage fixes.
        round: numbered through all stages (feddrm.contract.schedule).
        model: hash of the job's state at the start of the round.
        previous: `outcome_hash` of the round before, `NO_PREVIOUS` in round 1.
        stage: of the round.
    """

    plan: bytes
    roster: bytes
    layout: bytes
    words32: int
    round: int
    model: bytes
    previous: bytes
    stage: int = STAGE_TRAIN
    words64: int = 0


def outcome_hash(outcome: RoundOutcome | None) -> bytes:
    """What the next announcement's `previous` holds: SHA-256 of the acknowledged or lost record's body.

    It does not depend on which of the silos' acks a certificate happens to carry: their bodies are equal
    (feddrm.contract.rounds.verify_outcome checks that before this is called).
    """
    if outcome is None:
        return NO_PREVIOUS
    if outcome.lost is not None:
        return hashlib.sha256(labels.ROUND_LOST + outcome.lost.body).digest()
    return hashlib.sha256(labels.ROUND_ACK + outcome.acks[0].body).digest()


def smallest_cohort(plan: Plan) -> int:
    """How many silos a session needs at least: the larger of threshold and minimum cohort."""
    return plan.smallest_cohort


def value_bound(plan: Plan) -> int:
    """Largest magnitude of one quantised entry of stage 1's update."""
    return math.ceil(math.ldexp(plan.secure_aggregation.clip, plan.secure_aggregation.fraction_bits))


def parameters(plan: Plan) -> bytes:
    """Hash of all that the plan fixes beyond the announcement's own fields (32 bytes).

    The rest alone is not a valid plan (keys are missing), so this never equals the hash of one.
    """
    return _parameters(_Same(plan))


class _Same:
    """A plan as the key of a cache: documents are frozen but not hashable. The cache holds the plan, so that its
    identity stays its own."""

    __slots__ = ("plan",)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __hash__(self) -> int:
        return id(self.plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.plan is self.plan


# Every announcement and every check of one asks for it, and a job has one plan.
@lru_cache(maxsize=4)
def _parameters(same: _Same) -> bytes:
    rest = same.plan.model_dump(
        mode="json",
        by_alias=True,
        include={
            "training",
            "routing_fit",
            "personal_head",
            "evaluation",
            "privacy",
            "secure_aggregation",
            "deadlines",
            "model",
        },
    )
    return plan_hash(rfc8785.dumps(rest))


def announcement_of(
    plan: Plan, place: Place, *, attempt: int, cohort: tuple[str, ...], deadline_ms: int, nonce: bytes
) -> Announcement:
    """The one announcement for these arguments.

    Args:
        plan: the verified plan, parsed.
        place: what the round is about.
        attempt: 1, 2, ...; a retry needs the abort certificate of the attempt before.
        cohort: silos in plan order.
        deadline_ms: when R1 closes, milliseconds since the epoch.
        nonce: 32 fresh random bytes.

    Raises:
        secagg.errors.UnsoundError: the combination is not sound.
    """
    sums = plan.secure_aggregation
    return Announcement(
        federation=plan.federation,
        plan=place.plan,
        stage=place.stage,
        round=place.round,
        attempt=attempt,
        cohort=cohort,
        roster=place.roster,
        model=place.model,
        layout=place.layout,
        words32=place.words32,
        words64=place.words64,
        value_bound=value_bound(plan) if place.words32 else 0,
        threshold=sums.threshold,
        minimum_cohort=sums.minimum_cohort,
        colluders=sums.colluders,
        parameters=parameters(plan),
        deadline_ms=deadline_ms,
        previous=place.previous,
        nonce=nonce,
    )


def check_announcement(announcement: Announcement, plan: Plan, place: Place, me: str) -> None:
    """Refuse an announcement that is not exactly what `plan` and `place` give.

    Not checked here, as they need the silo's memory and clock: attempt (rises; a retry needs its certificate) and
    deadline.

    Args:
        announcement: decoded after its signature was verified.
        me: the receiving silo's name.

    Raises:
        VerificationError: names the fields that differ.
    """
    order = {name: index for index, name in enumerate(plan.silos)}
    cohort = announcement.cohort
    if any(name not in order for name in cohort) or list(cohort) != sorted(set(cohort), key=order.__getitem__):
        raise VerificationError("The announced cohort is not a list of the plan's silos in the plan's order.")
    if me not in cohort:
        raise VerificationError("The announced cohort does not contain this silo.")
    if len(cohort) < smallest_cohort(plan):
        raise VerificationError(
            f"The announced cohort has {len(cohort)} silos; the plan demands at least {smallest_cohort(plan)}."
        )
    expected = announcement_of(
        plan,
        place,
        attempt=announcement.attempt,
        cohort=cohort,
        deadline_ms=announcement.deadline_ms,
        nonce=announcement.nonce,
    )
    different = [
        entry.name
        for entry in fields(Announcement)
        if getattr(announcement, entry.name) != getattr(expected, entry.name)
    ]
    if different:
        raise VerificationError(f"The announcement differs from the plan in {', '.join(different)}.")
