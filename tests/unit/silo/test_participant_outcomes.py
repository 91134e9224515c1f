"""Rounds that a silo was not there for: replayed in order, on certificates only (design 5 and 9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from silo_harness import Desk

from feddrm.contract.chunks import blob_hash
from feddrm.contract.messages import AckEvent, OutcomeEvent, Ready, RoundOutcome
from feddrm.contract.rounds import Ack, Lost, sign_ack, sign_lost
from feddrm.method.update import model_hash
from silo.effects import Connected, FetchSum, Log

REST = ("alpha", "delta", "gamma")


@pytest.fixture
def behind(desk: Desk) -> Desk:
    """Beta missed rounds 1 to 3; round 2 was lost."""
    desk.run(cohort=REST)
    desk.open(desk.announcement(cohort=REST))
    outcome = desk.lose()
    for name in REST:
        desk.houses[name].handle(OutcomeEvent(outcome))
    desk.run(cohort=REST)
    return desk


def test_missed_rounds_are_replayed_in_order(behind: Desk) -> None:
    beta = behind.houses["beta"]
    for number in (1, 2, 3):
        sent = beta.handle(OutcomeEvent(behind.outcomes[number]))
        assert [event.round for event in sent if isinstance(event, Ready)] == [number]
    assert beta.ready.model == model_hash(behind.model)
    assert beta.trained == []
    assert beta.state.released(behind.trial.plan_hash) == 2
    behind.run()
    assert beta.trained == [4]
    assert {house.ready.model for house in behind.houses.values()} == {model_hash(behind.model)}


def test_outcomes_out_of_order_change_nothing(behind: Desk) -> None:
    beta = behind.houses["beta"]
    before = beta.ready
    for number in (2, 3):
        assert beta.handle(OutcomeEvent(behind.outcomes[number])) == []
    assert beta.ready == before


def forged(desk: Desk, kind: str) -> RoundOutcome:
    honest = desk.outcomes[1]
    ack = Ack.model_validate_json(honest.acks[0].body)
    identities = [desk.trial.keys[name].identity for name in REST]
    strangers = [Ed25519PrivateKey.generate() for _ in range(4)]

    def made(keys: list[Ed25519PrivateKey], **change: Any) -> RoundOutcome:
        changed = ack.model_copy(update=change)
        return RoundOutcome(1, tuple(sign_ack(changed, key) for key in keys), changed.sum)

    match kind:
        case "too few acks":
            return made(identities[:2])
        case "one silo three times":
            return made(identities[:1] * 3)
        case "strangers":
            return made(strangers)
        case "another plan":
            return made(identities, plan=bytes(32))
        case "a small cohort":
            return made(identities, count=2)
        case "both":
            return replace(honest, lost=sign_lost(Lost(plan=ack.plan, round=1, reason="x"), desk.trial.round_key))
        case "lost by a silo":
            return RoundOutcome(1, lost=sign_lost(Lost(plan=ack.plan, round=1, reason="x"), identities[0]))
        case "lost of another plan":
            return RoundOutcome(1, lost=sign_lost(Lost(plan=bytes(32), round=1, reason="x"), desk.trial.round_key))
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "too few acks",
        "one silo three times",
        "strangers",
        "another plan",
        "a small cohort",
        "both",
        "lost by a silo",
        "lost of another plan",
    ],
)
def test_a_forged_outcome_is_not_applied(behind: Desk, kind: str) -> None:
    beta = behind.houses["beta"]
    before = beta.ready
    assert beta.handle(OutcomeEvent(forged(behind, kind))) == []
    assert not any(isinstance(effect, FetchSum) for effect in beta.effects)
    assert beta.ready == before
    assert beta.state.outcome(behind.trial.plan_hash, 1) is None


def test_bytes_that_are_not_the_acknowledged_sum_are_refused(behind: Desk) -> None:
    beta = behind.houses["beta"]
    outcome = behind.outcomes[1]
    honest = behind.trial.sums[outcome.sum]
    before = beta.ready
    # The last one differs in a tag only, so it would lead to the very same model.
    for other in (bytes(len(honest)), honest[:-8], honest[:-1] + bytes([honest[-1] ^ 1])):
        behind.trial.sums[outcome.sum] = other
        assert beta.handle(OutcomeEvent(outcome)) == []
        assert beta.ready == before
    behind.trial.sums[outcome.sum] = honest
    beta.handle(OutcomeEvent(outcome))
    assert beta.ready.round == 1


def test_a_sum_that_does_not_lead_to_the_acknowledged_model_is_refused(behind: Desk) -> None:
    # t silos sign for a sum with a wrong count: no honest one would, so only their keys together can play this.
    ack = Ack.model_validate_json(behind.outcomes[1].acks[0].body).model_copy(update={"count": 4})
    acks = tuple(sign_ack(ack, behind.trial.keys[name].identity) for name in REST)
    beta = behind.houses["beta"]
    before = beta.ready
    assert beta.handle(OutcomeEvent(RoundOutcome(1, acks, ack.sum))) == []
    assert beta.ready == before
    assert blob_hash(behind.trial.sums[ack.sum]) == ack.sum


def test_an_ack_is_said_again_until_the_round_is_certified(desk: Desk) -> None:
    desk.run()
    alpha = desk.houses["alpha"]
    first = next(
        ack for ack in desk.outcomes[1].acks if ack.signatures[0].key == alpha.trial.keys["alpha"].identity_public
    )
    for restart in (False, True):
        if restart:
            alpha.restart()
        sent = alpha.handle(Connected())
        assert [type(event) for event in sent] == [Ready, AckEvent]
        assert sent[1].ack == first
    alpha.handle(OutcomeEvent(desk.outcomes[1]))
    assert [type(event) for event in alpha.handle(Connected())] == [Ready]


def test_what_t_silos_acknowledged_is_not_lost_any_more_and_overrules_a_loss(desk: Desk) -> None:
    desk.run()
    alpha = desk.houses["alpha"]
    alpha.handle(OutcomeEvent(desk.outcomes[1]))
    lost = sign_lost(Lost(plan=desk.trial.plan_hash, round=1, reason="x"), desk.trial.round_key)
    before = alpha.ready
    assert alpha.handle(OutcomeEvent(RoundOutcome(1, lost=lost))) == []
    assert alpha.ready == before

    beta = desk.houses["beta"]
    beta.handle(OutcomeEvent(RoundOutcome(1, lost=lost)))
    assert beta.ready.round == 1
    assert beta.ready.model == model_hash(desk.first_model)
    # A second loss of the same round is nothing new.
    assert beta.handle(OutcomeEvent(RoundOutcome(1, lost=lost))) == []
    beta.handle(OutcomeEvent(desk.outcomes[1]))
    assert (beta.ready.round, beta.ready.model) == (1, model_hash(desk.model))
    assert beta.handle(OutcomeEvent(RoundOutcome(1, lost=lost))) == []
    assert beta.ready.model == model_hash(desk.model)
    # Both are kept: the round key signed a loss that t silos contradict.
    evidence = beta.state.evidence(desk.trial.plan_hash, 1)
    assert evidence[0] == lost.to_json()
    assert all(ack.to_json() in evidence[1] for ack in desk.outcomes[1].acks)
    assert any(isinstance(effect, Log) and lost.to_json() in effect.text for effect in beta.effects)
