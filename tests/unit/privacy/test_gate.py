from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, EVENT, NOW, ORIGIN, PLAN, ROUNDS, WHOLE, note_data

from privacy.accounting import epsilon
from privacy.commitments import commit_dataset
from privacy.errors import BudgetRefused, GateError, LedgerCorrupt, MalformedError
from privacy.events import PoissonSubsampledGaussian
from privacy.gate import AbortReason, Caps, Gate, Reservation
from privacy.leaves import Commit, Dataset, Plan, Release, Reserve
from privacy.ledger import Ledger

OTHER = b"q" * 32


def opened(gate: Gate) -> Gate:
    gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
    note_data(gate)
    return gate


def reserve(gate: Gate, number: int, plan: bytes = PLAN, stage: int = 1) -> Reservation:
    return gate.reserve(plan, stage, number, EVENT, model=bytes(32), now_ms=NOW)


def finish(gate: Gate, reservation: Reservation) -> None:
    gate.commit(reservation, bytes(32), now_ms=NOW)
    gate.release(reservation.plan, reservation.stage, reservation.round, sum=bytes(32), model=bytes(32), now_ms=NOW)


def lose(gate: Gate, number: int) -> None:
    reserve(gate, number)
    gate.abort(PLAN, 1, number, AbortReason.LOST, now_ms=NOW)


# Caps.


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


# Reservations.


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


# Durability.


def test_the_reservation_is_on_disk_when_reserve_returns(gate: Gate, ledger: Ledger, key: bytes) -> None:
    reservation = reserve(opened(gate), 1)
    outside = Ledger.read(ledger.path, ORIGIN, key)
    assert outside.leaves()[reservation.leaf].leaf == Reserve(PLAN, 1, 1, EVENT, bytes(32))


@pytest.mark.parametrize("stop", range(6))
def test_a_reopened_gate_knows_the_same(path: Path, signer: Ed25519PrivateKey, stop: int) -> None:
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        gate = Gate(ledger, CAPS)
        steps: list[Callable[[], object]] = [
            lambda: opened(gate),
            lambda: reserve(gate, 1),
            lambda: gate.commit(Reservation(3, PLAN, 1, 1), bytes(32), now_ms=NOW),
            lambda: gate.release(PLAN, 1, 1, sum=bytes(32), model=bytes(32), now_ms=NOW),
            lambda: reserve(gate, 2),
            lambda: gate.abort(PLAN, 1, 2, AbortReason.FAILED, now_ms=NOW),
        ]
        for step in steps[: stop + 1]:
            step()
        known = (gate.spent(PLAN), gate.spent_alone(PLAN), gate.spent_for_life(), gate.unresolved)
        places = [gate.reserved(PLAN, 1, n) for n in (1, 2)], [gate.committed(PLAN, 1, n) for n in (1, 2)]
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        again = Gate(ledger, CAPS)
        assert (again.spent(PLAN), again.spent_alone(PLAN), again.spent_for_life(), again.unresolved) == known
        assert ([again.reserved(PLAN, 1, n) for n in (1, 2)], [again.committed(PLAN, 1, n) for n in (1, 2)]) == places


def test_whatever_ends_a_round_it_stays_spent(gate: Gate) -> None:
    one = epsilon([EVENT], 1e-5)
    reservation = reserve(opened(gate), 1)
    assert gate.spent(PLAN) == one
    gate.commit(reservation, bytes(32), now_ms=NOW)
    assert gate.spent(PLAN) == one
    gate.abort(PLAN, 1, 1, AbortReason.DROPPED, now_ms=NOW)
    assert gate.spent(PLAN) == gate.spent_alone(PLAN) == one


def test_another_data_set_changes_no_spend(gate: Gate) -> None:
    lose(opened(gate), 1)
    before = gate.spent_for_life(), gate.spent(PLAN)
    first = note_data(gate, commitment=b"a" * 32)
    assert note_data(gate, commitment=b"b" * 32) == first + 1
    assert (gate.spent_for_life(), gate.spent(PLAN)) == before


def test_every_reading_leaves_a_leaf_whatever_was_read(ledger: Ledger, gate: Gate) -> None:
    """Were unchanged data to leave none, the size of the log, which peers see, would tell that it was unchanged."""
    for versions in ((b"a", b"a"), (b"a", b"b")):
        before = ledger.size
        for number, version in enumerate(versions):
            note_data(gate, commitment=commit_dataset(b"k" * 32, sha256(version).digest(), bytes([number]) * 32))
        assert ledger.size == before + 2


def test_no_round_is_charged_before_its_job_s_data_was_named(ledger: Ledger, gate: Gate) -> None:
    gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
    note_data(gate, OTHER)
    with pytest.raises(BudgetRefused, match="DATASET"):
        reserve(gate, 1)
    note_data(gate)
    reserve(gate, 1)


