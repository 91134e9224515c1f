"""What a plan's numbers mean, for the person who is about to sign it (design section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from aggregator.cautions import cautions, line_mbit
from feddrm.contract.announce import smallest_cohort, value_bound
from feddrm.contract.errors import NotAuthorisedError
from feddrm.contract.plan import Plan
from feddrm.contract.roster import Roster
from feddrm.contract.schedule import (
    NAMES,
    STAGE_EVALUATE,
    STAGE_PERSONAL,
    STAGE_ROUTING,
    last_round,
    rounds_of,
)
from feddrm.contract.stages import DiscreteEvent, entry_bound
from feddrm.method.coarse import query_bits
from feddrm.method.layout import embedding_width, layout_of
from privacy.accounting import stated
from secagg.session import vector_size


@dataclass(frozen=True, slots=True)
class Meaning:
    """A plan in figures and sentences. `problems` stop it from running; `warnings` are for a person to weigh."""

    figures: dict[str, Any]
    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    problems: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For --format json."""
        return {**self.figures, "warnings": list(self.warnings), "problems": list(self.problems)}

    def text(self) -> str:
        """For people."""
        return "\n".join(
            (*self.lines, *(f"Warning: {w}" for w in self.warnings), *(f"Problem: {p}" for p in self.problems))
        )


