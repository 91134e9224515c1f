"""Only what t silos acknowledged counts as released, and it counts whatever the coordinator says (design 5 and 7)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from silo_harness import NAMES, Desk, House

from feddrm.contract.messages import OutcomeEvent, ReleaseProposal, ReleaseSignature, RoundOutcome
from feddrm.contract.release import make_statement, release_hash
from feddrm.contract.rounds import Lost, sign_lost
from feddrm.method.update import head_hash, model_hash, trunk_hash
from privacy.leaves import Abort, Release
from secagg.bodies import Abort as LastWord
from secagg.wire import Step
from silo.effects import Train
from silo.relay import Released

Make = Callable[..., Desk]


def ends(house: House) -> list[tuple[int, str]]:
    """How the ledger says that rounds ended."""
    found = []
    for record in house.ledger.leaves():
        if isinstance(record.leaf, Release):
            found.append((record.leaf.round, "released"))
        elif isinstance(record.leaf, Abort):
            found.append((record.leaf.round, str(record.leaf.reason)))
    return found


def lost(desk: Desk, number: int) -> RoundOutcome:
    record = Lost(plan=desk.trial.plan_hash, round=number, reason="x")
    return RoundOutcome(number, lost=sign_lost(record, desk.trial.round_key))


def tell(desk: Desk, outcome: RoundOutcome, names: tuple[str, ...] = NAMES) -> None:
    for name in names:
        desk.houses[name].handle(OutcomeEvent(outcome))


def test_a_published_sum_that_is_then_declared_lost_uses_up_the_limit_and_not_the_budget(make_desk: Make) -> None:
    desk = make_desk()
    for house in desk.houses.values():
        house.policy = desk.trial.policy(rounds_without_release=2)
    desk.offer()
    for number in (1, 2):
        before = desk.model
        desk.run()
        desk.model, desk.outcomes[number] = before, lost(desk, number)
        tell(desk, desk.outcomes[number])
    desk.open()
    for house in desk.houses.values():
        assert ends(house) == [(1, "lost"), (2, "lost")]
        assert house.trained == [1, 2]
        assert LastWord.decode(house.frames(Step.ABORT)[-1].body).reason == "declined"


@pytest.mark.parametrize("by", ["announcement", "outcome"])
def test_a_round_is_released_in_the_ledger_once_it_is_certified(desk: Desk, by: str) -> None:
    desk.run()
    alpha = desk.houses["alpha"]
    assert ends(alpha) == []
    for _ in range(2):
        if by == "outcome":
            tell(desk, desk.outcomes[1])
        else:
            desk.open()
            desk.lose()
            desk.round -= 1
    assert ends(alpha)[0] == (1, "released")
    assert ends(alpha).count((1, "released")) == 1


@pytest.mark.parametrize("outcome", ["certified", "lost"])
def test_a_crash_between_the_leaf_and_the_state_is_made_good(
    desk: Desk, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PowerCutError(BaseException):
        pass

    def cut(*_: object) -> None:
        raise PowerCutError

    desk.run()
    alpha = desk.houses["alpha"]
    event = OutcomeEvent(desk.outcomes[1] if outcome == "certified" else lost(desk, 1))
    with monkeypatch.context() as patch:
        patch.setattr(alpha.state, "certify", cut)
        patch.setattr(alpha.state, "resolve", cut)
        with pytest.raises(PowerCutError):
            alpha.handle(event)
    expected = [(1, "released" if outcome == "certified" else "lost")]
    assert ends(alpha) == expected
    alpha.restart()
    alpha.handle(event)
    assert ends(alpha) == expected
    assert alpha.ready.model == model_hash(desk.model if outcome == "certified" else desk.first_model)
    known = alpha.state.outcome(desk.trial.plan_hash, 1)
    assert known is not None
    assert known.certified


@pytest.mark.parametrize("by", ["announcement", "outcome"])
@pytest.mark.parametrize("restart", [False, True])
def test_acks_bring_back_a_round_that_was_declared_lost(desk: Desk, by: str, restart: bool) -> None:
    desk.run()
    alpha = desk.houses["alpha"]
    tell(desk, lost(desk, 1), ("alpha",))
    assert alpha.ready.model == model_hash(desk.first_model)
    if restart:
        alpha.restart()
    if by == "outcome":
        tell(desk, desk.outcomes[1], ("alpha",))
    else:
        # Refused, as alpha cannot start from a model that it does not hold; but it says at once that it holds it now.
        desk.open()
        assert alpha.frames(Step.ABORT)
        desk.round = 1
    assert (alpha.ready.round, alpha.ready.model) == (1, model_hash(desk.model))
    # The ledger said that it was lost, and stays.
    assert ends(alpha) == [(1, "lost")]
    desk.open(desk.announcement(attempt=2))
    assert alpha.frames(Step.KEYS)


def test_what_was_trained_on_top_of_a_false_loss_is_dropped(desk: Desk) -> None:
    honest = desk.model
    desk.run()
    model, certified = desk.model, desk.outcomes[1]
    alpha = desk.houses["alpha"]
    tell(desk, lost(desk, 1))
    desk.model, desk.outcomes[1] = honest, lost(desk, 1)
    desk.open()
    assert alpha.trained == [1, 2]
    desk.advance(Step.KEYS)
    assert alpha.state.update(desk.trial.plan_hash, 1, 2) is not None
    desk.model, desk.outcomes[1] = model, certified
    tell(desk, certified)
    assert alpha.state.update(desk.trial.plan_hash, 1, 2) is None
    assert ends(alpha) == [(1, "lost"), (2, "lost")]
    # The session on the other model is dead, and that update is never masked.
    assert alpha.handle(desk.request(Step.SHARES)["alpha"]) == []
    # It sits this round out and is in the next one.
    desk.open(desk.announcement(attempt=2))
    assert not alpha.frames(Step.KEYS)
    tell(desk, desk.lose())
    desk.run()
    assert alpha.trained == [1, 2, 3]
    assert alpha.ready.model == model_hash(desk.model)


def test_a_certificate_that_never_came_does_not_stop_the_silo(desk: Desk) -> None:
    """Alpha acknowledged round 1 and was away when it was certified and when round 2 was lost."""
    desk.run()
    rest = tuple(name for name in NAMES if name != "alpha")
    desk.open(desk.announcement(cohort=rest))
    tell(desk, desk.lose())
    alpha = desk.houses["alpha"]
    assert ends(alpha) == [(1, "lost")]
    desk.run()
    assert alpha.trained == [1, 3]


def test_a_round_built_on_what_this_silo_holds_certifies_it(desk: Desk) -> None:
    desk.run()
    rest = tuple(name for name in NAMES if name != "alpha")
    desk.run(cohort=rest)
    alpha = desk.houses["alpha"]
    tell(desk, desk.outcomes[2], ("alpha",))
    assert alpha.ready.model == model_hash(desk.model)
    assert ends(alpha) == [(1, "released")]
    desk.run()
    assert alpha.trained == [1, 3]


def statement(desk: Desk, model: object, rounds: int) -> bytes:
    array = np.asarray(model)
    return make_statement(
        desk.trial.signed_plan,
        trunk=trunk_hash(desk.layout, array),
        head=head_hash(desk.layout, array),
        layout=desk.layout.fingerprint(),
        rounds=rounds,
    ).body()


def test_a_release_waits_for_the_certificate_of_the_last_round(make_desk: Make) -> None:
    desk = make_desk(rounds=1)
    desk.offer()
    desk.run()
    alpha = desk.houses["alpha"]
    body = statement(desk, desk.model, 1)
    assert not any(isinstance(event, ReleaseSignature) for event in alpha.handle(ReleaseProposal(body)))
    assert alpha.state.last_release() is None
    # In whichever order the two come.
    assert isinstance(alpha.handle(OutcomeEvent(desk.outcomes[1]))[-1], ReleaseSignature)
    assert isinstance(alpha.handle(ReleaseProposal(body))[-1], ReleaseSignature)


def test_one_plan_has_one_release_and_it_answers_with_its_own_model(make_desk: Make) -> None:
    """The coordinator loses the last round, has that signed, and then shows its certificate."""
    desk = make_desk(rounds=2)
    desk.offer()
    desk.run()
    first = desk.model
    desk.run()
    alpha = desk.houses["alpha"]
    alpha.handle(OutcomeEvent(lost(desk, 2)))
    shorter, longer = statement(desk, first, 1), statement(desk, desk.model, 2)
    signed = alpha.handle(ReleaseProposal(shorter))[-1]
    assert isinstance(signed, ReleaseSignature)
    release = release_hash(signed.statement)
    alpha.handle(OutcomeEvent(desk.outcomes[2]))
    assert alpha.ready.model == model_hash(desk.model)
    for _ in range(2):
        assert alpha.handle(ReleaseProposal(longer)) == []
        alpha.restart()
    models = alpha.state.release_models(release)
    assert models is not None
    assert models[0].tolist() == first.tolist()
    released = Released(alpha.state, 1, "alpha")
    assert released.newest == release
    assert released.plan(release) == desk.trial.plan
    predictor = released.predictor(release)()
    from silo.workshop import make_predictor

    features = np.full((1, desk.trial.plan.schema_.width), 0.5, np.float32)
    expected = make_predictor(desk.trial.plan, first, models[1], 1).predict(features)
    other = make_predictor(desk.trial.plan, desk.model, models[1], 1).predict(features)
    assert np.array_equal(predictor.predict(features).probabilities, expected.probabilities)
    assert not np.array_equal(expected.probabilities, other.probabilities)


def test_after_a_release_of_the_certified_model_nothing_takes_it_back(make_desk: Make) -> None:
    desk = make_desk(rounds=1)
    desk.offer()
    desk.run()
    alpha = desk.houses["alpha"]
    alpha.handle(OutcomeEvent(desk.outcomes[1]))
    assert isinstance(alpha.handle(ReleaseProposal(statement(desk, desk.model, 1)))[-1], ReleaseSignature)
    before = alpha.ready
    alpha.handle(OutcomeEvent(lost(desk, 1)))
    assert alpha.ready == before


# agent.db put back from a copy: it does not know what it masked or released since.


@pytest.fixture
def copied(desk: Desk) -> Desk:
    """Alpha's state from before round 2, its ledger of round 2."""
    desk.run()
    tell(desk, desk.outcomes[1])
    alpha = desk.houses["alpha"]
    alpha.state.forget_deleted()
    copy = (alpha.directory / "agent.db").read_bytes()
    desk.open()
    for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY):
        desk.advance(step)
    alpha.die()
    (alpha.directory / "agent.db").write_bytes(copy)
    for suffix in ("-wal", "-shm"):
        (alpha.directory / f"agent.db{suffix}").unlink(missing_ok=True)
    alpha.start()
    return desk


def test_it_says_nothing_of_a_round_that_it_forgot(copied: Desk) -> None:
    """It released shares in attempt 1 and would state, signed, that it did not."""
    from feddrm.contract.messages import AbortRequest

    alpha = copied.houses["alpha"]
    assert alpha.ready.round == 1
    assert alpha.handle(AbortRequest(copied.announcement_hash, "why not")) == []
    assert alpha.handle(copied.announce_event("alpha")) == []
    copied.open(copied.announcement(attempt=2))
    assert not alpha.frames(Step.KEYS)
    assert not alpha.frames(Step.ABORT)
    assert not any(isinstance(effect, Train) for effect in alpha.effects[-3:])


def test_it_goes_on_when_the_round_is_settled(copied: Desk) -> None:
    alpha = copied.houses["alpha"]
    copied.publish(without=("alpha",))
    alpha.handle(OutcomeEvent(copied.outcomes[2]))
    assert alpha.ready.model == model_hash(copied.model)
    # It cannot know whether it is in the sum.
    assert ends(alpha) == [(1, "released"), (2, "crashed")]
    copied.run()
    assert alpha.trained == [1, 2, 3]
