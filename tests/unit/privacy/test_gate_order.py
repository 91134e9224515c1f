"""The gate between calls: order, repetition, reopening, changed caps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from gate_cases import OTHER, finish, lose, opened, reserve
from privacy_cases import CAPS, EVENT, NOW, ORIGIN, PLAN, ROUNDS, WHOLE, note_data

from privacy.accounting import epsilon
from privacy.commitments import commit_dataset
from privacy.errors import BudgetRefused, GateError, LedgerCorrupt
from privacy.events import PoissonSubsampledGaussian
from privacy.gate import AbortReason, Gate, Reservation
from privacy.leaves import Commit, Dataset, Plan, Release, Reserve
from privacy.ledger import Ledger


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
