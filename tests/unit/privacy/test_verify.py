from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from privacy_cases import CAPS, DATA, EVENT, NOW, ORIGIN, PLAN, ROUNDS, WHOLE, note_data

from privacy.accounting import Epsilon, claim, epsilon
from privacy.bundle import Bundle, export_bundle, parse_bundle
from privacy.checks import StageTerms
from privacy.errors import MalformedError
from privacy.events import PoissonSubsampledGaussian
from privacy.gate import AbortReason, Gate
from privacy.history import Published
from privacy.leaves import Abort, Commit, Key, Leaf, Plan, Record, Release, Reserve
from privacy.ledger import Ledger
from privacy.merkle import Tree
from privacy.note import sign_head
from privacy.summary import summarise
from privacy.verify import Check, PlanTerms, verify_log

SIGNER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
KEY = SIGNER.public_key().public_bytes_raw()
TERMS = {PLAN: PlanTerms("job", 1e-5, {1: StageTerms(EVENT, 1, ROUNDS)}, "id", bytes(32), bytes(32))}
COST = claim(epsilon(WHOLE, 1e-5).pld)
TIME = "2027-01-15T08:00:00Z"
PLAN_LEAF = Plan(PLAN, "job", 1e-5, COST, COST, WHOLE, CAPS, "0.1.0")


def bodies(*leaves: Leaf, data: tuple[Leaf, ...] = (DATA,)) -> tuple[bytes, ...]:
    """KEY, DATASET and `leaves`, so that the first of these is leaf 2."""
    return tuple(Record(TIME, leaf).encode() for leaf in (Key(ORIGIN, KEY), *data, *leaves))


def rounds(*numbers: int, first: int = 3) -> list[Leaf]:
    result: list[Leaf] = []
    for number in numbers:
        result += [
            Reserve(PLAN, 1, number, EVENT, bytes(32)),
            Commit(PLAN, 1, number, first + len(result), bytes(32)),
            Release(PLAN, 1, number, bytes(32), bytes(32)),
        ]
    return result


def sealed(leaves: tuple[bytes, ...]) -> bytes:
    """A head that the hospital itself signed over these leaves: it holds the key, so it can lie consistently."""
    return sign_head(ORIGIN, len(leaves), Tree(leaves).root(), SIGNER)


def checked(leaves: tuple[bytes, ...], head: bytes | None = None, **changes: object) -> tuple[Check, ...]:
    arguments: dict[str, object] = {"plans": TERMS, "witnessed": {}, "origin": ORIGIN, "key": KEY, **changes}
    return verify_log(leaves=leaves, head=head or sealed(leaves), **arguments)  # type: ignore[arg-type]


def failed(checks: tuple[Check, ...]) -> list[tuple[str, int | None]]:
    return [(check.name, check.leaf) for check in checks if not check.passed]


HONEST = bodies(PLAN_LEAF, *rounds(1, 2))
OTHER = b"q" * 32
OTHER_DATA = replace(DATA, plan=OTHER)


def test_an_honest_ledger_passes_every_check() -> None:
    result = checked(HONEST, witnessed={"hospital-b": sealed(HONEST[:4]), "hospital-c": sealed(HONEST)})
    assert failed(result) == []
    assert {check.name for check in result} == {
        *("head", "tree", "witnesses", "leaves", "key", "times", "order", "plan"),
        *("caps", "reservations", "epsilon", "unreleased", "patients", "models"),
    }
    assert not any(check.note for check in result)


def test_a_whole_real_ledger_passes(gate: Gate, ledger: Ledger, play: Callable[..., None]) -> None:
    note_data(gate)
    play(gate, range(1, ROUNDS + 1))
    gate.close_job(PLAN, now_ms=NOW)
    assert failed(checked(ledger.bodies(), ledger.head())) == []
    jobs, life = summarise(record.leaf for record in ledger.leaves())
    assert (jobs[0].rounds_charged, jobs[0].rounds_released) == (ROUNDS, ROUNDS)
    assert jobs[0].spent == epsilon(WHOLE, 1e-5)
    assert life.epsilon == COST


# Tampering without the key.


def test_an_edited_leaf_is_named() -> None:
    edited = (*HONEST[:4], HONEST[4].replace(b'"round":1', b'"round":2'), *HONEST[5:])
    assert edited != HONEST
    assert ("tree", None) in failed(checked(edited, sealed(HONEST)))


@pytest.mark.parametrize(
    "leaves",
    [
        HONEST[:-1],
        HONEST[:4] + HONEST[5:],
        (*HONEST, HONEST[-1]),
        (*HONEST[:2], HONEST[3], HONEST[2], *HONEST[4:]),
        (),
    ],
    ids=["truncated", "deleted", "added", "reordered", "emptied"],
)
def test_deleting_reordering_adding_break_the_tree(leaves: tuple[bytes, ...]) -> None:
    assert ("tree", None) in failed(checked(leaves, sealed(HONEST)))


