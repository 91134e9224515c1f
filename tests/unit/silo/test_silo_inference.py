"""Sealed queries at the silo: forged queriers, replays, budgets, and what a refusal says."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inference_bench import DAY, Bench
from silo_harness import NOW

from feddrm.contract.errors import VerificationError
from feddrm.contract.identity import MemberKeys
from feddrm.contract.query_messages import Answer
from feddrm.contract.seal import open_answer, query_hash
from feddrm.contract.tickets import TICKET_LIFETIME_MS
from silo.answers import Answers
from silo.inference import BUDGET, BUSY, REFUSED, UNKNOWN, Admitted


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_an_enrolled_querier_gets_a_signed_answer(bench: Bench) -> None:
    event, pending = bench.ask()
    answer = bench.answer(event)
    assert answer is not None
    opened = open_answer(pending, answer.answer, silo_key=bench.trial.keys["alpha"].identity_public)
    assert opened.tolist() == [[0.25, 0.75]]
    with pytest.raises(VerificationError):
        open_answer(pending, answer.answer, silo_key=bench.trial.keys["beta"].identity_public)


def test_a_replay_gets_the_very_bytes_even_after_a_restart_and_a_new_day(bench: Bench) -> None:
    event, _ = bench.ask()
    first = bench.answer(event)
    assert bench.answer(event) == first
    bench.state.close()
    bench.start()
    assert bench.answer(event, NOW + 3 * DAY) == first
    assert Answers(bench.state).answered("desk", NOW // DAY) == 1


def test_the_same_question_twice_at_once_is_worked_on_once(bench: Bench) -> None:
    event, _ = bench.ask()
    admitted, _ = bench.answerer.admit(event, NOW)
    assert isinstance(admitted, Admitted)
    assert bench.answerer.admit(event, NOW) == (None, "")


def test_forged_queriers_are_refused(bench: Bench) -> None:
    forged, _ = bench.ask(keys=MemberKeys.generate())
    stranger = replace(forged, querier="stranger")
    silo_as_querier, _ = bench.ask(keys=bench.trial.keys["beta"], querier="beta", ticket=bench.ticket(querier="beta"))
    assert bench.answer(forged) == Answer(forged.query, refusal=REFUSED)
    # The coordinator knows the roster that is pinned here; and the querier must know whom to call.
    for event in (stranger, replace(silo_as_querier, querier="beta")):
        assert bench.answer(event) == Answer(event.query, refusal=UNKNOWN)
    assert Answers(bench.state).answered("desk", NOW // DAY) == 0


def test_a_querier_is_known_as_soon_as_a_roster_that_lists_it_is_approved(bench: Bench) -> None:
    full = bench.answerer.roster
    bench.answerer.roster = full.model_copy(update={"members": full.silos})
    event, _ = bench.ask()
    assert bench.answer(event) == Answer(event.query, refusal=UNKNOWN)
    bench.answerer.roster = full
    assert bench.answer(event).answer, "the refusal was not kept as the answer for ever, nor charged"
    assert Answers(bench.state).answered("desk", NOW // DAY) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"key": MemberKeys.generate().identity},
        {"querier": "other"},
        {"silo": "beta"},
        {"release": bytes(32)},
        {"federation": "other"},
        {"issued_ms": NOW - 10 * DAY, "expires_ms": NOW - 9 * DAY},
    ],
)
def test_a_ticket_that_is_not_for_this_is_refused(bench: Bench, change: dict[str, Any]) -> None:
    event, _ = bench.ask(ticket=bench.ticket(**change))
    assert bench.answer(event) == Answer(event.query, refusal=REFUSED)


def test_a_query_is_bound_to_its_ticket(bench: Bench) -> None:
    event, _ = bench.ask()
    moved = replace(event, ticket=bench.ticket())
    assert bench.answer(moved) == Answer(event.query, refusal=REFUSED)
    altered = event.sealed[:-1] + bytes([event.sealed[-1] ^ 1])
    changed = replace(event, sealed=altered, query=query_hash(altered))
    assert bench.answer(changed) == Answer(changed.query, refusal=REFUSED)
    assert bench.answer(replace(event, query=bytes(32))) == Answer(bytes(32), refusal=REFUSED)


def test_a_query_of_another_width_is_refused(bench: Bench) -> None:
    event, _ = bench.ask(width=4)
    assert bench.answer(event) == Answer(event.query, refusal=REFUSED)


def test_an_old_request_is_refused(bench: Bench) -> None:
    ticket = bench.ticket(issued_ms=NOW + 55 * 60_000, expires_ms=NOW + 65 * 60_000)
    event, _ = bench.ask(ticket=ticket)
    assert bench.answer(event, NOW + 61 * 60_000) == Answer(event.query, refusal=REFUSED)


def test_the_budget_of_a_day_counts_what_was_answered_refused_and_is_in_work(tmp_path: Path) -> None:
    bench = Bench(tmp_path, answers_per_day=3)
    first, _ = bench.ask()
    bench.answer(first)
    refused, _ = bench.ask(width=4)
    assert bench.answer(refused) == Answer(refused.query, refusal=REFUSED)
    waiting, _ = bench.ask()
    assert isinstance(bench.answerer.admit(waiting, NOW)[0], Admitted)
    over, _ = bench.ask()
    assert bench.answer(over) == Answer(over.query, refusal=BUDGET)
    # A repeat costs nothing, and a refusal for want of budget was not kept as the answer for ever.
    repeated = bench.answer(first)
    assert repeated is not None
    assert repeated.answer
    assert bench.answer(refused) == Answer(refused.query, refusal=REFUSED)
    bench.state.close()
    bench.start()
    again = bench.answer(over)
    assert again is not None
    assert again.answer


def test_refused_questions_use_the_budget_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, answers_per_day=5)
    for _ in range(5):
        event, _ = bench.ask(value=1.5)
        assert bench.answer(event) == Answer(event.query, refusal=REFUSED)
    event, _ = bench.ask()
    assert bench.answer(event) == Answer(event.query, refusal=BUDGET)


@pytest.mark.parametrize("value", [1.0000001, -1.5, 3e38])
def test_features_that_no_record_has_are_refused(bench: Bench, value: float) -> None:
    event, _ = bench.ask(value=value)
    assert bench.answer(event) == Answer(event.query, refusal=REFUSED)
    assert Answers(bench.state).answered("desk", NOW // DAY) == 1


def test_a_ticket_is_for_one_record(bench: Bench) -> None:
    event, _ = bench.ask(records=2)
    assert bench.answer(event) == Answer(event.query, refusal=REFUSED)


def test_a_model_that_gives_no_probabilities_is_a_refusal(bench: Bench) -> None:
    for bad in (np.nan, np.inf):
        event, _ = bench.ask()
        admitted, _ = bench.answerer.admit(event, NOW)
        assert isinstance(admitted, Admitted)
        answer = bench.answerer.finish(admitted, np.array([[bad, 0.5]], np.float32), NOW)
        assert answer == Answer(event.query, refusal=REFUSED)
        # Nothing is left in work.
        assert bench.answer(event) == Answer(event.query, refusal=REFUSED)
    assert Answers(bench.state).answered("desk", NOW // DAY) == 2


def test_a_ticket_answers_one_question_even_after_a_restart(bench: Bench) -> None:
    ticket = bench.ticket()
    first, _ = bench.ask(ticket=ticket)
    second, _ = bench.ask(ticket=ticket)
    answered = bench.answer(first)
    assert answered is not None
    assert answered.answer
    assert bench.answer(second) == Answer(second.query, refusal=REFUSED)
    assert bench.answer(first) == answered
    bench.state.close()
    bench.start()
    third, _ = bench.ask(ticket=ticket)
    assert bench.answer(third) == Answer(third.query, refusal=REFUSED)
    assert bench.answer(first) == answered


def test_a_ticket_is_used_before_anything_is_predicted(bench: Bench) -> None:
    """A crash while the model works must not free the ticket for another question; the same one may come again."""
    ticket = bench.ticket()
    first, _ = bench.ask(ticket=ticket)
    assert isinstance(bench.answerer.admit(first, NOW)[0], Admitted)
    bench.state.close()
    bench.start()
    second, _ = bench.ask(ticket=ticket)
    assert bench.answer(second) == Answer(second.query, refusal=REFUSED)
    answer = bench.answer(first)
    assert answer is not None
    assert answer.answer


def test_two_tickets_of_one_nonce_are_one_ticket(bench: Bench) -> None:
    nonce = os.urandom(32)
    first, _ = bench.ask(ticket=bench.ticket(nonce=nonce))
    second, _ = bench.ask(ticket=bench.ticket(nonce=nonce, issued_ms=NOW - 1))
    answer = bench.answer(first)
    assert answer is not None
    assert answer.answer
    assert bench.answer(second) == Answer(second.query, refusal=REFUSED)


def test_a_ticket_that_lives_longer_than_tickets_do_is_refused(bench: Bench) -> None:
    for lifetime, accepted in ((TICKET_LIFETIME_MS, True), (TICKET_LIFETIME_MS + 1, False)):
        event, _ = bench.ask(ticket=bench.ticket(expires_ms=NOW + lifetime))
        answer = bench.answer(event)
        assert answer is not None
        assert bool(answer.answer) == accepted


def test_capacity_limits_what_is_in_work(tmp_path: Path) -> None:
    bench = Bench(tmp_path, capacity=1)
    first, _ = bench.ask()
    admitted, _ = bench.answerer.admit(first, NOW)
    assert isinstance(admitted, Admitted)
    second, _ = bench.ask()
    assert bench.answer(second) == Answer(second.query, refusal=BUSY)
    bench.answerer.fail(admitted, NOW)
    answer = bench.answer(second)
    assert answer is not None
    assert answer.answer


def test_one_querier_gets_at_most_half_of_the_capacity(tmp_path: Path) -> None:
    bench = Bench(tmp_path, capacity=4)
    working = []
    for _ in range(2):
        event, _ = bench.ask()
        working.append(bench.answerer.admit(event, NOW)[0])
    assert all(isinstance(admitted, Admitted) for admitted in working)
    third, _ = bench.ask()
    assert bench.answer(third) == Answer(third.query, refusal=BUSY)
    # A stream that breaks gives its places back, and the question may come again.
    assert isinstance(working[0], Admitted)
    bench.answerer.drop(working[0])
    answer = bench.answer(third)
    assert answer is not None
    assert answer.answer
