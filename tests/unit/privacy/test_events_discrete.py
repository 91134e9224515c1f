"""Events of discrete noise: what they hold, how they are written down, and how their charge moves."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_cases import exact_gaussian

from privacy.accounting import DISCRETISATION, OVER_EVERY_CAP, PLD_LIMIT, claim, epsilon, epsilon_alone
from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import MalformedError
from privacy.events import (
    DistributedDiscreteGaussian,
    Event,
    LocalDiscreteGaussian,
    PoissonSubsampledGaussian,
    canonical,
    covers,
    event_from_json,
    repeated,
)

TRAIN = PoissonSubsampledGaussian(1.5, 0.04, 50)
FIT = DistributedDiscreteGaussian.calibrated(20.0, sensitivity=92_700, shares=4, dimension=330, steps=50)
HEAD = PoissonSubsampledGaussian(2.0, 0.05, 100)
COUNTS = LocalDiscreteGaussian.calibrated(6.0, sensitivity=131_073, dimension=4)
ALL: tuple[Event, ...] = (TRAIN, FIT, HEAD, COUNTS)


@st.composite
def distributed(draw: st.DrawFn) -> DistributedDiscreteGaussian:
    return DistributedDiscreteGaussian.calibrated(
        draw(st.floats(5, 100)),
        sensitivity=draw(st.integers(100, 2**26)),
        shares=draw(st.integers(1, 9)),
        dimension=draw(st.integers(1, 10**6)),
        steps=draw(st.integers(1, 20)),
    )


# Facts.


@given(st.floats(0.5, 100), st.integers(400, 2**30), st.integers(1, 100))
def test_the_scale_is_the_least_that_suffices(multiplier: float, sensitivity: int, count: int) -> None:
    event = DistributedDiscreteGaussian.calibrated(multiplier, sensitivity=sensitivity, shares=count, dimension=1)
    wanted = (Fraction(multiplier) * sensitivity) ** 2
    assert count * event.scale**2 >= wanted > count * (event.scale - 1) ** 2
    assert event.noise_multiplier == pytest.approx(multiplier, rel=0.2)
    local = LocalDiscreteGaussian.calibrated(multiplier, sensitivity=sensitivity, dimension=1)
    assert local.scale >= Fraction(multiplier) * sensitivity > local.scale - 1


@pytest.mark.parametrize("event", ALL)
def test_events_survive_the_ledgers_text(event: Event) -> None:
    assert event_from_json(parse_canonical(canonical_json(event.to_json()))) == event
    assert event_from_json(parse_canonical(canonical_json(event.alone().to_json()))) == event.alone()


@pytest.mark.parametrize("event", [FIT, COUNTS])
def test_malformed_discrete_events_are_refused(event: Event) -> None:
    good = event.to_json()
    bad: list[dict[str, Any]] = [{key: value for key, value in good.items() if key != name} for name in good]
    for name in good:
        bad += [{**good, name: value} for value in (None, "7", 0, -1, 2**53, 1.5, True, [7], math.nan)]
    bad.append({**good, "noise_multiplier": 1.0})
    bad.append({**good, "type": "poisson-subsampled-gaussian"})
    for value in bad:
        with pytest.raises(MalformedError):
            event_from_json(value)


@pytest.mark.parametrize(
    "arguments",
    [
        (15, 10, 1, 1, 1),
        (2**40 + 1, 2**40, 1, 1, 1),
        (100, 0, 1, 1, 1),
        (2**40, 2**40 + 1, 1, 1, 1),
        (100, 100, 0, 1, 1),
        (100, 100, 101, 1, 1),
        (100, 100, 1, 0, 1),
        (100, 100, 1, 2**31 + 1, 1),
        (100, 100, 1, 1, 0),
        (100, 100, 1, 1, 10**6 + 1),
        (100, 334, 1, 1, 1),
        (100, 667, 4, 1, 1),
        (1025, 1, 1, 1, 1),
        (100.0, 100, 1, 1, 1),
        (100, 100, True, 1, 1),
    ],
)
def test_discrete_events_out_of_range_are_refused(arguments: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        DistributedDiscreteGaussian(*arguments)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan, math.inf, 1025.0])
def test_no_event_has_a_senseless_noise_multiplier(multiplier: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        LocalDiscreteGaussian.calibrated(multiplier, sensitivity=1000, dimension=1)


def test_a_scale_too_coarse_for_the_proof_is_refused() -> None:
    with pytest.raises(ValueError, match="scale"):
        DistributedDiscreteGaussian.calibrated(1.0, sensitivity=2, shares=1, dimension=4)


@given(distributed())
def test_alone_is_always_an_event(event: DistributedDiscreteGaussian) -> None:
    assert event.alone() == LocalDiscreteGaussian(event.scale, event.sensitivity, event.dimension, event.steps)


def test_every_share_may_be_seen_alone() -> None:
    """At the smallest noise multiplier and the most shares, too: `alone` must not raise in a hospital's gate."""
    event = DistributedDiscreteGaussian.calibrated(0.3, sensitivity=10**6, shares=100, dimension=1)
    assert event.alone().noise_multiplier == pytest.approx(0.03)


