"""When a release's signature leaves: tuning the personal head takes a time that depends on the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from silo_harness import NOW, Desk, House
from test_stages_with_coordinator import EVALUATION, world_of

from feddrm.contract.messages import OutcomeEvent, ReleaseProposal, ReleaseSignature, RoundOutcome
from feddrm.contract.rounds import Lost, sign_lost
from feddrm.contract.schedule import STAGE_EVALUATE, STAGE_PERSONAL
from privacy.leaves import Keep, Reserve
from silo.context import Work
from silo.effects import Connected, DataRefused, LoadData, Tune, Tuned, TuningFailed
from silo.releases import own_statement

SLOT_MS = 500
HEAD = {"steps": 2, "sampling_rate": 0.1, "noise_multiplier": 4.0, "learning_rate": 0.1}
Make = Callable[..., Desk]


def trained(make_desk: Make, **changes: Any) -> Desk:
    """After the last round of training, which is certified; tuning takes its time from here on, and so do answers."""
    desk = make_desk(rounds=1, personal_head=HEAD, **changes)
    desk.offer()
    desk.run()
    for house in desk.houses.values():
        house.handle(OutcomeEvent(desk.outcomes[1]))
        house.slot_ms, house.hold = SLOT_MS, Tune
        house.restart()
    return desk


def proposal(house: House) -> ReleaseProposal:
    job = house.state.active_job()
    assert job is not None
    return ReleaseProposal(own_statement(house.context, Work.of(job.signed.body), job))


def tunings(house: House) -> list[Tune]:
    return [effect for effect in house.effects if isinstance(effect, Tune)]


def tuned(house: House, *, fails: bool = False) -> Tuned | TuningFailed:
    effect = tunings(house)[-1]
    return TuningFailed(effect.plan_hash, "out of memory") if fails else house.tuned_event(effect)


def signed(house: House) -> bool:
    return any(isinstance(event, ReleaseSignature) for event in house.sent)


def sending_time(house: House, asked: int = NOW) -> int:
    """Milliseconds after `asked` at which the signature leaves, the clock going on as the agent's does."""
    assert not signed(house), "it has left already"
    due = house.participant.due_ms
    assert due is not None
    house.perform(house.participant.tick(due - 1))
    assert not signed(house), "it leaves before it is due"
    house.perform(house.participant.tick(due))
    assert signed(house)
    return due - asked


@pytest.mark.parametrize("fails", [False, True])
def test_a_signature_after_tuning_leaves_at_the_end_of_a_slot(make_desk: Make, fails: bool) -> None:
    desk, times = trained(make_desk), {}
    for house, after in zip(desk.houses.values(), (3, 499, 630, 1999), strict=True):
        assert house.handle(proposal(house)) == []
        assert house.handle(tuned(house, fails=fails), NOW + after) == []
        assert not house.participant.between_rounds, "a new start would lose the proposal"
        times[after] = sending_time(house)
        assert house.participant.due_ms is None
        assert house.participant.between_rounds
    assert times == {3: 500, 499: 500, 630: 1000, 1999: 2000}


def test_proposing_again_does_not_measure_the_tuning_more_finely(make_desk: Make) -> None:
    desk = trained(make_desk)
    alpha = desk.houses["alpha"]
    right = proposal(alpha)
    wrong = replace(right, statement=right.statement + b" ")
    assert alpha.handle(wrong) == []
    for now in (600, 629):
        assert alpha.handle(right, NOW + now) == []
    assert alpha.handle(tuned(alpha), NOW + 630) == []
    for now in (630, 700, 999):
        alpha.handle(Connected(), NOW + now)
        assert alpha.handle(wrong, NOW + now) == []
        assert alpha.handle(right, NOW + now) == []
    assert sending_time(alpha) == 1000
    # What the slot hid is known now, and no proposal waits any more.
    assert len(alpha.handle(right, NOW + 1001)) == 1


@pytest.mark.parametrize("refused", [False, True])
def test_what_waited_for_the_records_leaves_at_the_end_of_a_slot(make_desk: Make, refused: bool) -> None:
    desk = trained(make_desk)
    alpha = desk.houses["alpha"]
    alpha.hold = LoadData
    alpha.restart()
    assert alpha.handle(proposal(alpha)) == []
    if refused:
        assert alpha.handle(DataRefused(desk.trial.plan_hash, "no table"), NOW + 630) == []
    else:
        alpha.hold = Tune
        assert alpha.handle(alpha.loaded_event(desk.trial.plan_hash), NOW + 480) == []
        assert alpha.handle(tuned(alpha), NOW + 630) == []
    assert sending_time(alpha) == 1000


def test_a_restart_before_the_end_of_the_slot_loses_neither_release_nor_head(make_desk: Make) -> None:
    desk = trained(make_desk)
    alpha = desk.houses["alpha"]
    first = alpha.state.personal(desk.trial.plan_hash)
    alpha.handle(proposal(alpha))
    alpha.handle(tuned(alpha), NOW + 630)
    alpha.restart()
    # The coordinator proposes to every silo that connects.
    assert isinstance(alpha.handle(proposal(alpha), NOW + 700)[-1], ReleaseSignature)
    now = alpha.state.personal(desk.trial.plan_hash)
    assert first is not None
    assert now is not None
    assert (now[1] == first[1] + 1000).all()
    leaves = [record.leaf for record in alpha.ledger.leaves()]
    assert [type(e) for e in leaves if isinstance(e, Reserve | Keep) and e.stage == STAGE_PERSONAL] == [Reserve, Keep]


@pytest.mark.parametrize("ended", [630, 701])
def test_a_tuning_that_an_evaluation_began_is_measured_from_there(make_desk: Make, ended: int) -> None:
    """A coordinator declares that round lost and proposes just before or just after the head is tuned."""
    world = world_of(make_desk, 4, rounds=1, routing_fit=None, evaluation={**EVALUATION, "attempts": 1})
    alpha, plan = world.houses["alpha"], world.trial.plan_hash
    world.run(until=lambda: len(world.job.outcomes) == 1)
    alpha.slot_ms, alpha.hold = SLOT_MS, Tune
    world.crash("alpha")
    world.connect("alpha")
    assert alpha.handle(proposal(alpha), world.now) == []
    assert tunings(alpha) == [], "a round comes first, and would measure it"
    while not tunings(alpha):
        assert world.step()
    began = world.now
    lost = Lost(plan=plan, stage=STAGE_EVALUATE, round=2, reason="none")
    alpha.handle(OutcomeEvent(RoundOutcome(2, lost=sign_lost(lost, world.trial.round_key))), began + 100)
    for now in sorted((ended, 700)):
        alpha.handle(tuned(alpha) if now == ended else proposal(alpha), began + now)
    assert sending_time(alpha, began) == 1000
