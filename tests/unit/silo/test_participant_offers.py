"""What an offer of a job, and the answer to it, may say of a hospital: nothing (design 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from silo_harness import NOW, Desk, House

from feddrm.contract.charge import charge
from feddrm.contract.errors import InputError
from feddrm.contract.messages import DeclineReason, JobEnded, JobOffer, OutcomeEvent, PlanAnswer, Ready
from feddrm.contract.policy import Policy
from feddrm.contract.signed_plan import SignedPlan, sign_plan
from secagg.bodies import Abort
from secagg.wire import Step
from silo.effects import Connected, DataRefused, LoadData, Train, TrainingFailed
from silo.slots import slot_end_ms

Make = Callable[..., Desk]


def kinds(house: House) -> list[str]:
    return [type(record.leaf).__name__ for record in house.ledger.leaves()]


def another(desk: Desk, name: str) -> SignedPlan:
    return sign_plan(desk.trial.plan.model_copy(update={"name": name}), desk.trial.operator)


def declined(plan: bytes) -> PlanAnswer:
    return PlanAnswer(plan, accepted=False, reason=DeclineReason.POLICY)


@pytest.mark.parametrize("change", [{"public_size": 101}, {"patient": "visit"}])
@pytest.mark.parametrize("forgotten", [False, True])
def test_the_patient_column_and_the_public_size_are_fixed_for_life(
    desk: Desk, change: dict[str, object], forgotten: bool
) -> None:
    """Not even by deleting agent.db: the ledger holds them, and cannot be begun anew."""
    alpha = desk.houses["alpha"]
    alpha.die()
    if forgotten:
        (alpha.directory / "agent.db").unlink()
    for name, value in change.items():
        setattr(alpha, name, value)
    alpha.start()
    count = kinds(alpha).count("Dataset")
    sent = alpha.handle(JobOffer(desk.trial.signed_plan.signed))
    assert sent == [PlanAnswer(desk.trial.plan_hash, accepted=False, reason=DeclineReason.POLICY)]
    desk.open()
    assert alpha.trained == []
    assert kinds(alpha).count("Dataset") == count
    # And if the file changes between the question and the reading of the records:
    alpha.patient, alpha.public_size = "id", 100
    alpha.handle(replace(alpha.loaded_event(desk.trial.plan_hash), **change))  # type: ignore[arg-type]
    assert kinds(alpha).count("Dataset") == count
    assert alpha.trained == []


def test_a_plan_with_another_patient_column_is_declined_before_anything_is_read(make_desk: Make) -> None:
    """Or the unit of privacy silently becomes the visit, and a patient with fifty of them pays once."""
    desk = make_desk()
    alpha = desk.houses["alpha"]
    alpha.patient = "person"
    sent = alpha.handle(JobOffer(desk.trial.signed_plan.signed))
    assert sent == [PlanAnswer(desk.trial.plan_hash, accepted=False, reason=DeclineReason.POLICY)]
    assert kinds(alpha) == ["Key"]
    assert not any(isinstance(effect, LoadData) for effect in alpha.effects)


def test_the_allocation_of_a_plan_that_was_never_accepted_is_given_back(make_desk: Make) -> None:
    desk = make_desk()
    alpha = desk.houses["alpha"]
    alpha.hold = LoadData
    alpha.handle(JobOffer(desk.trial.signed_plan.signed))
    alpha.handle(DataRefused(desk.trial.plan_hash, "no table"))
    assert alpha.gate.spent_for_life().epsilon > 0
    alpha.restart()
    second = another(desk, "second")
    alpha.handle(JobOffer(second.signed))
    assert kinds(alpha) == ["Key", "Plan", "Abort", "Plan"]
    alpha.handle(JobEnded(second.hash, "stopped", completed=False))
    assert kinds(alpha)[-1] == "Abort"
    assert alpha.gate.spent_for_life().epsilon == 0
    # What was read for it meanwhile is not accepted any more.
    alpha.handle(alpha.loaded_event(second.hash))
    assert alpha.state.active_job() is None


def test_a_plan_over_the_budget_is_declined_without_reading_a_record(make_desk: Make) -> None:
    """Whether a plan's categories fit the records would otherwise be an exact and free question about them."""
    desk = make_desk()
    alpha = desk.houses["alpha"]
    alpha.policy = desk.trial.policy(life_epsilon=charge(desk.trial.plan).epsilon)
    assert alpha.handle(JobOffer(desk.trial.signed_plan.signed))[0].accepted
    alpha.handle(JobEnded(desk.trial.plan_hash, "", completed=True))
    size, before = alpha.ledger.size, len(alpha.effects)
    for number in range(3):
        probe = another(desk, f"probe-{number}")
        sent = alpha.handle(JobOffer(probe.signed))
        assert sent == [PlanAnswer(probe.hash, accepted=False, reason=DeclineReason.POLICY)]
    assert not any(isinstance(effect, LoadData) for effect in alpha.effects[before:])
    assert alpha.ledger.size == size


