"""A job of all four stages, through gate and audit: rounds counted on, one round that is kept, one chain of models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, NOW, ORIGIN, PLAN, note_data

from privacy import accounting
from privacy.accounting import claim, epsilon, epsilon_alone
from privacy.checks import StageTerms
from privacy.errors import BudgetRefused, GateError, MalformedError
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian, PoissonSubsampledGaussian
from privacy.gate import AbortReason, Caps, Gate, Reservation
from privacy.history import Published
from privacy.leaves import Abort, Commit, Dataset, Keep, Key, Leaf, Plan, Record, Release, Reserve
from privacy.ledger import Ledger
from privacy.merkle import Tree
from privacy.note import sign_head
from privacy.summary import summarise
from privacy.verify import Check, PlanTerms, verify_log

SIGNER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
KEY = SIGNER.public_key().public_bytes_raw()
TIME = "2027-01-15T08:00:00Z"

TRAIN = PoissonSubsampledGaussian(1.5, 0.04, 5)
FIT = DistributedDiscreteGaussian.calibrated(20.0, sensitivity=92_700, shares=4, dimension=330)
HEAD = PoissonSubsampledGaussian(2.0, 0.05, 20)
COUNTS = LocalDiscreteGaussian.calibrated(6.0, sensitivity=131_073, dimension=4)
MODELS = [bytes([number]) * 32 for number in range(8)]
TERMS = PlanTerms(
    name="job",
    delta=1e-5,
    stages={
        1: StageTerms(TRAIN, 1, 2),
        2: StageTerms(FIT, 3, 2),
        3: StageTerms(HEAD, 5, 1),
        4: StageTerms(COUNTS, 5, 1),
    },
    patient="id",
    schema=bytes(32),
    initial=MODELS[0],
)
WHOLE = TERMS.events()
WIDE = replace(CAPS, job_epsilon_alone=50.0, life_epsilon_alone=50.0)
EVENTS = {stage: terms.event for stage, terms in TERMS.stages.items()}
PLACES = [(1, 1), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5)]


def play(gate: Gate, places: list[tuple[int, int]]) -> None:
    for stage, number in places:
        reservation = gate.reserve(PLAN, stage, number, EVENTS[stage], model=MODELS[number - 1], now_ms=NOW)
        gate.commit(reservation, bytes(32), now_ms=NOW)
        if stage == 3:
            gate.keep(PLAN, stage, number, now_ms=NOW)
        else:
            gate.release(PLAN, stage, number, sum=bytes(32), model=MODELS[number], now_ms=NOW)


@pytest.fixture
def gate(ledger: Ledger) -> Gate:
    gate = Gate(ledger, WIDE)
    gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
    note_data(gate)
    return gate


def checked(leaves: list[Leaf] | tuple[bytes, ...], **changes: object) -> list[Check]:
    bodies = tuple(leaf if isinstance(leaf, bytes) else Record(TIME, leaf).encode() for leaf in leaves)
    head = sign_head(ORIGIN, len(bodies), Tree(bodies).root(), SIGNER)
    arguments: dict[str, object] = {"plans": {PLAN: TERMS}, "witnessed": {}, "origin": ORIGIN, "key": KEY, **changes}
    return list(verify_log(leaves=bodies, head=head, **arguments))  # type: ignore[arg-type]


def failed(checks: list[Check]) -> list[tuple[str, int | None]]:
    return [(check.name, check.leaf) for check in checks if not check.passed]


def log(*rounds: Leaf, claimed: tuple[float, float] | None = None) -> list[Leaf]:
    """KEY, DATASET, PLAN, and `rounds`, the first of which is leaf 3."""
    cost = claimed or (claim(epsilon(WHOLE, 1e-5).pld), claim(epsilon_alone(WHOLE, 1e-5).pld))
    return [
        Key(ORIGIN, KEY),
        Dataset(PLAN, bytes(32), bytes(32), "id", 1000),
        Plan(PLAN, "job", 1e-5, *cost, WHOLE, WIDE, "0.1.0"),
        *rounds,
    ]


def rounds(places: list[tuple[int, int]]) -> list[Leaf]:
    leaves: list[Leaf] = []
    for stage, number in places:
        leaves += [
            Reserve(PLAN, stage, number, EVENTS[stage], MODELS[number - 1]),
            Commit(PLAN, stage, number, 3 + len(leaves), bytes(32)),
            Keep(PLAN, 3, number) if stage == 3 else Release(PLAN, stage, number, bytes(32), MODELS[number]),
        ]
    return leaves


# The gate.


def test_a_job_of_all_stages_is_charged_as_one(gate: Gate, ledger: Ledger) -> None:
    life = gate.spent_for_life()
    assert life.epsilon_alone > life.epsilon >= epsilon(WHOLE, 1e-5).pld
    play(gate, PLACES)
    assert gate.spent(PLAN) == epsilon(WHOLE, 1e-5)
    assert gate.spent_alone(PLAN) == epsilon_alone(WHOLE, 1e-5)
    assert gate.spent_for_life() == life
    assert not failed(checked(ledger.bodies()))
    jobs, _ = summarise(record.leaf for record in ledger.leaves())
    assert (jobs[0].rounds_charged, jobs[0].rounds_released, jobs[0].rounds_kept) == (6, 5, 1)


@pytest.mark.parametrize("field", ["job_epsilon", "job_epsilon_alone", "life_epsilon", "life_epsilon_alone"])
def test_each_cap_holds_by_itself_where_shares_make_the_figures_differ(ledger: Ledger, field: str) -> None:
    """A hospital may cap what is left without secure aggregation lower, or not at all; neither stands for the other."""
    figure = claim((epsilon_alone if field.endswith("alone") else epsilon)(WHOLE, 1e-5).pld)
    wide = Caps(100.0, 100.0, 1e-5, 100.0, 100.0, 1e-4, 3)
    with pytest.raises(BudgetRefused, match="cap"):
        Gate(ledger, replace(wide, **{field: figure - 1e-5})).open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
    assert ledger.size == 1
    Gate(ledger, replace(wide, **{field: figure})).open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)


def test_one_more_sum_or_another_stages_event_is_refused(gate: Gate) -> None:
    play(gate, PLACES[:4])
    for event in (FIT, TRAIN, FIT.alone(), replace(COUNTS, dimension=5), replace(HEAD, steps=21)):
        with pytest.raises(BudgetRefused, match="allocates"):
            gate.reserve(PLAN, 4, 5, event, model=MODELS[4], now_ms=NOW)


def test_stages_rise(gate: Gate) -> None:
    play(gate, [(1, 1), (2, 3)])
    for stage, number in ((1, 2), (1, 4), (2, 2)):
        with pytest.raises(BudgetRefused, match="later"):
            gate.reserve(PLAN, stage, number, EVENTS[stage], model=MODELS[0], now_ms=NOW)
    play(gate, [(4, 5)])
    with pytest.raises(BudgetRefused, match="later"):
        gate.reserve(PLAN, 3, 5, HEAD, model=MODELS[4], now_ms=NOW)


def test_a_kept_round_is_no_round_without_a_release(ledger: Ledger) -> None:
    gate = Gate(ledger, replace(WIDE, rounds_without_release=1))
    gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
    note_data(gate)
    play(gate, PLACES[4:5])
    assert gate.unresolved is None
    play(gate, PLACES[5:])
    assert gate.close_job(PLAN, now_ms=NOW)


def test_a_personal_head_that_crashed_is_spent_and_counts(ledger: Ledger) -> None:
    gate = Gate(ledger, replace(WIDE, rounds_without_release=1))
    gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
    note_data(gate)
    gate.reserve(PLAN, 3, 5, HEAD, model=MODELS[4], now_ms=NOW)
    with pytest.raises(BudgetRefused, match="resolved"):
        play(gate, PLACES[5:])
    gate.abort(PLAN, 3, 5, AbortReason.CRASHED, now_ms=NOW)
    assert gate.spent(PLAN) == epsilon([HEAD], 1e-5)
    with pytest.raises(BudgetRefused, match="already"):
        gate.reserve(PLAN, 3, 5, HEAD, model=MODELS[4], now_ms=NOW)
    with pytest.raises(BudgetRefused, match="without a release"):
        play(gate, PLACES[5:])


def test_only_the_personal_stage_is_kept_and_it_is_never_released(gate: Gate) -> None:
    """Else a coordinator that never publishes could have rounds charged without end, or a hospital write them off."""
    reservation = gate.reserve(PLAN, 1, 1, TRAIN, model=MODELS[0], now_ms=NOW)
    gate.commit(reservation, bytes(32), now_ms=NOW)
    with pytest.raises(GateError, match="kept"):
        gate.keep(PLAN, 1, 1, now_ms=NOW)
    gate.release(PLAN, 1, 1, sum=bytes(32), model=MODELS[1], now_ms=NOW)
    reservation = gate.reserve(PLAN, 3, 5, HEAD, model=MODELS[4], now_ms=NOW)
    with pytest.raises(GateError, match="commitment"):
        gate.keep(PLAN, 3, 5, now_ms=NOW)
    gate.commit(reservation, bytes(32), now_ms=NOW)
    with pytest.raises(GateError, match="no release"):
        gate.release(PLAN, 3, 5, sum=bytes(32), model=MODELS[5], now_ms=NOW)
    number = gate.keep(PLAN, 3, 5, now_ms=NOW)
    assert gate.keep(PLAN, 3, 5, now_ms=NOW) == number
    with pytest.raises(GateError):
        gate.abort(PLAN, 3, 5, AbortReason.STOPPED, now_ms=NOW)
    with pytest.raises(GateError):
        gate.commit(Reservation(reservation.leaf, PLAN, 3, 5), b"v" * 32, now_ms=NOW)


def test_no_ledger_holds_such_leaves_either() -> None:
    with pytest.raises(ValueError, match="kept"):
        Keep(PLAN, 2, 3)
    with pytest.raises(ValueError, match="no release"):
        Release(PLAN, 3, 5, bytes(32), bytes(32))
    body = Record(TIME, Keep(PLAN, 3, 5)).encode()
    assert Record.decode(body).leaf == Keep(PLAN, 3, 5)
    with pytest.raises(MalformedError, match="KEEP"):
        Record.decode(body.replace(b'"stage":3', b'"stage":2'))


# The audit.


def test_an_honest_log_of_all_stages_passes() -> None:
    checks = checked(log(*rounds(PLACES)))
    assert not failed(checks)
    assert "6 of 6 rounds start" in next(check.message for check in checks if check.name == "models")


def test_an_audit_computes_epsilon_for_a_job_and_not_for_a_leaf() -> None:
    """Of the whole job and of what was charged, each with and without secure aggregation: four figures at most."""
    accounting._epsilon.cache_clear()
    checked(log(*rounds(PLACES[:3])))
    assert accounting._epsilon.cache_info().misses == 4


@pytest.mark.parametrize("which", [0, 1])
def test_a_claim_below_the_recomputed_one_fails_with_and_without_secure_aggregation(which: int) -> None:
    true = epsilon(WHOLE, 1e-5).pld, epsilon_alone(WHOLE, 1e-5).pld
    low = (true[0] - 1e-4, true[1] + 1) if which == 0 else (true[0] + 1e-4, true[1] - 1e-4)
    assert failed(checked(log(*rounds(PLACES), claimed=low))) == [("epsilon", 2)]


@pytest.mark.parametrize(
    ("places", "at"),
    [
        ([(1, 3)], 3),
        ([(1, 1), (2, 2)], 6),
        ([(2, 5)], 3),
        ([(3, 4)], 3),
        ([(4, 6)], 3),
    ],
)
def test_a_round_outside_its_stages_numbers_is_found(places: list[tuple[int, int]], at: int) -> None:
    found = failed(checked(log(*rounds(places))))
    assert ("reservations", at) in found


@pytest.mark.parametrize(
    "event",
    [
        FIT.alone(),
        replace(FIT, shares=5),
        replace(FIT, scale=FIT.scale + 1),
        replace(FIT, sensitivity=FIT.sensitivity - 1),
        replace(FIT, dimension=329),
    ],
)
def test_a_round_charged_with_more_noise_than_the_plan_has_is_found(event: DistributedDiscreteGaussian) -> None:
    leaves = log(*rounds([(2, 3)]))
    leaves[3] = Reserve(PLAN, 2, 3, event, MODELS[2])
    assert ("reservations", 3) in failed(checked(leaves))


@pytest.mark.parametrize(("index", "stage"), [(2, 2), (4, 3), (5, 4)])
def test_the_chain_of_models_goes_on_from_stage_to_stage(index: int, stage: int) -> None:
    leaves = log(*rounds(PLACES))
    at = 3 + 3 * index
    reserve = leaves[at]
    assert isinstance(reserve, Reserve)
    assert reserve.stage == stage
    leaves[at] = replace(reserve, model=b"x" * 32)
    assert failed(checked(leaves)) == [("models", at)]


def test_what_others_published_fills_the_chain() -> None:
    """This hospital missed the last sum of training; the others' ledgers say what it led to."""
    leaves = log(*rounds([(1, 1), (1, 2), (2, 3)]))
    leaves[8] = Abort(PLAN, 1, 2, AbortReason.DROPPED)
    elsewhere = {(PLAN, 1, 2): Published(bytes(32), MODELS[2])}
    assert not failed(checked(leaves, elsewhere=elsewhere))
    other = {(PLAN, 1, 2): Published(bytes(32), b"y" * 32)}
    assert failed(checked(leaves, elsewhere=other)) == [("models", 9)]


@pytest.mark.parametrize("leaf", [Keep(PLAN, 3, 5), Abort(PLAN, 3, 5, AbortReason.CRASHED)])
def test_after_its_end_a_kept_round_takes_no_other(leaf: Leaf) -> None:
    assert failed(checked(log(*rounds(PLACES[4:5]), leaf)))[0] == ("order", 6)
    uncommitted = log(Reserve(PLAN, 3, 5, HEAD, MODELS[4]), Keep(PLAN, 3, 5))
    assert failed(checked(uncommitted))[0] == ("order", 4)


def test_a_head_without_an_end_counts_as_spent() -> None:
    checks = checked(log(*rounds(PLACES[4:5])[:2]))
    assert not failed(checks)
    assert any(check.note and check.name == "unresolved" for check in checks)
