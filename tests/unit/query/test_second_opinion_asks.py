"""Two hospitals that are nearly tied: what a querier accepts from a coordinator, and what it makes of their answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from query_world import LABELS, NAMES, ROWS, Run, World, a_plan, features_of

from feddrm.cli import invoke
from feddrm.contract import query_messages as q
from feddrm.contract.errors import BudgetError, ExitCode, FeddrmError, NotAuthorisedError, UnreachableError
from feddrm.query.cli import app
from feddrm.transport.status import BusyError

A, B, C = NAMES
OWN = {"kind": "classes", "column": "stage", "values": ["I", "II"]}


@pytest.fixture
def tied(world: World) -> World:
    """Odd rows go to two hospitals, even rows to the second of them alone."""
    world.make_release(a_plan(queries={"second_opinion": 0.7}))
    world.pick = lambda number, _: (A, B) if number % 2 == 0 else B
    return world


def mean_of(world: World, row: int, *silos: str) -> tuple[str, float]:
    said = [world.predictor(silo).predict(features_of(*ROWS[row])[None]).probabilities[0] for silo in silos]
    mean = np.mean([one.astype(np.float64) for one in said], axis=0)
    return LABELS[int(mean.argmax())], pytest.approx(float(mean.max()), abs=1e-5)


def test_both_are_asked_and_the_mean_of_their_probabilities_is_the_answer(tied: World, run: Run) -> None:
    code, document, error = run("ask")
    assert (code, error) == (0, "")
    for row, silos in zip(document["rows"], ([A, B], [B], [A, B], [B]), strict=True):
        label, probability = mean_of(tied, row["row"] - 1, *silos)
        assert row == {
            "row": row["row"],
            "silos": silos,
            "missing": [],
            "label": label,
            "probability": probability,
        }
    assert set(document) == {"rows"}
    # An answer of each, so that it counts at both.
    assert len(set(tied.seen)) == len(tied.seen) == 6


def test_people_read_two_names_and_that_they_are_in_no_order(tied: World, capsys: pytest.CaptureFixture[str]) -> None:
    table = tied.directory / "patients.csv"
    table.write_text("age,sex\n31,f\n64,m\n")
    for command, heading in (("route", "row  silos"), ("ask", "row  silos                      label")):
        assert invoke(app, [command, str(table), "--dir", str(tied.querier)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(heading)
        assert f"  1  {A} and {B}" in lines[2]
        assert "nearly tied, and in no order" in lines[-1]
    out = tied.directory / "out.csv"
    assert invoke(app, ["route", str(table), "--dir", str(tied.querier), "--out", str(out)]) == 0
    assert out.read_text().splitlines() == ["row,silos", f"1,{A} {B}", f"2,{B}"]


# A coordinator that names what it should not.


def named(*silos: str) -> Callable[[World], None]:
    def attack(world: World) -> None:
        world.pick = lambda *_: silos

    return attack


def without_second_opinions(world: World) -> None:
    world.make_release(a_plan())


def with_another_question(world: World) -> None:
    world.make_release(a_plan(queries={"second_opinion": 0.7}, own_targets={B: OWN}))


def twice_one_ticket(world: World) -> None:
    """Two names over one ticket."""
    world.rows = lambda rows: [q.RouteRow(tuple(replace(row.routes[0], silo=s) for s in (A, B))) for row in rows]


@pytest.mark.parametrize("command", ["route", "ask"])
@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        (named(A, B, C), "not 1 to 2"),
        (named(B, B), "names an entry twice"),
        (named(), "not 1 to 2"),
        (named(B, A), "could be a rank"),
        (named(A, "hospital-x"), "hospital-x, which has no part in the release"),
        (without_second_opinions, "which the plan does not allow"),
        (with_another_question, "answer different questions"),
        (twice_one_ticket, "another federation, querier or silo"),
    ],
)
def test_a_coordinator_that_names_what_it_should_not_is_refused(
    tied: World, run: Run, command: str, attack: Callable[[World], None], sentence: str
) -> None:
    attack(tied)
    code, _, error = run(command)
    assert code == ExitCode.VERIFICATION
    assert sentence in error
    assert tied.seen == []


# One of two gives no answer.


def silent(world: World, silo: str, error: FeddrmError) -> None:
    def answer(ask: q.Ask) -> bytes:
        if ask.silo == silo:
            raise error
        return world.answer(ask)

    world.on_ask = answer


@pytest.mark.parametrize(
    ("error", "word", "reason"),
    [
        (BudgetError("x"), "refused", "no more answers"),
        (NotAuthorisedError("x"), "refused", "Not authorised"),
        (UnreachableError("x"), "away", "was not reached"),
        (BusyError("x"), "away", "still busy"),
    ],
)
def test_the_other_ones_answer_stands_alone_and_says_so(
    tied: World, run: Run, error: FeddrmError, word: str, reason: str
) -> None:
    silent(tied, A, error)
    code, document, text = run("ask", "--patience", "0", "--in-flight", "1")
    # Every row has an answer.
    assert code == 0
    assert "incomplete" not in document
    first = document["rows"][0]
    assert (first["silos"], first["missing"]) == ([A, B], [A])
    assert (first["label"], first["probability"]) == mean_of(tied, 0, B)
    ((entry,),) = [document[word]]
    assert (entry["silo"], entry["rows"]) == (A, [1, 3])
    assert reason in entry["reason"]
    assert "Answered by the other hospital alone: rows 1, 3." in text
    # Who gave no answer is not asked again while another one answers the same rows.
    assert len(tied.seen) == 5


def test_the_route_is_the_same_before_and_after_answers_are_used_up(tied: World, run: Run) -> None:
    """By using up its answers at one hospital a querier sees no name that it did not see before."""
    asked: list[str] = []
    tied.pick = lambda number, _: ((A, B), A, B, (B, C))[number % 4]
    _, before, _ = run("route")
    answer = tied.answer

    def used_up(ask: q.Ask) -> bytes:
        asked.append(ask.silo)
        if ask.silo == A:
            raise BudgetError("used up")
        return answer(ask)

    tied.on_ask = used_up
    code, after, text = run("ask", "--in-flight", "1")
    assert code == ExitCode.BUDGET
    assert tied.routed == 8, "nothing is routed again for a refusal"
    named = {row["row"]: row["silos"] for row in before["rows"]}
    assert {row["row"]: row["silos"] for row in after["rows"]} == {1: named[1], 3: named[3], 4: named[4]}
    # The row that only the hospital without answers could serve stays unanswered; nobody is asked in its place.
    assert after["refused"][0]["rows"] == [1, 2]
    assert asked == [A, B, B, B, C]
    assert "Not answered: row 2. Answered by the other hospital alone: row 1." in text
    assert "3 of 4 rows were answered." in text


def test_a_row_that_both_refuse_is_named_under_both(tied: World, run: Run) -> None:
    def refuse(_: q.Ask) -> bytes:
        raise BudgetError("x")

    tied.on_ask = refuse
    tied.pick = lambda number, _: (A, B) if number == 0 else (B, C)
    code, document, error = run("ask", "--in-flight", "1")
    assert code == ExitCode.BUDGET
    assert document["error"]["code"] == ExitCode.BUDGET
    assert "hospital-a gives desk no more answers" in error


def test_a_row_whose_hospitals_are_both_away_is_routed_again(tied: World, run: Run) -> None:
    gone = {A, B}

    def answer(ask: q.Ask) -> bytes:
        if ask.silo in gone:
            raise UnreachableError("x")
        return tied.answer(ask)

    tied.on_ask = answer
    tied.pick = lambda number, _: (A, B) if number < 4 else C
    code, document, _ = run("ask", "--in-flight", "1")
    assert code == 0
    assert [row["silos"] for row in document["rows"]] == [[C]] * 4


def test_a_forged_answer_is_refused_even_if_the_other_one_is_sound(tied: World, run: Run) -> None:
    honest = tied.answer
    tied.on_ask = lambda ask: bytes(400) if ask.silo == B else honest(ask)
    code, document, error = run("ask", "--in-flight", "1")
    assert code == ExitCode.VERIFICATION
    assert "not an answer to the request" in error
    assert json.dumps(document).count('"row"') == 0


def test_a_hospital_does_not_learn_whether_another_is_asked(tied: World, run: Run) -> None:
    """What each gets is a ticket of its own and a request of the same length, whether there is another one or not."""
    got: list[q.Ask] = []

    def answer(ask: q.Ask) -> bytes:
        got.append(ask)
        return tied.answer(ask)

    tied.on_ask = answer
    assert run("ask")[0] == 0
    assert len({len(ask.sealed) for ask in got}) == 1
    assert len({ask.ticket.body for ask in got}) == len(got) == 6
    for ask in got:
        others = set(NAMES) - {ask.silo}
        assert not any(name.encode() in ask.ticket.body for name in others)


def test_who_was_away_once_is_asked_again_where_nobody_else_answers(tied: World, run: Run) -> None:
    """Each of two is away for one row, in turn; a row that names both must not be lost to what was remembered."""
    rows = ((A, B), (B, C), (A, B), (A, B))
    tied.pick = lambda number, _: rows[number % 4]
    asked: list[str] = []
    # The first row is put to A and B, the second one to B and C.
    away = {0, 2}

    def answer(ask: q.Ask) -> bytes:
        asked.append(ask.silo)
        if len(asked) - 1 in away:
            raise UnreachableError("x")
        return tied.answer(ask)

    tied.on_ask = answer
    code, document, _ = run("ask", "--in-flight", "1")
    assert code == 0
    assert [row["missing"] for row in document["rows"]] == [[A], [B], [], []]
    assert tied.routed == 4, "nothing is routed again while somebody of a row is there"
    # The third row waits for neither at first, then for both.
    assert asked == [A, B, B, C, A, B, A, B]
