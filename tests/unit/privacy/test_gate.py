from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from gate_cases import OTHER, finish, lose, opened, reserve
from privacy_cases import CAPS, EVENT, NOW, PLAN, ROUNDS, WHOLE, note_data

from privacy.accounting import epsilon
from privacy.errors import BudgetRefused, MalformedError
from privacy.events import PoissonSubsampledGaussian
from privacy.gate import AbortReason, Caps, Gate
from privacy.leaves import Plan
from privacy.ledger import Ledger


def test_a_job_over_its_cap_is_refused_and_leaves_no_trace(ledger: Ledger) -> None:
    cost = epsilon(WHOLE, 1e-5).pld
    gate = Gate(ledger, replace(CAPS, job_epsilon=cost - 1e-9))
    with pytest.raises(BudgetRefused, match="epsilon of the job"):
        opened(gate)
    assert ledger.size == 1
    assert gate.spent_for_life().epsilon == 0
    with pytest.raises(BudgetRefused, match="no job"):
        reserve(gate, 1)


@pytest.mark.parametrize(
    ("field", "phrase"),
    [
        ("job_epsilon", "epsilon of the job would"),
        ("job_epsilon_alone", "job without secure aggregation"),
        ("job_delta", "delta of the job"),
        ("life_epsilon", "epsilon for life would"),
        ("life_epsilon_alone", "life without secure aggregation"),
        ("life_delta", "delta for life"),
    ],
)
def test_every_cap_refuses(ledger: Ledger, field: str, phrase: str) -> None:
    with pytest.raises(BudgetRefused, match=phrase):
        opened(Gate(ledger, Caps(**{**asdict(CAPS), field: 0.0})))
    assert ledger.size == 1


def test_a_cap_that_is_met_exactly_is_kept(ledger: Ledger, gate: Gate) -> None:
    opened(gate)
    claimed = ledger.leaves()[1].leaf
    assert isinstance(claimed, Plan)
    exact = replace(CAPS, job_epsilon=claimed.epsilon, life_epsilon=claimed.epsilon, life_delta=1e-5)
    tight = Gate(ledger, exact)
    for number in range(1, ROUNDS + 1):
        finish(tight, reserve(tight, number))


def test_jobs_add_up_for_life(ledger: Ledger) -> None:
    cost = epsilon(WHOLE, 1e-5).pld
    gate = Gate(ledger, replace(CAPS, life_epsilon=2.5 * cost))
    opened(gate)
    gate.open_job(OTHER, "job-2", 1e-5, WHOLE, now_ms=NOW)
    with pytest.raises(BudgetRefused, match="life"):
        gate.open_job(b"r" * 32, "job-3", 1e-5, WHOLE, now_ms=NOW)
    life = gate.spent_for_life()
    assert 2 * cost <= life.epsilon == life.epsilon_alone <= 2 * cost + 1e-5
    assert life.delta == 2e-5


def test_one_delta_for_life(ledger: Ledger) -> None:
    gate = Gate(ledger, replace(CAPS, life_delta=2.5e-5))
    opened(gate)
    gate.open_job(OTHER, "job-2", 1e-5, WHOLE, now_ms=NOW)
    with pytest.raises(BudgetRefused, match="delta"):
        gate.open_job(b"r" * 32, "job-3", 1e-5, WHOLE, now_ms=NOW)


def test_a_lowered_cap_stops_a_running_job(ledger: Ledger, gate: Gate) -> None:
    finish(gate, reserve(opened(gate), 1))
    lowered = Gate(ledger, replace(CAPS, job_epsilon=0.01))
    with pytest.raises(BudgetRefused, match="cap"):
        reserve(lowered, 2)
    assert lowered.spent(PLAN) == epsilon([EVENT], 1e-5)


def test_stopping_early_returns_nothing_unless_nothing_was_charged(gate: Gate) -> None:
    opened(gate)
    gate.open_job(OTHER, "job-2", 1e-5, WHOLE, now_ms=NOW)
    whole = gate.spent_for_life().epsilon
    finish(gate, reserve(gate, 1))
    gate.close_job(PLAN, now_ms=NOW)
    assert gate.spent_for_life().epsilon == whole
    gate.close_job(OTHER, now_ms=NOW)
    assert gate.spent_for_life().epsilon == pytest.approx(whole / 2)
    for plan in (PLAN, OTHER):
        with pytest.raises(BudgetRefused, match="open"):
            reserve(gate, 2, plan)
        with pytest.raises(BudgetRefused, match="ended"):
            gate.open_job(plan, "job" if plan == PLAN else "job-2", 1e-5, WHOLE, now_ms=NOW)


