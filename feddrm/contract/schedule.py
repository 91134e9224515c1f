"""The rounds of a job, in order: what each one does (design 5).

Rounds are numbered through all stages, so that one number says where a job is, everywhere: training takes 1 to R, the
routing fit the next ones, the evaluation the last, of which there may be a spare one for the case that the first is
lost. Stage 3 (personal heads) has no round, as nothing of it travels; in
a silo's ledger it has the number of the round that comes next, or would.
"""

from __future__ import annotations

from typing import Final

from feddrm.contract.plan import Plan

STAGE_TRAIN: Final = 1
STAGE_ROUTING: Final = 2
STAGE_PERSONAL: Final = 3
STAGE_EVALUATE: Final = 4

NAMES: Final = {
    STAGE_TRAIN: "training",
    STAGE_ROUTING: "routing fit",
    STAGE_PERSONAL: "personal head",
    STAGE_EVALUATE: "evaluation",
}


def rounds_of(plan: Plan, stage: int) -> range:
    """The rounds of a stage; empty where the stage does not run. Of stage 3 the number that its leaves carry."""
    train = plan.training.rounds
    fitted = train + (plan.routing_fit.sums if plan.routing_fit is not None else 0)
    match stage:
        case 1:
            return range(1, train + 1)
        case 2:
            return range(train + 1, fitted + 1)
        case 3:
            return range(fitted + 1, fitted + 1 + (plan.personal_head is not None))
        case 4:
            return range(fitted + 1, fitted + 1 + (plan.evaluation.attempts if plan.evaluation is not None else 0))
        case _:
            return range(0)


def place_of_tuning(plan: Plan) -> int:
    """The number under which stage 3 stands in ledgers: that of the round which comes next, or would."""
    return rounds_of(plan, STAGE_EVALUATE).start


def last_round(plan: Plan) -> int:
    """How many rounds a job has at most."""
    return rounds_of(plan, STAGE_EVALUATE).stop - 1


def finished(plan: Plan, number: int, *, evaluated: bool) -> bool:
    """Whether a job needs no further round after round `number`. `evaluated`: its evaluation was published."""
    return evaluated or number >= last_round(plan)


def rounds_shown(plan: Plan, number: int, *, evaluated: bool) -> int:
    """How many rounds a job has if no evaluation is lost from now on. Arguments as for `finished`."""
    if finished(plan, number, evaluated=evaluated):
        return number
    first = rounds_of(plan, STAGE_EVALUATE)
    return min(first.start, first.stop - 1) if number < first.start else last_round(plan)


def stage_of(plan: Plan, number: int) -> int:
    """The stage of a round.

    Raises:
        ValueError: the plan has no such round.
    """
    for stage in (STAGE_TRAIN, STAGE_ROUTING, STAGE_EVALUATE):
        if number in rounds_of(plan, stage):
            return stage
    raise ValueError(f"the plan has no round {number}")


def describe(plan: Plan, number: int) -> str:
    """A round in words, such as "round 24 (routing fit, 4 of 50)"; of a plan that only trains, its number."""
    if last_round(plan) == plan.training.rounds:
        return f"round {number}"
    stage = stage_of(plan, number)
    within = rounds_of(plan, stage)
    if stage == STAGE_EVALUATE:
        place = ", tried again" if number > within.start else ""
    else:
        place = f", {number - within.start + 1} of {len(within)}" if len(within) > 1 else ""
    return f"round {number} ({NAMES[stage]}{place})"