def test_steps_are_summed_per_kind_and_kinds_are_kept_apart() -> None:
    one = DistributedDiscreteGaussian(1000, 100, 3, 10, 1)
    others = (
        DistributedDiscreteGaussian(1001, 100, 3, 10, 1),
        DistributedDiscreteGaussian(1000, 101, 3, 10, 1),
        DistributedDiscreteGaussian(1000, 100, 2, 10, 1),
        DistributedDiscreteGaussian(1000, 100, 3, 11, 1),
        one.alone(),
        PoissonSubsampledGaussian(10.0, 1.0, 1),
    )
    events = canonical([one, *others, *others, one, one])
    assert len(events) == 7
    assert repeated(one, 3) in events
    assert all(repeated(other, 2) in events for other in others)
    assert canonical(reversed(events)) == events
    assert covers(events, [one] * 3)
    assert not covers(events, [one] * 4)
    for other in others:
        assert not covers([one], [other])
        assert not covers([other], [one])


# What they cost.


@settings(max_examples=10)
@given(distributed(), st.sampled_from([1e-8, 1e-6, 1e-4]))
def test_never_below_the_continuous_gaussian_and_hardly_above(event: DistributedDiscreteGaussian, delta: float) -> None:
    for release, figure in ((event, epsilon([event], delta)), (event.alone(), epsilon_alone([event], delta))):
        exact = exact_gaussian(math.sqrt(event.steps) / release.noise_multiplier, delta)
        assert figure.pld >= exact
        assert figure.rdp >= exact
        if figure.rdp < 30:
            # A scale of 16, the least, gives 1.6 % of the variance away; resolving delta 1e-8 costs another part.
            assert figure.pld <= exact * (1 + 3 / release.scale**2) + 0.02 * exact * (release.scale < 50) + 1e-3


@settings(max_examples=4)
@given(distributed(), st.floats(1.05, 2), st.sampled_from([1e-8, 1e-5]))
def test_monotone_in_every_parameter_of_a_discrete_event(
    event: DistributedDiscreteGaussian, more: float, delta: float
) -> None:
    def up(name: str, most: int) -> DistributedDiscreteGaussian | None:
        fields: dict[str, Any] = {**event.to_json(), name: min(math.ceil(event.to_json()[name] * more), most)}  # type: ignore[operator]
        try:
            changed = event_from_json(fields)
        except MalformedError:
            return None
        assert isinstance(changed, DistributedDiscreteGaussian)
        return changed

    base, base_alone = epsilon([event], delta).pld, epsilon_alone([event], delta).pld
    for name, most, alone_too in (("scale", 2**40, True), ("shares", 100, False)):
        if better := up(name, most):
            assert epsilon([better], delta).pld <= base + DISCRETISATION
            assert epsilon_alone([better], delta).pld <= base_alone + DISCRETISATION * alone_too
    for name, most in (("sensitivity", 2**40), ("dimension", 2**31), ("steps", 10**6)):
        if worse := up(name, most):
            assert epsilon([worse], delta).pld >= base - DISCRETISATION
            assert epsilon_alone([worse], delta).pld >= base_alone - DISCRETISATION
    if delta > 1e-8:
        assert epsilon([event], delta / 1.5).pld >= base - DISCRETISATION