def test_changed_caps_count_at_the_very_next_call(gate: Gate) -> None:
    finish(gate, reserve(opened(gate), 1))
    for field in ("job_epsilon", "job_epsilon_alone", "job_delta", "life_epsilon", "life_epsilon_alone", "life_delta"):
        gate.set_caps(replace(CAPS, **{field: 0.0}))
        with pytest.raises(BudgetRefused, match="cap"):
            reserve(gate, 2)
        with pytest.raises(BudgetRefused, match="cap"):
            gate.open_job(OTHER, "job-2", 1e-5, WHOLE, now_ms=NOW)
    gate.set_caps(replace(CAPS, rounds_without_release=0))
    with pytest.raises(BudgetRefused, match="without a release"):
        reserve(gate, 2)
    gate.set_caps(CAPS)
    finish(gate, reserve(gate, 2))


# Idempotence and order.


def test_asking_again_writes_nothing(gate: Gate, ledger: Ledger) -> None:
    number = gate.open_job(PLAN, "job", 1e-5, [EVENT] * ROUNDS, now_ms=NOW)
    assert gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW) == number
    note_data(gate)
    reservation = reserve(gate, 1)
    commit = gate.commit(reservation, b"u" * 32, now_ms=NOW)
    assert gate.commit(reservation, b"u" * 32, now_ms=NOW) == commit == gate.committed(PLAN, 1, 1)
    release = gate.release(PLAN, 1, 1, sum=b"s" * 32, model=b"m" * 32, now_ms=NOW)
    assert gate.release(PLAN, 1, 1, sum=b"s" * 32, model=b"m" * 32, now_ms=NOW) == release
    assert [type(record.leaf) for record in ledger.leaves()[1:]] == [Plan, Dataset, Reserve, Commit, Release]
    lose(gate, 2)
    size = ledger.size
    gate.abort(PLAN, 1, 2, AbortReason.LOST, now_ms=NOW)
    assert gate.close_job(PLAN, now_ms=NOW) == gate.close_job(PLAN, now_ms=NOW) == size
    assert ledger.size == size + 1


def test_a_second_different_end_is_refused(gate: Gate) -> None:
    reservation = reserve(opened(gate), 1)
    gate.commit(reservation, b"u" * 32, now_ms=NOW)
    with pytest.raises(GateError):
        gate.commit(reservation, b"v" * 32, now_ms=NOW)
    gate.release(PLAN, 1, 1, sum=b"s" * 32, model=b"m" * 32, now_ms=NOW)
    with pytest.raises(GateError):
        gate.release(PLAN, 1, 1, sum=b"t" * 32, model=b"m" * 32, now_ms=NOW)
    with pytest.raises(GateError):
        gate.abort(PLAN, 1, 1, AbortReason.LOST, now_ms=NOW)
    lose(gate, 2)
    with pytest.raises(GateError):
        gate.release(PLAN, 1, 2, sum=b"s" * 32, model=b"m" * 32, now_ms=NOW)
    with pytest.raises(GateError):
        gate.commit(Reservation(7, PLAN, 1, 2), b"u" * 32, now_ms=NOW)


def test_out_of_order_calls_are_refused(gate: Gate) -> None:
    opened(gate)
    with pytest.raises(GateError):
        gate.release(PLAN, 1, 1, sum=bytes(32), model=bytes(32), now_ms=NOW)
    with pytest.raises(GateError):
        gate.abort(PLAN, 1, 1, AbortReason.LOST, now_ms=NOW)
    with pytest.raises(GateError):
        gate.commit(Reservation(3, PLAN, 1, 1), bytes(32), now_ms=NOW)
    with pytest.raises(GateError):
        gate.close_job(OTHER, now_ms=NOW)
    reservation = reserve(gate, 1)
    with pytest.raises(GateError):
        gate.release(PLAN, 1, 1, sum=bytes(32), model=bytes(32), now_ms=NOW)
    with pytest.raises(GateError):
        gate.commit(replace(reservation, leaf=1), bytes(32), now_ms=NOW)
    with pytest.raises(GateError):
        gate.close_job(PLAN, now_ms=NOW)


@pytest.mark.parametrize(
    ("name", "delta", "events"), [("other", 1e-5, WHOLE), ("job", 1e-6, WHOLE), ("job", 1e-5, (EVENT,))]
)
def test_one_plan_has_one_set_of_terms(
    gate: Gate, name: str, delta: float, events: tuple[PoissonSubsampledGaussian, ...]
) -> None:
    opened(gate)
    with pytest.raises(GateError):
        gate.open_job(PLAN, name, delta, events, now_ms=NOW)


def test_a_plan_without_rounds_costs_nothing_and_allows_nothing(gate: Gate) -> None:
    gate.open_job(PLAN, "job", 1e-5, (), now_ms=NOW)
    note_data(gate)
    assert gate.spent_for_life().epsilon == 0
    with pytest.raises(BudgetRefused, match="allocates"):
        reserve(gate, 1)


def test_leaves_that_contradict_one_another_stop_the_gate(ledger: Ledger) -> None:
    ledger.append(Commit(PLAN, 1, 1, 0, bytes(32)), now_ms=NOW)
    with pytest.raises(LedgerCorrupt):
        Gate(ledger, CAPS)


def test_unknown_jobs_have_spent_nothing(gate: Gate) -> None:
    assert gate.spent(OTHER).pld == gate.spent_alone(OTHER).pld == 0
    assert gate.reserved(OTHER, 1, 1) is None
    assert gate.committed(OTHER, 1, 1) is None
    assert gate.unresolved is None
