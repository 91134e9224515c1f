"""What one completed job costs each patient: the same for every silo, whatever its size (design section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from feddrm.contract.plan import Plan
from feddrm.contract.schedule import STAGE_EVALUATE, STAGE_PERSONAL, STAGE_ROUTING, STAGE_TRAIN, rounds_of
from privacy.accounting import claim, epsilon, epsilon_alone
from privacy.events import Event, PoissonSubsampledGaussian, repeated

_STAGES = (STAGE_TRAIN, STAGE_ROUTING, STAGE_PERSONAL, STAGE_EVALUATE)


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge of a plan, or of some of its stages.

    Attributes:
        events: all of them, in order, one a stage.
        delta: at which both figures hold.
        epsilon: with secure aggregation, by privacy loss distributions, rounded up.
        epsilon_alone: if this silo's own vectors were seen unmasked.
    """

    events: tuple[Event, ...]
    delta: float
    epsilon: float
    epsilon_alone: float


def round_event(plan: Plan, stage: int) -> Event | None:
    """What each round of a stage reserves; None where the stage does not run. Costs no accounting."""
    training, personal = plan.training, plan.personal_head
    if stage == STAGE_TRAIN and training.rounds:
        return PoissonSubsampledGaussian(training.noise_multiplier, training.sampling_rate, training.local_steps)
    if stage == STAGE_ROUTING and plan.routing_fit is not None:
        return plan.routing_fit.event(plan.fit_entries, plan.shares)
    if stage == STAGE_PERSONAL and personal is not None:
        return PoissonSubsampledGaussian(personal.noise_multiplier, personal.sampling_rate, personal.steps)
    if stage == STAGE_EVALUATE and plan.evaluation is not None:
        return plan.evaluation.event(plan.shares)
    return None


def stage_events(plan: Plan) -> Iterator[tuple[int, Event]]:
    """(stage, all of its rounds as one event) for each stage that runs, in order."""
    for stage in _STAGES:
        event = round_event(plan, stage)
        if event is not None:
            yield stage, repeated(event, len(rounds_of(plan, stage)))


def charge(plan: Plan, stage: int | None = None) -> Charge:
    """The charge of a plan, or of one of its stages alone.

    The whole is less than the sum of its stages: their events are composed, not their epsilons.
    """
    events = tuple(event for number, event in stage_events(plan) if stage in (None, number))
    delta = plan.privacy.delta
    return Charge(
        events=events,
        delta=delta,
        epsilon=claim(epsilon(events, delta).pld),
        epsilon_alone=claim(epsilon_alone(events, delta).pld),
    )