def test_the_round_after_the_last_is_refused(gate: Gate, play: Callable[..., None]) -> None:
    play(gate, range(1, ROUNDS + 1))
    assert gate.spent(PLAN) == epsilon(WHOLE, 1e-5)
    with pytest.raises(BudgetRefused, match="allocates"):
        reserve(gate, ROUNDS + 1)


@pytest.mark.parametrize(
    "event",
    [
        PoissonSubsampledGaussian(1.4, 0.04, 5),
        PoissonSubsampledGaussian(1.5, 0.05, 5),
        PoissonSubsampledGaussian(1.5, 0.04, 5 * ROUNDS + 1),
        PoissonSubsampledGaussian(1.5, 0.04, 10**6),
        PoissonSubsampledGaussian(2.0, 0.01, 1),
    ],
)
def test_an_event_that_the_plan_does_not_hold_is_refused(gate: Gate, event: PoissonSubsampledGaussian) -> None:
    opened(gate)
    with pytest.raises(BudgetRefused, match="allocates"):
        gate.reserve(PLAN, 1, 1, event, model=bytes(32), now_ms=NOW)


def test_no_round_is_charged_twice(gate: Gate) -> None:
    reservation = reserve(opened(gate), 1)
    with pytest.raises(BudgetRefused, match="already"):
        reserve(gate, 1)
    finish(gate, reservation)
    with pytest.raises(BudgetRefused, match="already"):
        reserve(gate, 1)


def test_rounds_rise(gate: Gate) -> None:
    finish(gate, reserve(opened(gate), 3))
    for number in (1, 2):
        with pytest.raises(BudgetRefused, match="later"):
            reserve(gate, number)
    finish(gate, reserve(gate, 4))


def test_one_unresolved_round_in_all_jobs(gate: Gate) -> None:
    opened(gate)
    gate.open_job(OTHER, "job-2", 1e-5, WHOLE, now_ms=NOW)
    note_data(gate, OTHER)
    reservation = reserve(gate, 1)
    for plan, number in ((PLAN, 2), (OTHER, 1)):
        with pytest.raises(BudgetRefused, match="resolved"):
            reserve(gate, number, plan)
    gate.commit(reservation, bytes(32), now_ms=NOW)
    with pytest.raises(BudgetRefused, match="resolved"):
        reserve(gate, 2)
    gate.abort(PLAN, 1, 1, AbortReason.LOST, now_ms=NOW)
    assert gate.unresolved is None
    reserve(gate, 1, OTHER)


def test_announce_and_stop_burns_a_limited_budget(gate: Gate) -> None:
    opened(gate)
    gate_caps = CAPS.rounds_without_release
    for number in range(1, gate_caps + 1):
        lose(gate, number)
    with pytest.raises(BudgetRefused, match="without a release"):
        reserve(gate, gate_caps + 1)


def test_a_release_in_between_does_not_reset_the_limit(ledger: Ledger) -> None:
    gate = Gate(ledger, replace(CAPS, rounds_without_release=2))
    opened(gate)
    lose(gate, 1)
    finish(gate, reserve(gate, 2))
    lose(gate, 3)
    with pytest.raises(BudgetRefused, match="without a release"):
        reserve(gate, 4)


def test_no_release_is_ever_owed_when_the_policy_says_zero(ledger: Ledger) -> None:
    gate = opened(Gate(ledger, replace(CAPS, rounds_without_release=0)))
    with pytest.raises(BudgetRefused, match="without a release"):
        reserve(gate, 1)


def test_rounds_of_a_plan_nobody_accepted_are_refused(gate: Gate) -> None:
    with pytest.raises(BudgetRefused, match="no job"):
        reserve(gate, 1)
    opened(gate)
    with pytest.raises(BudgetRefused, match="no job"):
        reserve(gate, 1, OTHER)


@pytest.mark.parametrize(("stage", "number"), [(0, 1), (1, 0), (0, 0), (1, -1)])
def test_places_count_from_one(gate: Gate, stage: int, number: int) -> None:
    opened(gate)
    with pytest.raises(MalformedError):
        reserve(gate, number, stage=stage)
    assert gate.unresolved is None