def explain(plan: Plan, roster: Roster | None) -> Meaning:
    """Say what a plan means.

    Args:
        roster: checked against it when given.
    """
    from feddrm.contract.charge import charge

    cost = charge(plan)
    count, sums, training = len(plan.silos), plan.secure_aggregation, plan.training
    quorum = smallest_cohort(plan)
    absent = count - quorum
    size = layout_of(plan).shared_size
    used = count * (value_bound(plan) + 1)
    stages = stage_costs(plan)
    certificate = count - sums.threshold + sums.colluders + 1
    figures: dict[str, Any] = {
        "name": plan.name,
        "silos": list(plan.silos),
        "rounds": last_round(plan),
        "stages": [stage.document() for stage in stages],
        "epsilon": cost.epsilon,
        "epsilon_without_secure_aggregation": cost.epsilon_alone,
        "delta": cost.delta,
        "threshold": sums.threshold,
        "smallest_cohort": quorum,
        "absent_allowed": absent,
        "colluders": sums.colluders,
        "abort_certificate": certificate,
        "ring_bits": math.log2(used),
        "ring_bits_allowed": 30,
        "shared_parameters": size,
        "upload_bytes_per_round": vector_size(size, 0),
        "upload_line_mbit": line_mbit(plan),
        "query_bits": query_bits(plan),
        "second_opinion": plan.queries.second_opinion,
    }
    lines = (
        f"{plan.name}: {count} silos, {training.rounds} rounds of {training.local_steps} steps.",
        *(stage.line() for stage in stages if len(stages) > 1),
        f"A completed job costs each patient epsilon {stated(cost.epsilon)} at delta {cost.delta:g}, "
        "at every silo alike.",
        f"If secure aggregation were broken, a silo's own messages would still cost no more than epsilon "
        f"{stated(cost.epsilon_alone)}.",
        *_shares(plan),
        *_required(plan),
        *_consolidation(plan),
        *_shared_target(plan),
        *_own_targets(plan),
        f"A round needs {quorum} of {count} silos: {_absent(absent)}.",
        f"A sum stays secret from the coordinator together with {sums.colluders} dishonest "
        f"{'silo' if sums.colluders == 1 else 'silos'}; "
        f"a broken round is repeated when {certificate} silos sign that they opened nothing.",
        f"Sums fit the ring: {count} silos use {math.log2(used):.1f} of 30 bits; "
        f"entries are rounded to multiples of 2^-{sums.fraction_bits}.",
        f"The shared model has {size} parameters; a silo sends {vector_size(size, 0)} bytes a round.",
        f"A query shows the coordinator at most {query_bits(plan)} bits about the patient: "
        f"{embedding_width(plan)} units of {plan.queries.embedding_bits}.",
        *_second_opinion(plan),
    )
    return Meaning(
        figures,
        lines,
        cautions(plan, absent, cost.epsilon, cost.epsilon_alone),
        () if roster is None else _problems(plan, roster),
    )


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage of a plan: what it costs alone. Stages compose to less than the sum of these."""

    name: str
    rounds: int
    epsilon: float
    epsilon_alone: float
    ring_bits: float | None

    def document(self) -> dict[str, Any]:
        """For --format json."""
        return {
            "stage": self.name,
            "rounds": self.rounds,
            "epsilon": self.epsilon,
            "epsilon_without_secure_aggregation": self.epsilon_alone,
            "ring_bits": self.ring_bits,
        }

    def line(self) -> str:
        """For people."""
        rounds = "" if self.rounds == 1 else f", {self.rounds} rounds"
        if self.name == NAMES[STAGE_EVALUATE] and self.rounds > 1:
            rounds = f", should it be lost and tried again ({self.rounds} rounds)"
        alone = (
            "" if self.epsilon_alone == self.epsilon else f" (without secure aggregation {stated(self.epsilon_alone)})"
        )
        ring = "" if self.ring_bits is None else f"; a silo's entries use {self.ring_bits:.1f} of 40 bits"
        return f"  {self.name}{rounds}: by itself epsilon {stated(self.epsilon)}{alone}{ring}."


def stage_costs(plan: Plan) -> tuple[StageCost, ...]:
    """What each stage that runs costs by itself, in order."""
    from feddrm.contract.charge import charge, round_event, stage_events

    found = []
    for stage, _ in stage_events(plan):
        alone = charge(plan, stage)
        event, most = round_event(plan, stage), _largest_silo(plan, stage)
        ring = None if most is None or not isinstance(event, DiscreteEvent) else math.log2(entry_bound(event, most))
        rounds = 1 if stage == STAGE_PERSONAL else len(rounds_of(plan, stage))
        found.append(StageCost(NAMES[stage], rounds, alone.epsilon, alone.epsilon_alone, ring))
    return tuple(found)


def _largest_silo(plan: Plan, stage: int) -> int | None:
    if stage == STAGE_ROUTING and plan.routing_fit is not None:
        return plan.routing_fit.largest_silo
    if stage == STAGE_EVALUATE and plan.evaluation is not None:
        return plan.evaluation.largest_silo
    return None


def _shares(plan: Plan) -> tuple[str, ...]:
    sections = (plan.routing_fit, plan.evaluation)
    if not any(section is not None and section.noise == "shares" for section in sections):
        return ()
    return (
        f"Noise in shares counts on {plan.shares} honest silos in every sum: the smallest sum has "
        f"{plan.smallest_cohort}, of which {plan.secure_aggregation.colluders} may conspire.",
    )


def _required(plan: Plan) -> tuple[str, ...]:
    if plan.evaluation is None or not plan.evaluation.required:
        return ()
    often = "once" if plan.evaluation.attempts == 1 else "twice"
    return (f"Without the evaluation, which is tried {often} at most, there is no release (evaluation.required).",)


def _shared_target(plan: Plan) -> tuple[str, ...]:
    if not plan.shared_classes:
        return ()
    return (
        "The routing fit makes one target head for all silos, too, in the same sums: silos and coordinator hold it. It"
        f" has {plan.queries.shared_weight:g} of an answer to a querier and {plan.queries.home_weight:g} of one about a"
        " silo's own patient; the silo's own model has the rest.",
    )


def _consolidation(plan: Plan) -> tuple[str, ...]:
    ewc = plan.training.ewc
    if ewc is None:
        return ()
    if not plan.held:
        return ("Consolidation holds nothing: silos share no tensor besides the routing head.",)
    held = f"{len(plan.held)} shared tensors ({', '.join(sorted(plan.held))})"
    if ewc.anchor_round is None:
        return (f"Consolidation pulls {held} to an average of the last {ewc.memory} published models.",)
    return (
        f"Consolidation holds {held} where they stand after {ewc.anchor_round} published rounds, in the "
        f"{plan.training.rounds - ewc.anchor_round} after them; a lost round delays that.",
    )


def _second_opinion(plan: Plan) -> tuple[str, ...]:
    factor = plan.queries.second_opinion
    if factor == 1:
        return ()
    return (
        f"Where the second-best hospital's density ratio is more than {factor:g} of the best one's, and both answer the"
        " same question, a querier is told both names, in no order, and shows the patient to both.",
    )


def _own_targets(plan: Plan) -> tuple[str, ...]:
    return tuple(
        f"{silo} answers by classes of its own ({', '.join(target.classes)}; column {target.column}), if it allows it."
        for silo, target in (plan.own_targets or {}).items()
    )


def _absent(count: int) -> str:
    if count == 0:
        return "none may be absent, so one absent hospital stops the job until it is back"
    return f"{count} may be absent"


def _problems(plan: Plan, roster: Roster) -> tuple[str, ...]:
    found = []
    if plan.federation != roster.federation:
        found.append(f"federation is {plan.federation}, but the roster is of {roster.federation}.")
    if plan.roster_version != roster.version:
        found.append(f"roster_version is {plan.roster_version}, but the roster's version is {roster.version}.")
    for name in plan.silos:
        try:
            roster.find(name, "silo")
        except NotAuthorisedError as error:
            found.append(f"silos: {error.message}")
    return tuple(found)
