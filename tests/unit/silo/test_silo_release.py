"""A release statement is signed only when it is byte for byte this silo's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from silo_harness import NAMES, Desk

from feddrm.contract.messages import OutcomeEvent, ReleaseProposal, ReleaseSignature
from feddrm.contract.release import Statement, make_statement, release_hash, signing_silos, verify_release
from feddrm.contract.signed import Signature, Signed
from feddrm.method.update import head_hash, trunk_hash
from silo.effects import ReleaseSigned


@pytest.fixture
def finished(make_desk: Callable[..., Desk]) -> Desk:
    desk = make_desk(rounds=2)
    desk.offer()
    for number in (1, 2):
        desk.run()
        for house in desk.houses.values():
            house.handle(OutcomeEvent(desk.outcomes[number]))
    return desk


def statement(desk: Desk, **change: Any) -> bytes:
    honest = make_statement(
        desk.trial.signed_plan,
        trunk=trunk_hash(desk.layout, desk.model),
        head=head_hash(desk.layout, desk.model),
        layout=desk.layout.fingerprint(),
        rounds=2,
    )
    return honest.model_copy(update=change).body()


def test_all_silos_sign_what_they_recomputed(finished: Desk) -> None:
    body = statement(finished)
    signatures: list[Signature] = []
    for house in finished.houses.values():
        sent = house.handle(ReleaseProposal(body))
        assert isinstance(sent[-1], ReleaseSignature)
        signatures += sent[-1].statement.signatures
        assert house.state.last_release() == release_hash(sent[-1].statement)
        assert house.state.release_plan(release_hash(sent[-1].statement)) == finished.trial.plan_hash
    signed = Signed(body, tuple(signatures))
    assert signing_silos(signed, finished.trial.plan, finished.trial.roster) == set(NAMES)
    verify_release(signed, plan=finished.trial.signed_plan.signed, roster=finished.trial.roster)


@pytest.mark.parametrize(
    "change",
    [
        {"trunk": bytes(32)},
        {"head": bytes(32)},
        {"layout": bytes(32)},
        {"plan": bytes(32)},
        {"schema_": bytes(32)},
        {"rounds": 1},
        {"roster_version": 2},
        {"federation": "other"},
        {"silos": tuple(reversed(NAMES))},
    ],
)
def test_a_forged_statement_is_not_signed(finished: Desk, change: dict[str, Any]) -> None:
    alpha = finished.houses["alpha"]
    assert alpha.handle(ReleaseProposal(statement(finished, **change))) == []
    assert alpha.state.last_release() is None
    assert not any(isinstance(effect, ReleaseSigned) for effect in alpha.effects)


def test_bytes_that_mean_the_same_are_not_signed(finished: Desk) -> None:
    body = statement(finished)
    assert Statement.model_validate_json(body + b" ").body() == body
    assert finished.houses["alpha"].handle(ReleaseProposal(body + b" ")) == []


def test_nothing_is_signed_before_the_last_round(desk: Desk) -> None:
    desk.run()
    body = make_statement(
        desk.trial.signed_plan,
        trunk=trunk_hash(desk.layout, desk.model),
        head=head_hash(desk.layout, desk.model),
        layout=desk.layout.fingerprint(),
        rounds=2,
    ).body()
    assert desk.houses["alpha"].handle(ReleaseProposal(body)) == []


def test_a_model_of_lost_rounds_is_not_signed(make_desk: Callable[..., Desk]) -> None:
    """Or a coordinator that loses every round would get an untrained model signed."""
    desk = make_desk(rounds=2)
    desk.offer()
    for _ in range(2):
        desk.open()
        outcome = desk.lose()
        for house in desk.houses.values():
            house.handle(OutcomeEvent(outcome))
    body = statement(desk, rounds=0)
    assert desk.houses["alpha"].handle(ReleaseProposal(body)) == []
    assert desk.houses["alpha"].state.last_release() is None


def test_a_lost_round_is_not_counted(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(rounds=2)
    desk.offer()
    desk.run()
    desk.open()
    outcome = desk.lose()
    for house in desk.houses.values():
        house.handle(OutcomeEvent(outcome))
    alpha = desk.houses["alpha"]
    assert alpha.handle(ReleaseProposal(statement(desk, rounds=2))) == []
    assert isinstance(alpha.handle(ReleaseProposal(statement(desk, rounds=1)))[-1], ReleaseSignature)
