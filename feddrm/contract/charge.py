"""What one completed job costs each patient: the same for every silo, whatever its size (design section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from feddrm.contract.plan import Plan
from privacy.accounting import claim, epsilon, epsilon_alone
from privacy.events import Event, PoissonSubsampledGaussian


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge of a plan.

    Attributes:
        round_event: what each round of stage 1 reserves; None when the plan has no rounds.
        events: of the whole job, in order.
        delta: at which both figures hold.
        epsilon: with secure aggregation, by privacy loss distributions, rounded up.
        epsilon_alone: if this silo's own vectors were seen unmasked.
    """

    round_event: Event | None
    events: tuple[Event, ...]
    delta: float
    epsilon: float
    epsilon_alone: float


def round_event(plan: Plan) -> Event | None:
    """What each round of stage 1 reserves; None when the plan has no rounds. Costs no accounting."""
    training = plan.training
    if not training.rounds:
        return None
    return PoissonSubsampledGaussian(training.noise_multiplier, training.sampling_rate, training.local_steps)


def charge(plan: Plan) -> Charge:
    """The charge of `plan`, from its training section alone."""
    event = round_event(plan)
    events = (event,) * plan.training.rounds if event else ()
    delta = plan.privacy.delta
    return Charge(
        round_event=event,
        events=events,
        delta=delta,
        epsilon=claim(epsilon(events, delta).pld),
        epsilon_alone=claim(epsilon_alone(events, delta).pld),
    )
