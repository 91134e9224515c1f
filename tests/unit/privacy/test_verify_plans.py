"""Plans, charges and models in a ledger, verified from its leaves alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from privacy_cases import CAPS, DATA, EVENT, ORIGIN, PLAN, ROUNDS
from verify_cases import COST, HONEST, KEY, PLAN_LEAF, TERMS, bodies, checked, failed, rounds

from privacy.accounting import Epsilon
from privacy.events import PoissonSubsampledGaussian
from privacy.gate import AbortReason
from privacy.history import Published
from privacy.leaves import Abort, Commit, Key, Leaf, Plan, Release, Reserve

OTHER = b"q" * 32


OTHER_DATA = replace(DATA, plan=OTHER)


@pytest.mark.parametrize(
    ("leaf", "name"),
    [
        (replace(PLAN_LEAF, epsilon=COST - 1e-5), "epsilon"),
        (replace(PLAN_LEAF, epsilon_alone=COST - 1e-5), "epsilon"),
        (replace(PLAN_LEAF, delta=2e-5), "plan"),
        (replace(PLAN_LEAF, name="other"), "plan"),
        (replace(PLAN_LEAF, events=(PoissonSubsampledGaussian(1.5, 0.04, 5 * ROUNDS + 5),)), "plan"),
        (replace(PLAN_LEAF, events=(PoissonSubsampledGaussian(1.6, 0.04, 5 * ROUNDS),)), "epsilon"),
        (replace(PLAN_LEAF, events=()), "epsilon"),
        (replace(PLAN_LEAF, plan=b"q" * 32), "plan"),
        (replace(PLAN_LEAF, caps=replace(CAPS, job_epsilon=0.1)), "caps"),
        (replace(PLAN_LEAF, caps=replace(CAPS, job_epsilon_alone=0.1)), "caps"),
        (replace(PLAN_LEAF, caps=replace(CAPS, job_delta=1e-6)), "caps"),
        (replace(PLAN_LEAF, caps=replace(CAPS, life_epsilon=0.1)), "caps"),
        (replace(PLAN_LEAF, caps=replace(CAPS, life_epsilon_alone=0.1)), "caps"),
        (replace(PLAN_LEAF, caps=replace(CAPS, life_delta=1e-6)), "caps"),
    ],
)
def test_a_plan_leaf_that_lies_is_named(leaf: Plan, name: str) -> None:
    tail = rounds(1) if leaf.plan == PLAN else []
    assert (name, 2) in failed(checked(bodies(leaf, *tail)))


def test_a_plan_that_the_operator_never_signed_is_named() -> None:
    result = failed(checked(HONEST, plans={}))
    assert ("plan", 2) in result
    assert ("reservations", 3) in result


def test_jobs_over_the_cap_for_life_are_named() -> None:
    second = replace(PLAN_LEAF, plan=OTHER, caps=replace(CAPS, life_epsilon=1.5 * COST))
    plans = {**TERMS, OTHER: TERMS[PLAN]}
    assert failed(checked(bodies(PLAN_LEAF, second), plans=plans)) == [("caps", 3)]
    ended = Abort(PLAN, 0, 0, AbortReason.STOPPED)
    assert failed(checked(bodies(PLAN_LEAF, ended, second), plans=plans)) == []
    charged = bodies(PLAN_LEAF, *rounds(1), ended, second)
    assert failed(checked(charged, plans=plans)) == [("caps", 7)]


@pytest.mark.parametrize(
    ("event", "stage", "number"),
    [
        (replace(EVENT, noise_multiplier=1.4), 1, 1),
        (replace(EVENT, noise_multiplier=3.0), 1, 1),
        (replace(EVENT, steps=4), 1, 1),
        (EVENT, 2, 1),
        (EVENT, 1, ROUNDS + 1),
    ],
)
def test_a_charge_other_than_the_signed_plan_s_is_named(
    event: PoissonSubsampledGaussian, stage: int, number: int
) -> None:
    leaf = Reserve(PLAN, stage, number, event, bytes(32))
    assert ("reservations", 3) in failed(checked(bodies(PLAN_LEAF, leaf)))


def test_a_round_charged_beside_an_unresolved_one_is_named() -> None:
    first, second = Reserve(PLAN, 1, 1, EVENT, bytes(32)), Reserve(PLAN, 1, 2, EVENT, bytes(32))
    assert ("reservations", 4) in failed(checked(bodies(PLAN_LEAF, first, second)))


R1 = Reserve(PLAN, 1, 1, EVENT, bytes(32))


C1 = Commit(PLAN, 1, 1, 3, bytes(32))


L1 = Release(PLAN, 1, 1, bytes(32), bytes(32))


A1 = Abort(PLAN, 1, 1, AbortReason.LOST)


@pytest.mark.parametrize(
    ("leaves", "number"),
    [
        ([R1], 1),
        ([PLAN_LEAF, C1], 2),
        ([PLAN_LEAF, L1], 2),
        ([PLAN_LEAF, A1], 2),
        ([PLAN_LEAF, R1, L1], 3),
        ([PLAN_LEAF, R1, R1], 3),
        ([PLAN_LEAF, R1, C1, C1], 4),
        ([PLAN_LEAF, R1, replace(C1, reserve=1)], 3),
        ([PLAN_LEAF, R1, replace(C1, round=2)], 3),
        ([PLAN_LEAF, R1, C1, L1, L1], 5),
        ([PLAN_LEAF, R1, C1, L1, A1], 5),
        ([PLAN_LEAF, R1, A1, C1], 4),
        ([PLAN_LEAF, R1, C1, A1, L1], 5),
        ([PLAN_LEAF, PLAN_LEAF], 2),
        ([Abort(PLAN, 0, 0, AbortReason.STOPPED)], 1),
        ([PLAN_LEAF, Abort(PLAN, 0, 0, AbortReason.STOPPED), R1], 3),
        ([PLAN_LEAF, replace(R1, round=3), replace(A1, round=3), R1], 4),
        ([PLAN_LEAF, Key(ORIGIN, KEY)], 2),
        ([PLAN_LEAF, Key("feddrm/f/other", bytes(32)), R1], 2),
    ],
)
def test_leaves_out_of_order_are_named(leaves: list[Leaf], number: int) -> None:
    assert ("order", number + 1) in failed(checked(bodies(*leaves)))


def test_a_round_charged_before_its_data_was_named_is_named() -> None:
    assert ("order", 2) in failed(checked(bodies(PLAN_LEAF, R1, data=())))
    assert ("order", 3) in failed(checked(bodies(PLAN_LEAF, R1, data=(OTHER_DATA,))))
    assert failed(checked(bodies(PLAN_LEAF, DATA, R1, data=()))) == []


def test_a_data_set_read_by_another_patient_column_than_the_signed_plan_s_is_named() -> None:
    by_visit = replace(DATA, patient="visit")
    assert failed(checked(bodies(PLAN_LEAF, data=(by_visit,)))) == [("patients", 1)]
    assert failed(checked(bodies(PLAN_LEAF, data=(replace(DATA, schema=b"x" * 32),)))) == [("patients", 1)]


def test_a_patient_column_or_a_public_size_that_changes_between_jobs_is_named() -> None:
    """Each plan is signed and each job follows its own: only the ledger's history shows that the unit moved."""
    plans = {**TERMS, OTHER: replace(TERMS[PLAN], patient="visit")}
    second = replace(PLAN_LEAF, plan=OTHER)
    moved = checked(bodies(PLAN_LEAF, replace(OTHER_DATA, patient="visit"), second), plans=plans)
    assert failed(moved) == [("patients", 3)]
    assert any("from id to visit" in check.message for check in moved)
    resized = checked(bodies(PLAN_LEAF, replace(DATA, public_size=1001)))
    assert failed(resized) == [("patients", 3)]
    assert any("column id says, about 1000" in check.message for check in checked(HONEST))