@settings(max_examples=5)
@given(st.lists(distributed(), min_size=1, max_size=3), st.booleans())
def test_alone_is_never_cheaper(events: list[DistributedDiscreteGaussian], trained: bool) -> None:
    whole: list[Event] = [*events, TRAIN] if trained else [*events]
    together, alone = epsilon(whole, 1e-6), epsilon_alone(whole, 1e-6)
    assert alone.pld >= together.pld
    assert alone.rdp >= together.rdp


def test_one_share_is_what_a_silo_adds_alone() -> None:
    one = DistributedDiscreteGaussian(1000, 500, 1, 10, 5)
    assert epsilon([one], 1e-6) == epsilon_alone([one], 1e-6) == epsilon([one.alone()], 1e-6)


def test_all_stages_compose_into_less_than_their_sum() -> None:
    whole = epsilon(ALL, 1e-6)
    assert whole == epsilon(ALL[::-1], 1e-6)
    parts = [epsilon([event], 1e-6 / len(ALL)).pld for event in ALL]
    assert max(epsilon([event], 1e-6).pld for event in ALL) < whole.pld < sum(parts)
    assert whole.pld < whole.rdp < whole.pld * 1.25
    assert epsilon_alone(ALL, 1e-6).pld > whole.pld


def test_gaussians_of_all_kinds_are_one_gaussian() -> None:
    events = [
        PoissonSubsampledGaussian(5.0, 1.0, 4),
        DistributedDiscreteGaussian.calibrated(7.0, sensitivity=2**20, shares=9, dimension=10, steps=3),
        LocalDiscreteGaussian.calibrated(3.0, sensitivity=2**20, dimension=2),
    ]
    exact = exact_gaussian(math.sqrt(sum(event.steps / event.noise_multiplier**2 for event in events)), 1e-5)
    assert exact <= epsilon(events, 1e-5).pld <= exact + 1e-3


@pytest.mark.parametrize(
    ("multiplier", "steps", "pld", "rdp"), [(20.0, 50, 1.356, 1.478), (40.0, 200, 1.356, 1.478), (6.0, 1, 0.594, 0.652)]
)
def test_known_answers_of_discrete_noise(multiplier: float, steps: int, pld: float, rdp: float) -> None:
    event = DistributedDiscreteGaussian.calibrated(multiplier, sensitivity=92_700, shares=4, dimension=330, steps=steps)
    result = epsilon([event], 1e-5)
    assert (round(result.pld, 3), round(result.rdp, 3)) == (pld, rdp)


def test_what_the_sampler_is_off_is_charged() -> None:
    """exp(epsilon) times its distance must stay small against delta: else there is no bound, and a finite figure that
    every cap refuses says so."""
    fine = DistributedDiscreteGaussian.calibrated(4.0, sensitivity=10**6, shares=4, dimension=10**6, steps=20)
    assert epsilon([fine], 1e-6).pld < epsilon_alone([fine], 1e-6).pld < 20
    wild = DistributedDiscreteGaussian.calibrated(4.0, sensitivity=10**6, shares=100, dimension=10**6, steps=20)
    beyond = epsilon_alone([wild], 1e-6)
    assert beyond.pld == beyond.rdp == claim(beyond.pld) == OVER_EVERY_CAP
    continuous = PoissonSubsampledGaussian(0.3, 1.0, 1000)
    assert PLD_LIMIT < epsilon([continuous], 1e-6).pld < OVER_EVERY_CAP
    huge = LocalDiscreteGaussian(2**40, 2**36, 2**31, 10**6)
    assert epsilon([huge], 1e-8).pld == OVER_EVERY_CAP


def test_the_nearer_the_sampler_to_what_counts_the_dearer() -> None:
    """exp(epsilon) t comes near to a tenth, then a third of delta, then past half of it."""
    one, some, many, more = (
        epsilon([LocalDiscreteGaussian.calibrated(0.2, sensitivity=10**6, dimension=dimension)], 1e-6)
        for dimension in (1, 2**21, 2**23, 2**24)
    )
    assert one.pld + 0.05 < some.pld < many.pld - 0.1
    assert one.rdp + 0.05 < some.rdp < many.rdp - 0.1
    assert more.pld == OVER_EVERY_CAP
