"""feddrm-query on a day on which hospitals are busy, away, or refuse."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from query_world import NAMES, Refuse, Run, World

from feddrm.contract import query_messages as q
from feddrm.contract.errors import (
    BudgetError,
    ExitCode,
    MalformedError,
    NotAuthorisedError,
    UnreachableError,
)
from feddrm.query.coordinator import Patience
from feddrm.transport.client import BusyError


def test_a_busy_hospital_is_asked_again_with_the_same_bytes(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, BusyError("full"), BusyError("full"))
    code, document, _ = run("ask", "--in-flight", "1")
    assert code == 0
    assert len(document["rows"]) == 4
    assert world.seen[0] == world.seen[1] == world.seen[2]
    assert len(set(world.seen)) == 4


def test_a_coordinator_that_is_restarted_is_asked_again_with_the_same_bytes(world: World, run: Run) -> None:
    world.hiccups = 2
    code, document, _ = run("ask", "--in-flight", "1")
    assert code == 0
    assert len(document["rows"]) == 4
    assert world.seen[0] == world.seen[1] == world.seen[2]
    assert world.routed == 4


def test_patience_ends(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, *[BusyError("full")] * 10)
    code, document, error = run("ask", "--patience", "0")
    assert code == ExitCode.UNREACHABLE
    assert "is still busy" in error
    assert document["error"]["code"] == 7


def test_a_hospital_that_went_away_is_given_up_for_the_next_choice(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, UnreachableError("gone"))
    code, document, _ = run("ask", "--in-flight", "1")
    assert code == 0
    assert document["rows"][0]["silos"] == [NAMES[4 % 3]]
    assert [row["row"] for row in document["rows"]] == [1, 2, 3, 4]


def test_nobody_is_rerouted_for_ever(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, *[UnreachableError("gone")] * 50)
    code, _, _ = run("ask", "--in-flight", "1")
    assert code == ExitCode.UNREACHABLE
    assert len(world.seen) == 3


def test_asks_in_flight_are_kept_when_one_fails(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, BudgetError("spent"))
    code, document, _ = run("ask", "--in-flight", "4")
    assert code == ExitCode.BUDGET
    assert len(document["rows"]) == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [(BudgetError("spent"), ExitCode.BUDGET), (NotAuthorisedError("no"), ExitCode.NOT_AUTHORISED)],
)
def test_what_was_answered_before_a_refusal_is_kept(
    world: World, run: Run, error: BudgetError | NotAuthorisedError, code: ExitCode
) -> None:
    answered: list[q.Ask] = []

    def second_says_no(ask: q.Ask) -> bytes:
        answered.append(ask)
        if ask.silo == NAMES[1]:
            raise error
        return world.answer(ask)

    world.on_ask = second_says_no
    world.pick = lambda number, _: NAMES[number % 2]
    actual, document, message = run("ask", "--in-flight", "1")
    assert actual == code
    # Rows of the other hospital are asked all the same; who refused once is not asked again, and nobody in its place.
    assert [(row["row"], row["silos"]) for row in document["rows"]] == [(1, [NAMES[0]]), (3, [NAMES[0]])]
    assert [ask.silo for ask in answered] == [NAMES[0], NAMES[1], NAMES[0]]
    assert "no more answers" in document["incomplete"] or "refuses" in document["incomplete"]
    (refused,) = document["refused"]
    assert (refused["silo"], refused["rows"]) == (NAMES[1], [2, 4])
    assert "Not answered: rows 2, 4." in message
    assert "2 of 4 rows were answered." in message


def test_a_wrong_number_of_classes_is_refused(world: World, run: Run) -> None:
    class Three:
        def predict(self, features: Any) -> Any:
            return replace_probabilities(np.full((len(features), 3), 1 / 3, dtype=np.float32))

    def replace_probabilities(values: Any) -> Any:
        from feddrm.method.model import Prediction

        return Prediction(values.argmax(axis=1), values)

    world.predictor = lambda _: Three()  # type: ignore[method-assign,assignment,return-value]
    code, _, error = run("ask")
    assert code == ExitCode.VERIFICATION
    assert "3 classes" in error


def test_nothing_released_yet(world: World, run: Run) -> None:
    world.in_service = False
    code, _, error = run("route")
    assert code == ExitCode.UNREACHABLE
    assert "No release is in service yet" in error


# Patience itself.


def test_pauses_grow_jittered_and_end_in_time() -> None:
    pauses: list[float] = []
    clock = [0.0]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    async def busy() -> None:
        raise BusyError("full")

    with pytest.raises(BusyError):
        asyncio.run(Patience(100, sleep, lambda: clock[0]).retry(busy))
    assert 80 < sum(pauses) <= 100
    # Two of a thousand steps may well be equal, all of them are not.
    assert len(set(pauses)) > len(pauses) / 2
    for n, pause in enumerate(pauses):
        bound = min(0.1 * 2**n, 10)
        assert bound / 2 <= pause <= bound


def test_only_busy_is_retried() -> None:
    calls = []

    async def fail() -> None:
        calls.append(1)
        raise MalformedError("no")

    with pytest.raises(MalformedError):
        asyncio.run(Patience(100).retry(fail))
    assert calls == [1]
