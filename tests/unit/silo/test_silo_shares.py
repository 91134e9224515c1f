"""What a silo adds to the sums of stages 2 and 4, computed from records, with its noise drawn and its bounds held."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from silo_harness import NAMES, Desk, plan_document
from silo_world import World
from test_stages_with_coordinator import EVALUATION, FIT

from feddrm.contract.charge import round_event
from feddrm.contract.plan import Plan
from feddrm.contract.rounds import Ack
from feddrm.contract.schedule import STAGE_EVALUATE, STAGE_ROUTING
from feddrm.features import Dataset
from feddrm.method.card import evaluate
from feddrm.method.layout import initial_personal, layout_of
from feddrm.method.progress import Parts, initial_state, sums_applied
from feddrm.method.update import model_hash
from privacy.events import DistributedDiscreteGaussian
from silo.effects import Contribute, Contributed, Tune, Tuned
from silo.shares import Shares, split

SILOS = 4
HASH = bytes(32)
CAPS = ("job_epsilon", "job_epsilon_alone", "life_epsilon", "life_epsilon_alone")


def records(place: int, patients: int = 60) -> Dataset:
    """Records around a value of the silo's own, two a patient; the target follows the value."""
    draw = np.random.default_rng(place)
    values = np.clip(draw.normal(-0.6 + 0.4 * place, 0.1, 2 * patients), -1, 1).astype(np.float32)
    features = np.stack([values, np.zeros_like(values)], axis=1)
    return Dataset(features, (values > 0).astype(np.int64), [str(i // 2).encode() for i in range(2 * patients)])


def shares_of(
    plan: Plan,
    place: int,
    data: Dataset,
    held: np.ndarray[Any, Any] | None = None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> Shares:
    training, out = split(data, np.zeros(len(data), np.bool_) if held is None else held)
    return Shares(plan, place, training, out, entropy)


def effect_of(plan: Plan, stage: int, plan_hash: bytes) -> Contribute:
    layout = layout_of(plan)
    state = initial_state(plan, layout, plan_hash)
    return Contribute(plan_hash, plan, stage, 1, state, initial_personal(layout, plan_hash))


def test_the_noise_of_a_contribution_is_the_plan_s() -> None:
    """The same records, again and again: what varies is the share of the noise, sigma D / sqrt(s) wide."""
    plan = Plan.model_validate(plan_document(routing_fit=FIT))
    event = round_event(plan, STAGE_ROUTING)
    assert isinstance(event, DistributedDiscreteGaussian)
    assert event.shares == plan.smallest_cohort - plan.secure_aggregation.colluders == 2
    assert math.sqrt(event.shares) * event.scale >= 8.0 * event.sensitivity
    shares = shares_of(plan, 0, records(0))
    effect = effect_of(plan, STAGE_ROUTING, HASH)
    drawn = np.stack([shares.contribute(effect) for _ in range(60)]).astype(float)
    assert drawn.shape == (60, 4 * 4)
    width = (drawn - drawn.mean(axis=0)).std()
    assert 0.9 * event.scale < width < 1.1 * event.scale
    local = Plan.model_validate(plan_document(routing_fit={**FIT, "noise": "local"}))
    alone = round_event(local, STAGE_ROUTING)
    assert alone is not None
    assert alone.noise_multiplier >= 8.0 == pytest.approx(alone.noise_multiplier, rel=1e-3)


def test_more_patients_than_the_plan_allows_are_cut_off_before_the_noise() -> None:
    plan = Plan.model_validate(plan_document(routing_fit={**FIT, "largest_silo": 1, "noise_multiplier": 0.3}))
    event = round_event(plan, STAGE_ROUTING)
    assert isinstance(event, DistributedDiscreteGaussian)
    words = shares_of(plan, 0, records(0)).contribute(effect_of(plan, STAGE_ROUTING, HASH))
    assert np.abs(words).max() <= event.sensitivity + 16 * (event.scale + 1)


def test_held_out_patients_are_counted_and_no_others() -> None:
    plan = Plan.model_validate(plan_document(evaluation={**EVALUATION, "noise_multiplier": 0.5}))
    data = records(1, patients=4000)
    held = np.array([int(patient) % 2 == 0 for patient in data.patients])
    words = shares_of(plan, 1, data, held).contribute(effect_of(plan, STAGE_EVALUATE, HASH))
    assert words[0] / (1 << 16) == pytest.approx(2000, abs=40)
    assert all(-(40 << 16) <= word <= words[0] + (40 << 16) for word in words[1:].tolist())


class Bench:
    """A silo's worker that really computes stages 2 and 4, and trains nothing."""

    def __init__(self, plan: Plan, place: int) -> None:
        data = records(place, patients=400)
        held = np.array([int(patient) % 4 == 0 for patient in data.patients])
        # The same noise in every run, so that the test of the figures may be as narrow as what is promised of them.
        self.shares = shares_of(plan, place, data, held, random.Random(place).randbytes)

    def contribute(self, effect: Contribute) -> Contributed:
        """Integers with noise."""
        return Contributed(effect.plan_hash, effect.stage, effect.round, self.shares.contribute(effect))

    def tune(self, effect: Tune, _stop: object) -> Tuned:
        """The same head."""
        return Tuned(effect.plan_hash, effect.personal)


@pytest.fixture
def fitted(make_desk: Callable[..., Desk]) -> World:
    """A job of eight sums and an evaluation, in which one silo's process dies in the middle of the fit."""
    fit = {**FIT, "sums": 8, "step_size": 16.0, "noise_multiplier": 2.0, "public_sizes": dict.fromkeys(NAMES, 100)}
    desk = make_desk(rounds=0, routing_fit=fit, evaluation={**EVALUATION, "noise_multiplier": 1.0})
    for place, house in enumerate(desk.houses.values()):
        house.worker = Bench(desk.trial.plan, place)  # type: ignore[assignment]
        house.policy = desk.trial.policy(**dict.fromkeys(CAPS, 1000.0))
    world = World(desk.trial, desk.houses, random.Random(5))
    died = []

    def die() -> bool:
        if not died and len(world.job.outcomes) == 3 and world.job.phase.__class__.__name__ == "Running":
            died.append(NAMES[0])
            world.crash(NAMES[0])
        return False

    world.run(until=die)
    assert died
    return world


def test_a_death_in_the_middle_of_the_fit_spoils_nothing(fitted: World) -> None:
    job, plan = fitted.job, fitted.trial.plan
    acks = [Ack.model_validate_json(outcome.acks[0].body) for outcome in job.outcomes if outcome.lost is None]
    assert len(acks) >= 8
    # Every sum has the noise of as many honest silos as the plan counts on: one in it may conspire.
    event = round_event(plan, STAGE_ROUTING)
    assert isinstance(event, DistributedDiscreteGaussian)
    assert all(ack.count - plan.secure_aggregation.colluders >= event.shares for ack in acks)
    name, last = fitted.trial.plan_hash, len(job.outcomes)
    states = {model_hash(np.asarray(house.state.model(name, last))) for house in fitted.houses.values()}
    assert states == {model_hash(job.model)}
    assert sums_applied(Parts.of(plan, job.layout, job.model)) == len(acks) - 1
    assert len(job.phase.signatures) >= plan.secure_aggregation.threshold


def test_the_published_figures_are_the_true_ones_but_for_the_stated_noise(fitted: World) -> None:
    """Within four of their standard deviations, whatever the fitted head is worth."""
    trial, job = fitted.trial, fitted.job
    counts = job.reached().evaluation
    assert counts is not None
    assert counts.silos == SILOS
    personal = initial_personal(job.layout, trial.plan_hash)
    effect = Contribute(trial.plan_hash, trial.plan, STAGE_EVALUATE, len(job.outcomes), np.asarray(job.model), personal)
    true = sum(house.worker.shares._evaluate(effect) for house in fitted.houses.values())  # type: ignore[attr-defined]
    figures = evaluate(trial.plan, counts)
    for figure, hits in zip((figures.own_correct, figures.routed_to_own, figures.both), true[1:], strict=True):
        assert figure.value is not None
        assert figure.std is not None
        assert 0 < figure.std < 0.02
        assert abs(figure.value - hits / true[0]) < 4 * figure.std
