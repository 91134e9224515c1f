"""Honest rounds: every silo and the coordinator come to the same model, and the ledgers say what happened."""

from __future__ import annotations

import numpy as np
from silo_harness import NAMES, Desk

from feddrm.contract.messages import OutcomeEvent
from feddrm.method.update import model_hash
from privacy.leaves import Commit, Plan, Release, Reserve
from secagg.wire import Step


def kinds(desk: Desk, name: str) -> list[type]:
    return [type(record.leaf) for record in desk.houses[name].ledger.leaves()]


def test_rounds_lead_everybody_to_one_model(desk: Desk) -> None:
    for number in range(1, 3):
        desk.run()
        assert {house.ready.model for house in desk.houses.values()} == {model_hash(desk.model)}
        assert {house.ready.round for house in desk.houses.values()} == {number}
        assert len(desk.outcomes[number].acks) == len(NAMES)
    sum_of_updates = np.rint(sum(0.01 * (1 + i) * 2 for i in range(4)) * 2**20)
    assert abs(int(desk.published.words32[0]) - sum_of_updates) <= len(NAMES)


def test_a_round_leaves_reserve_commit_release(desk: Desk) -> None:
    desk.run()
    expected = [Plan, Reserve, Commit]
    assert [kind for kind in kinds(desk, "alpha") if kind in (Plan, Reserve, Commit, Release)] == expected
    # Published is not released: the leaf waits for t silos' acks, which the next announcement carries at the latest.
    desk.open()
    expected += [Release, Reserve, Commit]
    assert [kind for kind in kinds(desk, "alpha") if kind in (Plan, Reserve, Commit, Release)] == expected


def test_a_dropout_before_masking_is_recovered_and_catches_up(desk: Desk) -> None:
    desk.run()
    desk.open()
    desk.advance(Step.KEYS)
    desk.advance(Step.SHARES, without=("beta",))
    for step in (Step.MASKED, Step.CONSISTENCY):
        desk.advance(step, without=("beta",))
    desk.publish()
    assert desk.published.opened == ("beta",)
    beta = desk.houses["beta"]
    beta.restart()
    beta.handle(OutcomeEvent(desk.outcomes[2]))
    assert beta.ready.round == 2
    assert beta.ready.model == model_hash(desk.model)
    assert beta.gate.unresolved is None
    desk.run()
    assert desk.houses["beta"].ready.round == 3