REASONS = ("policy", "budget", "data", "ended", "patient", "policy is malformed", "internal error")


@pytest.mark.parametrize("kind", REASONS)
def test_every_reason_after_the_roster_looks_the_same(make_desk: Make, kind: str) -> None:
    desk = make_desk()
    alpha = desk.houses["alpha"]
    offer = JobOffer(desk.trial.signed_plan.signed)
    match kind:
        case "policy":
            alpha.policy = desk.trial.policy(job_delta=0.0)
        case "budget":
            alpha.policy = desk.trial.policy(life_delta=desk.trial.plan.privacy.delta)
            alpha.handle(JobOffer(another(desk, "before").signed))
            alpha.handle(JobEnded(alpha.ready.plan, "", completed=True))
        case "data" | "internal error":
            alpha.hold = LoadData
        case "ended":
            alpha.handle(offer)
            alpha.handle(JobEnded(desk.trial.plan_hash, "", completed=True))
        case "patient":
            alpha.patient = "visit"
        case "policy is malformed":
            unreadable(alpha)
    sent = alpha.handle(offer)
    if kind == "data":
        sent = alpha.handle(DataRefused(desk.trial.plan_hash, "no table"))
    elif kind == "internal error":
        alpha.expects_internal = True
        sent = alpha.handle(replace(alpha.loaded_event(desk.trial.plan_hash), commitment=b"short"))
        assert len(alpha.internal) == 1
    assert sent == [declined(desk.trial.plan_hash)]
    assert alpha.state.active_job() is None


def unreadable(house: House) -> None:
    def read() -> Policy:
        raise InputError("policy.toml is malformed.")

    object.__setattr__(house.context, "read_policy", read)


REVOCATIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "operator": lambda policy: policy["jobs"].update(operators=()),
    "model": lambda policy: policy["jobs"].update(models=()),
    "cohort": lambda policy: policy["jobs"].update(smallest_cohort=100),
    "colluders": lambda policy: policy["jobs"].update(colluders=50),
    "delta": lambda policy: policy["budget"].update(job_delta=0.0),
    "epsilon": lambda policy: policy["budget"].update(job_epsilon=0.1),
    "rounds": lambda policy: policy["budget"].update(rounds_without_release=0),
}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("kind", [*REVOCATIONS, "malformed", "roster expired"])
def test_a_permission_taken_back_ends_training_at_the_next_round(desk: Desk, kind: str, restart: bool) -> None:
    desk.run()
    alpha = desk.houses["alpha"]
    now = NOW
    if kind in REVOCATIONS:
        document = alpha.policy.model_dump()
        REVOCATIONS[kind](document)
        alpha.policy = Policy.model_validate(document)
    elif kind == "roster expired":
        now = alpha.trial.roster.expires_ms
    if restart and kind in REVOCATIONS:
        alpha.restart()
        assert kinds(alpha).count("Dataset") == 1, "nothing is read for a job that is not allowed"
    if kind == "malformed":
        unreadable(alpha)
    size = alpha.ledger.size
    announcement = replace(desk.announcement(), deadline_ms=now + 60_000)
    from secagg.server import open_session

    _, desk.announce = open_session(announcement, desk.trial.round_key, desk.members)
    desk.cohort = announcement.cohort
    sent = alpha.handle(desk.announce_event("alpha"), now)
    assert alpha.trained == [1]
    assert "Reserve" not in kinds(alpha)[size:]
    last, answer = sent
    assert Abort.decode(last.frame.body).reason == "announcement refused"
    assert answer == declined(desk.trial.plan_hash)
    # And asked again, it says no.
    if kind != "roster expired":
        assert alpha.handle(JobOffer(desk.trial.signed_plan.signed)) == [declined(desk.trial.plan_hash)]


def test_a_lowered_cap_counts_at_the_next_charge(desk: Desk) -> None:
    """The gate has the caps of now, not those of when the agent started."""
    alpha = desk.houses["alpha"]
    alpha.policy = desk.trial.policy(rounds_without_release=1)
    for number in (1, 2):
        desk.open()
        outcome = desk.lose()
        for house in desk.houses.values():
            house.handle(OutcomeEvent(outcome))
        assert alpha.trained == [1]
        assert desk.houses["beta"].trained == list(range(1, number + 1))