def test_a_head_of_another_key_or_log_fails() -> None:
    other = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    root = Tree(HONEST).root()
    for head in (
        sign_head(ORIGIN, len(HONEST), root, other),
        sign_head("feddrm/retina/hospital-b", len(HONEST), root, SIGNER),
        b"no note",
    ):
        assert ("head", None) in failed(checked(HONEST, head))


# Tampering by the hospital itself, which re-signs: only peers can tell.


def test_a_truncated_and_resigned_log_fails_by_a_peer_s_head() -> None:
    witnessed = {"hospital-b": sealed(HONEST)}
    result = checked(HONEST[:5], witnessed=witnessed)
    assert failed(result) == [("witnesses", None)]
    assert any("cut short" in check.message and "hospital-b" in check.message for check in result)
    # Without that head it would pass: the reader is told.
    alone = checked(HONEST[:5])
    assert failed(alone) == []
    assert ("witnesses", True) in {(check.name, check.note) for check in alone}


def test_a_rewritten_and_resigned_log_fails_by_a_peer_s_head() -> None:
    other = bodies(PLAN_LEAF, *rounds(1, 3))
    assert len(other) == len(HONEST)
    for seen in (HONEST, HONEST[:7]):
        result = checked(other, witnessed={"hospital-b": sealed(seen)})
        assert failed(result) == [("witnesses", None)]
        assert any("rewritten or forked" in check.message for check in result)


def test_one_lying_witness_is_enough_to_fail_and_is_named() -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    forged = sign_head(ORIGIN, 99, bytes(32), stranger)
    for note in (forged, b"junk"):
        result = checked(HONEST, witnessed={"hospital-b": sealed(HONEST), "hospital-c": note})
        bad = [check for check in result if not check.passed]
        assert len(bad) == 1
        assert "hospital-c" in bad[0].message


# Leaves that lie.


@pytest.mark.parametrize("body", [b"{}", b"junk", HONEST[2].replace(b":", b": "), HONEST[2].replace(b"PLAN", b"PLOT")])
def test_an_unreadable_leaf_is_named(body: bytes) -> None:
    assert ("leaves", 2) in failed(checked((*HONEST[:2], body)))


def test_the_log_begins_with_its_key() -> None:
    assert ("key", 0) in failed(checked(HONEST[1:]))
    wrong = (Record(TIME, Key(ORIGIN, b"x" * 32)).encode(), *HONEST[1:])
    assert ("key", 0) in failed(checked(wrong))


def test_time_running_backwards_is_named() -> None:
    early = Record("2027-01-15T07:00:00Z", DATA).encode()
    assert ("times", len(HONEST)) in failed(checked((*HONEST, early)))


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


# The unit of privacy.


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


# The hospital's own caps through time.


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


# From which model a round starts.


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


# Bundles.


def test_bundles_survive(ledger: Ledger) -> None:
    ledger.append(DATA, now_ms=NOW)
    text = export_bundle(ledger, witnessed={"feddrm/retina/b": b"note\n"}, roster="roster é", plans=["plan"])
    bundle = parse_bundle(text.encode())
    expected = Bundle(
        ORIGIN, ledger.bodies(), ledger.head(), {"feddrm/retina/b": b"note\n"}, (), "roster é", (), ("plan",)
    )
    assert bundle == expected


@pytest.mark.parametrize(
    "change",
    [
        {"format": "feddrm ledger bundle 1"},
        {"origin": "elsewhere"},
        {"origin": None},
        {"leaves": {}},
        {"leaves": [1]},
        {"leaves": ["\ud800"]},
        {"head": None},
        {"witnessed": []},
        {"witnessed": {"x": "y"}},
        {"witnessed": {"feddrm/retina/b": 1}},
        {"roster": {}},
        {"plans": "x"},
        {"plans": [None]},
        {"key": "secret"},
    ],
)
def test_malformed_bundles_are_refused(ledger: Ledger, change: dict[str, object]) -> None:
    fields = json.loads(export_bundle(ledger, witnessed={}, roster="", plans=[]))
    with pytest.raises(MalformedError):
        parse_bundle(json.dumps({**fields, **change}).encode())


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"format":1,"format":1}'])
def test_what_is_no_bundle_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_bundle(text)


@given(st.binary(max_size=100))
def test_random_bytes_are_no_bundle(text: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_bundle(text)


def test_a_bundle_holds_no_private_key(ledger: Ledger) -> None:
    text = export_bundle(ledger, witnessed={}, roster="", plans=[])
    secret = b"s" * 32
    assert secret.hex() not in text
    assert secret.decode() not in text