@pytest.mark.parametrize(("cap", "word"), [(20.0, "raised from 10 to 20"), (9.0, "lowered from 10 to 9")])
def test_changed_caps_are_noted_with_the_leaf_and_both_figures(cap: float, word: str) -> None:
    plans = {**TERMS, OTHER: TERMS[PLAN]}
    second = replace(PLAN_LEAF, plan=OTHER, caps=replace(CAPS, life_epsilon=cap))
    result = checked(bodies(PLAN_LEAF, second), plans=plans)
    assert failed(result) == []
    (note,) = [check for check in result if check.name == "caps history"]
    assert (note.leaf, note.note) == (3, True)
    assert f"life_epsilon {word}" in note.message
    same = checked(bodies(PLAN_LEAF, replace(second, caps=CAPS)), plans=plans)
    assert not [check for check in same if check.name == "caps history"]


def chained(*models: bytes) -> list[Leaf]:
    """Rounds 1, 2, ...: each starts from one of `models` and is released with the next."""
    result: list[Leaf] = []
    for number, (start, after) in enumerate(itertools.pairwise(models), start=1):
        result += [
            Reserve(PLAN, 1, number, EVENT, start),
            Commit(PLAN, 1, number, 3 + len(result), bytes(32)),
            Release(PLAN, 1, number, bytes(32), after),
        ]
    return result