def test_slots_are_powers_of_two_of_the_wait() -> None:
    found = {slot_end_ms(NOW, NOW + t, 100, 10**6) - NOW for t in range(6401)}
    assert found == {100, 200, 400, 800, 1600, 3200, 6400}
    assert all(slot_end_ms(NOW, NOW + t, 100, 10**6) >= NOW + t for t in range(0, 6401, 7))
    # The last slot ends while somebody still waits, and an answer that is late for all of them leaves at once.
    assert slot_end_ms(NOW, NOW + 700, 100, 750) == NOW + 750
    assert slot_end_ms(NOW, NOW + 800, 100, 750) == NOW + 800
    assert slot_end_ms(NOW, NOW + 3, 0, 750) == NOW + 3


def accept(house: House, loaded_after: int) -> None:
    house.hold = LoadData
    assert house.handle(JobOffer(house.trial.signed_plan.signed)) == []
    assert house.handle(house.loaded_event(house.trial.plan_hash), NOW + loaded_after) == []


@pytest.mark.parametrize("loaded_after", [3, 130, 499])
def test_an_answer_does_not_tell_how_long_the_records_took(make_desk: Make, loaded_after: int) -> None:
    desk = make_desk(slot_ms=500)
    alpha = desk.houses["alpha"]
    accept(alpha, loaded_after)
    # Neither does what a coordinator gets that breaks the stream or asks again meanwhile.
    sent = alpha.handle(Connected(), NOW + 499)
    assert [event.plan for event in sent if isinstance(event, Ready)] == [b""]
    assert alpha.handle(JobOffer(desk.trial.signed_plan.signed), NOW + 499) == []
    assert alpha.participant.due_ms == NOW + 500
    alpha.perform(alpha.participant.tick(NOW + 500))
    answer, ready = alpha.sent[-2:]
    assert answer == PlanAnswer(desk.trial.plan_hash, accepted=True)
    assert ready.plan == desk.trial.plan_hash
    assert alpha.participant.due_ms is None


def test_a_refusal_leaves_at_the_end_of_a_slot_too(make_desk: Make) -> None:
    desk = make_desk(slot_ms=500)
    alpha = desk.houses["alpha"]
    alpha.hold = LoadData
    alpha.handle(JobOffer(desk.trial.signed_plan.signed))
    assert alpha.handle(DataRefused(desk.trial.plan_hash, "no table"), NOW + 700) == []
    assert alpha.participant.due_ms == NOW + 1000


def training(make_desk: Make) -> tuple[Desk, House, Train]:
    desk = make_desk(slot_ms=500)
    for house in desk.houses.values():
        house.handle(JobOffer(desk.trial.signed_plan.signed))
        house.perform(house.participant.tick(NOW + 500))
    alpha = desk.houses["alpha"]
    alpha.hold = Train
    desk.open()
    return desk, alpha, next(effect for effect in alpha.effects if isinstance(effect, Train))


@pytest.mark.parametrize("fails", [False, True])
def test_after_training_the_next_message_leaves_at_the_end_of_a_slot(make_desk: Make, fails: bool) -> None:
    desk, alpha, train = training(make_desk)
    failed = TrainingFailed(desk.trial.plan_hash, 1, "out of memory")
    alpha.handle(failed if fails else alpha.trained_event(train), NOW + 630)
    for now in (NOW + 630, NOW + 999):
        assert not alpha.frames(Step.KEYS)
        assert not alpha.frames(Step.ABORT)
        assert alpha.participant.due_ms == NOW + 1000
        alpha.perform(alpha.participant.tick(now))
    alpha.perform(alpha.participant.tick(NOW + 1000))
    assert bool(alpha.frames(Step.ABORT)) == fails
    assert bool(alpha.frames(Step.KEYS)) != fails
    assert alpha.participant.due_ms is None


def test_announcing_again_does_not_measure_the_training_more_finely(make_desk: Make) -> None:
    desk, alpha, train = training(make_desk)
    desk.open(desk.announcement(attempt=2))
    alpha.handle(desk.announce_event("alpha"), NOW + 600)
    alpha.handle(alpha.trained_event(train), NOW + 630)
    _, desk.announce = (None, desk.announce)
    assert alpha.participant.due_ms == NOW + 1000
