"""The hospital's own limits: what is declined, what is charged, and what a crash leaves behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from silo_harness import Desk, House

from feddrm.contract.charge import charge
from feddrm.contract.messages import DeclineReason, JobEnded, JobOffer, OutcomeEvent, PlanAnswer
from feddrm.contract.signed_plan import sign_plan
from privacy.leaves import Abort, Commit, Dataset, Plan, Release, Reserve
from secagg.bodies import Abort as LastWord
from secagg.wire import Step
from silo.effects import DataRefused, LoadData, Log, Train, TrainingFailed

Make = Callable[..., Desk]


def leaves(house: House) -> list[object]:
    return [record.leaf for record in house.ledger.leaves()]


def kinds(house: House) -> list[str]:
    return [type(leaf).__name__ for leaf in leaves(house)]


def test_a_silo_whose_cap_is_below_the_plan_declines_and_trains_nothing(make_desk: Make) -> None:
    desk = make_desk()
    alpha = desk.houses["alpha"]
    tight = desk.trial.policy(job_epsilon=0.01)
    alpha.die()
    alpha.policy = tight
    alpha.start()
    answers = desk.offer()
    assert answers["alpha"] == PlanAnswer(desk.trial.plan_hash, accepted=False, reason=DeclineReason.POLICY)
    declined = alpha.state.noted("declined")
    assert isinstance(declined, dict)
    assert "job_epsilon" in declined["detail"]
    assert kinds(alpha) == ["Key"]
    assert not any(isinstance(effect, LoadData | Train) for effect in alpha.effects)
    # Announced all the same, it enters nothing.
    desk.open(desk.announcement())
    assert alpha.trained == []
    assert alpha.frames(Step.KEYS) == []


def test_the_budget_for_life_counts_all_jobs(make_desk: Make) -> None:
    desk = make_desk()
    cost = desk.trial.signed_plan.plan

    life = charge(cost).epsilon * 1.5
    alpha = desk.houses["alpha"]
    alpha.die()
    alpha.policy = desk.trial.policy(life_epsilon=life)
    alpha.start()
    assert desk.offer()["alpha"].accepted
    alpha.handle(JobEnded(desk.trial.plan_hash, "", completed=True))
    second = sign_plan(cost.model_copy(update={"name": "second"}), desk.trial.operator)
    sent = alpha.handle(JobOffer(second.signed))
    assert sent[-1] == PlanAnswer(second.hash, accepted=False, reason=DeclineReason.POLICY)
    assert kinds(alpha).count("Plan") == 1


def test_a_refusal_names_no_figure(make_desk: Make) -> None:
    desk = make_desk()
    alpha = desk.houses["alpha"]
    alpha.die()
    alpha.policy = desk.trial.policy(job_epsilon=0.123456)
    alpha.start()
    sent = alpha.handle(JobOffer(desk.trial.signed_plan.signed))
    assert "123456" not in repr(sent)
    assert any(isinstance(effect, Log) and "0.123456" in effect.text for effect in alpha.effects)


def test_forged_foreign_and_second_plans_are_declined(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    plan = desk.trial.plan
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    forged = sign_plan(plan.model_copy(update={"name": "forged"}), Ed25519PrivateKey.generate())
    other = sign_plan(plan.model_copy(update={"name": "other"}), desk.trial.operator)
    assert alpha.handle(JobOffer(other.signed))[-1].reason == DeclineReason.BUSY
    alpha.handle(JobEnded(desk.trial.plan_hash, "stopped", completed=False))
    assert alpha.handle(JobOffer(forged.signed))[-1].reason == DeclineReason.POLICY
    assert alpha.handle(JobOffer(desk.trial.signed_plan.signed))[-1].reason == DeclineReason.POLICY
    for change, reason in (
        ({"federation": "other"}, DeclineReason.ROSTER),
        ({"roster_version": 2}, DeclineReason.ROSTER),
        ({"silos": ("beta", "delta", "gamma")}, DeclineReason.ROSTER),
        ({"silos": ("alpha", "beta", "delta", "stranger")}, DeclineReason.ROSTER),
    ):
        signed = sign_plan(plan.model_copy(update=change), desk.trial.operator)
        assert alpha.handle(JobOffer(signed.signed))[-1].reason == reason


def test_an_answer_is_remembered_across_a_restart(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    alpha.restart()
    assert alpha.ready.plan == desk.trial.plan_hash
    sent = alpha.handle(JobOffer(desk.trial.signed_plan.signed))
    assert sent[0] == PlanAnswer(desk.trial.plan_hash, accepted=True)
    assert kinds(alpha).count("Plan") == 1


def test_data_that_changed_gets_a_leaf_before_it_is_trained_on(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    alpha.die()
    alpha.hold = LoadData
    alpha.start()
    desk.open()
    assert alpha.trained == []
    alpha.hold = None
    alpha.handle(alpha.loaded_event(desk.trial.plan_hash, b"\2" * 32))
    assert alpha.trained == [1]
    assert kinds(alpha)[-3:] == ["Dataset", "Reserve", "Commit"]
    assert alpha.frames(Step.KEYS)


def test_a_silo_without_usable_data_declines(make_desk: Make) -> None:
    desk = make_desk()
    alpha = desk.houses["alpha"]
    alpha.hold = LoadData
    alpha.handle(JobOffer(desk.trial.signed_plan.signed))
    sent = alpha.handle(DataRefused(desk.trial.plan_hash, "records.csv, line 3: secret"))
    assert sent == [PlanAnswer(desk.trial.plan_hash, accepted=False, reason=DeclineReason.POLICY)]
    # Charged before anything was read. Offered again, once the table is there, it is accepted on the same allocation.
    assert kinds(alpha) == ["Key", "Plan"]
    alpha.hold = None
    assert alpha.handle(JobOffer(desk.trial.signed_plan.signed))[0].accepted
    assert kinds(alpha) == ["Key", "Plan", "Dataset"]


def test_the_reservation_precedes_training_and_the_commitment_the_first_key(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    alpha.hold = Train
    desk.open()
    assert kinds(alpha)[-1] == "Reserve"
    assert not alpha.frames(Step.KEYS)
    train = next(effect for effect in alpha.effects if isinstance(effect, Train))
    alpha.handle(alpha.trained_event(train))
    assert kinds(alpha)[-1] == "Commit"
    assert alpha.frames(Step.KEYS)


def test_a_crash_in_training_is_spent_and_the_round_goes_on_without_the_silo(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    alpha.hold = Train
    desk.open()
    spent = alpha.gate.spent(desk.trial.plan_hash)
    assert spent.pld > 0
    alpha.hold = None
    alpha.restart()
    assert kinds(alpha)[-3:] == ["Reserve", "Abort", "Dataset"]
    assert alpha.gate.spent(desk.trial.plan_hash) == spent
    desk.open(desk.announcement(attempt=2))
    assert alpha.trained == []
    assert [LastWord.decode(frame.body).released for frame in alpha.frames(Step.ABORT)] == [False]
    for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY):
        desk.advance(step, without=("alpha",))
    desk.publish(without=("alpha",))
    alpha.handle(OutcomeEvent(desk.outcomes[1]))
    desk.run()
    assert alpha.trained == [2]
    assert alpha.ready.round == 2


@pytest.mark.parametrize("moment", ["after reserve", "after update"])
def test_a_crash_between_state_and_ledger_understates_nothing(
    desk: Desk, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = desk.houses["alpha"]

    class PowerCutError(BaseException):
        """Unlike an error, it is not survived."""

    def cut(*_: object, **__: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        if moment == "after reserve":
            patch.setattr(alpha.state, "personal", cut)
        else:
            patch.setattr(alpha.gate, "commit", cut)
        with pytest.raises(PowerCutError):
            desk.open()
    alpha.restart()
    if moment == "after reserve":
        assert kinds(alpha)[-3:] == ["Reserve", "Abort", "Dataset"]
    else:
        assert kinds(alpha)[-3:] == ["Reserve", "Commit", "Dataset"]
        desk.open(desk.announcement(attempt=2))
        assert alpha.trained == [1]
        assert alpha.frames(Step.KEYS)


def test_training_that_fails_is_spent_and_said(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    alpha.hold = Train
    desk.open()
    sent = alpha.handle(TrainingFailed(desk.trial.plan_hash, 1, "out of memory on patient 7"))
    assert [event.frame.step for event in sent] == [Step.ABORT]
    assert b"patient" not in sent[0].frame.body
    assert kinds(alpha)[-2:] == ["Reserve", "Abort"]
    assert alpha.gate.unresolved is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_a_training_that_failed(desk: Desk, bad: float) -> None:
    alpha = desk.houses["alpha"]
    alpha.update = np.zeros(desk.layout.shared_size)
    alpha.update[-1] = bad
    desk.open()
    assert alpha.trained == [1]
    assert not alpha.frames(Step.KEYS)
    assert kinds(alpha)[-2:] == ["Reserve", "Abort"]
    assert alpha.gate.unresolved is None


def test_rounds_without_release_are_limited(make_desk: Make) -> None:
    desk = make_desk()
    alpha = desk.houses["alpha"]
    alpha.die()
    alpha.policy = desk.trial.policy(rounds_without_release=2)
    alpha.start()
    desk.offer()
    for _ in range(2):
        desk.open()
        outcome = desk.lose()
        for house in desk.houses.values():
            house.handle(OutcomeEvent(outcome))
    desk.open()
    assert alpha.trained == [1, 2]
    assert desk.houses["beta"].trained == [1, 2, 3]
    assert kinds(alpha).count("Reserve") == 2
    last = LastWord.decode(alpha.frames(Step.ABORT)[-1].body)
    assert last.reason == "declined"


def test_a_late_result_of_a_lost_round_is_dropped(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    alpha.hold = Train
    desk.open()
    train = next(effect for effect in alpha.effects if isinstance(effect, Train))
    outcome = desk.lose()
    alpha.handle(OutcomeEvent(outcome))
    assert kinds(alpha)[-2:] == ["Reserve", "Abort"]
    alpha.handle(alpha.trained_event(train))
    assert kinds(alpha)[-2:] == ["Reserve", "Abort"]
    assert alpha.state.update(desk.trial.plan_hash, 1, 1) is None


def test_a_stopped_job_ends_in_the_ledger_and_is_never_charged_again(desk: Desk) -> None:
    desk.run()
    alpha = desk.houses["alpha"]
    desk.open()
    alpha.handle(JobEnded(desk.trial.plan_hash, "stopped by the operator", completed=False))
    assert kinds(alpha)[-4:] == ["Reserve", "Commit", "Abort", "Abort"]
    assert alpha.ready.plan == b""
    assert alpha.handle(desk.announce_event("alpha")) == []
    ended = [leaf for leaf in leaves(alpha) if isinstance(leaf, Abort)]
    assert [leaf.ends_job for leaf in ended] == [False, True]


def test_an_update_out_of_range_is_clipped_and_summed(desk: Desk) -> None:
    alpha = desk.houses["alpha"]
    size = desk.layout.shared_size
    wild = np.zeros(size)
    wild[:4] = (0, 1e300, -1e300, 4096)
    alpha.update = wild
    desk.run()
    q = desk.published.words32[:4]
    others = sum(round(0.01 * (1 + i) * 2**20) for i in (1, 2, 3))
    assert [int(v) - others for v in q] == pytest.approx([0, 2**20, -(2**20), 2**20], abs=2)


def test_the_ledger_of_a_whole_job_holds_what_was_released(make_desk: Make) -> None:
    desk = make_desk(rounds=2)
    desk.offer()
    desk.run()
    desk.run()
    alpha = desk.houses["alpha"]
    alpha.handle(OutcomeEvent(desk.outcomes[2]))
    found = leaves(alpha)
    assert [type(leaf) for leaf in found if not isinstance(leaf, Dataset)][2:] == [Reserve, Commit, Release] * 2
    assert isinstance(found[1], Plan)
    releases = [leaf for leaf in found if isinstance(leaf, Release)]
    assert [leaf.sum for leaf in releases] == [desk.outcomes[1].sum, desk.outcomes[2].sum]
    assert replace(releases[0], round=2).model != releases[1].model
    assert any(isinstance(leaf, Commit) for leaf in found)