A, B, X = b"a" * 32, b"b" * 32, b"x" * 32


def test_a_round_that_starts_from_a_model_nobody_released_is_named() -> None:
    assert failed(checked(bodies(PLAN_LEAF, *chained(bytes(32), A, B)))) == []
    assert failed(checked(bodies(PLAN_LEAF, *chained(X, A)))) == [("models", 3)]
    jump = chained(bytes(32), A)
    jump.append(Reserve(PLAN, 1, 2, EVENT, X))
    assert failed(checked(bodies(PLAN_LEAF, *jump))) == [("models", 6)]


def test_after_a_lost_round_the_model_is_the_one_before() -> None:
    lost: list[Leaf] = [R1, A1]
    assert failed(checked(bodies(PLAN_LEAF, *lost, Reserve(PLAN, 1, 2, EVENT, bytes(32))))) == []
    other = bodies(PLAN_LEAF, *lost, Reserve(PLAN, 1, 2, EVENT, X))
    result = checked(other)
    assert failed(result) == []
    assert [(check.leaf, check.note) for check in result if "lost round 1" in check.message] == [(5, True)]
    # t acks may have brought the round back: the others' ledgers decide.
    place = (PLAN, 1, 1)
    assert failed(checked(other, elsewhere={place: Published(bytes(32), X)})) == []
    assert failed(checked(other, elsewhere={place: Published(bytes(32), A)})) == [("models", 5)]


@pytest.mark.parametrize("reason", [r for r in AbortReason if r is not AbortReason.LOST])
def test_what_cannot_be_derived_is_said_and_not_guessed(reason: AbortReason) -> None:
    """A silo that crashed or was dropped does not know where the others went; another ledger may."""
    leaves = bodies(PLAN_LEAF, R1, replace(A1, reason=reason), Reserve(PLAN, 1, 2, EVENT, X))
    alone = checked(leaves)
    assert failed(alone) == []
    assert any("1 of 2 rounds start" in check.message for check in alone)
    place = (PLAN, 1, 1)
    assert failed(checked(leaves, elsewhere={place: Published(bytes(32), X)})) == []
    assert failed(checked(leaves, elsewhere={place: Published(bytes(32), A)})) == [("models", 5)]


def test_a_release_other_than_most_ledgers_say_is_named() -> None:
    place = (PLAN, 1, 1)
    leaves = bodies(PLAN_LEAF, *chained(bytes(32), A))
    assert failed(checked(leaves, elsewhere={place: Published(bytes(32), A)})) == []
    for other in (Published(X, A), Published(bytes(32), X)):
        assert failed(checked(leaves, elsewhere={place: other})) == [("published", 5)]
    assert failed(checked(leaves, contested={place: 2})) == [("published", 5)]


def test_a_plan_s_events_that_cannot_be_accounted_are_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(*_: object) -> Epsilon:
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setattr("privacy.verify.epsilon", overflow)
    result = failed(checked(HONEST))
    assert ("epsilon", 2) in result


def test_more_rounds_without_a_release_than_allowed_are_named() -> None:
    caps = replace(CAPS, rounds_without_release=1)
    lost: list[Leaf] = []
    for number in (1, 2):
        lost += [replace(R1, round=number), replace(A1, round=number)]
    assert failed(checked(bodies(replace(PLAN_LEAF, caps=caps), *lost))) == [("unreleased", 2)]


def test_an_open_reservation_is_noted_and_counted() -> None:
    result = checked(bodies(PLAN_LEAF, *rounds(1), replace(R1, round=2)))
    assert failed(result) == []
    assert any(check.name == "unresolved" and check.leaf == 6 and check.note for check in result)
    assert any("2 rounds spent" in check.message for check in result)
