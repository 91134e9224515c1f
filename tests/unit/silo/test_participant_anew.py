"""An agent that begins anew inside its process, between rounds: it loses nothing, and never does so inside a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from silo_harness import NAMES, NOW, Desk, House

from feddrm.contract.messages import DeclineReason, JobEnded, JobOffer, Notice, PlanAnswer, Ready
from feddrm.contract.roster import sign_roster
from feddrm.method.update import model_hash
from privacy.leaves import Dataset, Reserve
from secagg.wire import Step
from silo.effects import Connected, LoadData, Train
from silo.participant import Participant


def begin_anew(house: House, **changes: Any) -> list[Any]:
    """As silo.agent does it: the same files, another boot; returns what is sent first."""
    assert house.participant.between_rounds
    house.boots += 1
    house.context = replace(house.context, boot=bytes([house.boots]) * 16, **changes)
    house.participant = Participant(house.context)
    house.perform(house.participant.start(NOW))
    return house.handle(Connected())


def leaves(house: House, kind: type) -> int:
    return sum(isinstance(record.leaf, kind) for record in house.ledger.leaves())


def test_no_step_of_a_round_is_between_rounds(desk: Desk) -> None:
    house = desk.houses["alpha"]
    assert house.participant.between_rounds
    desk.open()
    for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY):
        assert not house.participant.between_rounds, step
        desk.advance(step)
    assert not house.participant.between_rounds
    desk.publish()
    assert house.participant.between_rounds


def test_neither_training_nor_reading_nor_an_unanswered_offer_is_between_rounds(desk: Desk) -> None:
    house = desk.houses["alpha"]
    house.hold = Train
    desk.open()
    assert not house.frames(Step.KEYS)
    assert not house.participant.between_rounds, "it trains still"
    house.hold = LoadData
    house.restart()
    assert not house.participant.between_rounds, "its records are being read"


def test_an_offer_whose_answer_waits_for_its_slot_is_not_given_up(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(slot_ms=1000)
    house = desk.houses["alpha"]
    assert house.participant.between_rounds
    house.handle(JobOffer(desk.trial.signed_plan.signed))
    assert not house.participant.between_rounds


def test_rounds_go_on_after_it_as_after_a_restart_and_the_records_are_read_again(desk: Desk) -> None:
    desk.run()
    house = desk.houses["alpha"]
    before = leaves(house, Dataset)
    (ready, *_) = begin_anew(house)
    assert isinstance(ready, Ready)
    assert (ready.round, ready.model) == (1, model_hash(desk.model))
    assert leaves(house, Dataset) == before + 1, "every reading is in the ledger"
    desk.run()
    assert desk.houses["alpha"].ready.model == model_hash(desk.model)
    assert leaves(house, Reserve) == 2
    assert desk.published.survivors == NAMES


def test_what_is_fixed_for_life_stays_fixed_when_the_data_file_is_read_again(desk: Desk) -> None:
    desk.run()
    house = desk.houses["alpha"]
    before = leaves(house, Dataset)
    house.patient = "visit"
    begin_anew(house)
    assert leaves(house, Dataset) == before, "refused before anything was read"
    assert house.participant.refusing
    desk.open(desk.announcement(cohort=tuple(name for name in NAMES if name != "alpha")))
    house.patient = "id"
    begin_anew(house)
    assert not house.participant.refusing
    assert leaves(house, Dataset) == before + 1


def test_a_job_that_does_not_fit_the_approved_roster_is_left_with_that_reason(desk: Desk) -> None:
    desk.run()
    house, trial = desk.houses["alpha"], desk.trial
    kept = tuple(member for member in trial.roster.members if member.name != "gamma")
    newer = trial.roster.model_copy(update={"version": 2, "members": kept})
    sent = begin_anew(house, roster=newer, signed_roster=sign_roster(newer, trial.operator))
    assert PlanAnswer(trial.plan_hash, accepted=False, reason=DeclineReason.ROSTER) in sent
    declined: Any = house.state.noted("declined")
    assert "version 1, pinned is 2" in declined["detail"]
    assert leaves(house, Reserve) == 1
    house.handle(JobEnded(trial.plan_hash, "stopped", completed=False))
    assert house.participant.between_rounds
    assert [event for event in begin_anew(house) if isinstance(event, PlanAnswer)] == []


def test_what_the_coordinator_says_is_there_for_status(desk: Desk) -> None:
    house = desk.houses["alpha"]
    house.handle(Notice("alpha is left out of first: 3 silos blame it"))
    assert house.state.noted("notice") == "alpha is left out of first: 3 silos blame it"
