"""A linear model shows the coordinator features of who is routed, so that every hospital's policy has to allow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from silo_harness import NAMES, Desk, House
from silo_world import World
from test_stages_with_coordinator import FIT, world_of

from aggregator.events import ReleaseOrdered, Stamp
from aggregator.job import Room
from aggregator.status import status_of
from feddrm.contract.errors import FeddrmError, VerificationError
from feddrm.contract.plan import Plan
from feddrm.contract.policy import Policy
from feddrm.contract.release import required_signatures, verify_release
from feddrm.contract.signed import Signed
from privacy.leaves import Reserve
from silo.permission import unserved

LINEAR: dict[str, Any] = {
    "rounds": 0,
    "model": {"kind": "linear"},
    "routing_fit": FIT,
    "personal_head": None,
    "evaluation": None,
}


def allow(house: House, *, linear: bool) -> None:
    house.policy = Policy.model_validate(
        {
            **house.policy.model_dump(),
            "jobs": {**house.policy.jobs.model_dump(), "models": ["mlp", "linear"]},
            "queries": {"serve": True, "linear": linear},
        }
    )


def release_of(world: World) -> Signed:
    phase = world.job.phase
    return Signed(phase.statement, tuple(phase.signatures.values()))


def test_a_linear_job_that_one_hospital_does_not_allow_charges_nobody(make_desk: Callable[..., Desk]) -> None:
    """It could not be released, so that no round of it begins; the operator sees whom it waits for, and no reason."""
    world = world_of(make_desk, 5, **LINEAR)
    for name, house in world.houses.items():
        allow(house, linear=name != NAMES[-1])
    world.run()
    assert world.job.outcomes == []
    for house in world.houses.values():
        assert house.trained == []
        assert not [record for record in house.ledger.leaves() if isinstance(record.leaf, Reserve)]
    room = Room(Stamp(world.now, b""), world.trial.round_key, world.coordinator.presences)
    detail = status_of(world.coordinator, room, {}).detail
    assert "4 silos must sign its release" in detail
    assert detail.endswith(f"waiting for {NAMES[-1]}")
    assert "linear" not in detail


def test_three_of_four_hospitals_release_no_linear_model(make_desk: Callable[..., Desk]) -> None:
    world = world_of(make_desk, 5, **LINEAR)
    for house in world.houses.values():
        allow(house, linear=True)
    world.run(until=lambda: len(getattr(world.job.phase, "signatures", ())) == 3)
    assert required_signatures(world.trial.plan) == 4 > world.trial.plan.secure_aggregation.threshold == 3
    # Neither an honest coordinator publishes it, nor does a querier accept it of a dishonest one.
    (release,) = world.coordinator.releases.candidates
    with pytest.raises(FeddrmError, match="has 3 of 4 signatures"):
        world.coordinator.admit(ReleaseOrdered(release), world.now)
    with pytest.raises(VerificationError, match="signed by 3 silos of the roster; the plan demands 4"):
        verify_release(release_of(world), plan=world.trial.signed_plan.signed, roster=world.trial.roster)


def test_a_network_of_the_same_job_needs_the_threshold_only(make_desk: Callable[..., Desk]) -> None:
    world = world_of(make_desk, 5, rounds=1, routing_fit=FIT, personal_head=None, evaluation=None)
    house = world.houses[NAMES[-1]]
    house.policy = world.trial.policy(job_epsilon=0.01)
    world.run()
    assert len(world.job.phase.signatures) == 3
    verify_release(release_of(world), plan=world.trial.signed_plan.signed, roster=world.trial.roster)


def test_once_all_four_allow_it_a_linear_model_is_released(make_desk: Callable[..., Desk]) -> None:
    world = world_of(make_desk, 5, **LINEAR)
    for house in world.houses.values():
        allow(house, linear=True)
    world.run()
    signed = release_of(world)
    assert verify_release(signed, plan=world.trial.signed_plan.signed, roster=world.trial.roster).signatures == 4


@pytest.mark.parametrize(("kind", "linear", "answers"), [("linear", True, 1), ("linear", False, 0), ("mlp", False, 1)])
def test_a_hospital_asks_its_policy_again_before_every_answer(
    make_desk: Callable[..., Desk], kind: str, linear: bool, answers: bool
) -> None:
    model = {"kind": kind} if kind == "linear" else {"kind": kind, "hidden": [3]}
    desk = make_desk(model=model)
    house = desk.houses[NAMES[0]]
    allow(house, linear=linear)
    plan: Plan = desk.trial.plan
    assert (unserved(lambda: house.policy, plan) == "") == answers
    assert unserved(lambda: house.policy, None) == ""
    house.policy = Policy.model_validate({**house.policy.model_dump(), "queries": {"linear": True}})
    assert "queries.serve" in unserved(lambda: house.policy, plan)
