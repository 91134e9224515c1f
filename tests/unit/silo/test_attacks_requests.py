"""A coordinator that shows different silos different things, or one silo two things, against whole silos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import silo_trial
from silo_harness import NAMES, Desk, House
from test_participant_sessions import announce_to

from feddrm.contract.chunks import blob_hash
from feddrm.contract.messages import AckEvent, OutcomeEvent, Publish, StepFrames
from secagg.bodies import Abort
from secagg.bodies import Publish as Body
from secagg.keys import sign
from secagg.wire import Frame, Step
from silo.accusations import cases
from silo.effects import FetchSum

STEPS = (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY)


def upto(desk: Desk, step: Step) -> None:
    """An honest session up to the moment at which the frames of `step` are due at the members."""
    desk.open()
    for earlier in STEPS[: STEPS.index(step)]:
        desk.advance(earlier)


def last_word(house: House) -> Abort:
    return Abort.decode(house.frames(Step.ABORT)[-1].body)


def less(event: Any, *names: str) -> Any:
    return replace(event, frames=tuple(frame for frame in event.frames if frame.sender not in names))


def swapped(event: Any, frame: Frame) -> Any:
    return replace(event, frames=tuple(frame if f.sender == frame.sender else f for f in event.frames))


def test_forked_survivors_in_every_split_open_nothing(desk: Desk) -> None:
    """Some hold gamma for a survivor, others for dropped: no request that can be made of their R4 is answered."""
    upto(desk, Step.MASKED)
    requests = desk.request(Step.MASKED)
    for name, event in requests.items():
        desk.houses[name].handle(event if name in ("alpha", "gamma") else less(event, "gamma"))
    signed = {name: desk.houses[name].frames(Step.CONSISTENCY)[-1] for name in NAMES}
    for name, event in requests.items():
        # One message with both: whose R4 differs from its own ends the session of whoever reads it.
        own = tuple(signed[n] for n in NAMES) if name in ("alpha", "beta") else (signed[name],)
        house = desk.houses[name]
        house.handle(replace(event, step=int(Step.CONSISTENCY), frames=own))
        assert not house.frames(Step.UNMASK)
        assert (last_word(house).blamed, last_word(house).released) == ("", False)


def test_u2_hidden_from_one_silo_ends_before_any_agreement(desk: Desk) -> None:
    upto(desk, Step.SHARES)
    for name, event in desk.request(Step.SHARES).items():
        desk.houses[name].handle(less(event, "gamma") if name == "alpha" else event)
    masked = {name: desk.houses[name].frames(Step.MASKED)[-1] for name in NAMES}
    sid = desk.server.session
    for name in NAMES:
        house = desk.houses[name]
        house.handle(StepFrames(sid, int(Step.MASKED), tuple(masked.values())))
        assert not house.frames(Step.CONSISTENCY)
        assert not last_word(house).released


@pytest.mark.parametrize("how", ["altered", "truncated", "of another recipient", "none"])
def test_shares_changed_on_the_way_are_the_coordinators_fault(desk: Desk, how: str) -> None:
    upto(desk, Step.SHARES)
    requests = desk.request(Step.SHARES)
    event = requests["alpha"]
    frame = next(f for f in event.frames if f.sender == "beta")
    other = next(f for f in requests["gamma"].frames if f.sender == "beta")
    data = {
        "altered": bytes([frame.attachment[0] ^ 1]) + frame.attachment[1:],
        "truncated": frame.attachment[:-1],
        "of another recipient": other.attachment,
        "none": b"",
    }[how]
    alpha = desk.houses["alpha"]
    alpha.handle(swapped(event, replace(frame, attachment=data)))
    assert last_word(alpha).blamed == ""
    assert not alpha.frames(Step.MASKED)
    assert not alpha.state.entered(desk.trial.plan_hash, 1, 1)[-1].masked


@pytest.mark.parametrize("step", STEPS)
def test_a_frame_of_another_session_in_a_second_request_convicts_nobody(desk: Desk, step: Step) -> None:
    """Else the coordinator could make an honest silo sign a false accusation of another honest one."""
    upto(desk, step)
    old = next(frame for frame in desk.request(step)["alpha"].frames if frame.sender == "beta")
    desk.lose()
    for house in desk.houses.values():
        house.handle(OutcomeEvent(desk.outcomes[1]))
    upto(desk, step)
    event = desk.request(step)["alpha"]
    alpha = desk.houses["alpha"]
    alpha.handle(event)
    alpha.handle(swapped(event, old))
    assert (last_word(alpha).blamed, alpha.frames(Step.ABORT)[-1].attachment) == ("", b"")
    assert cases(alpha.state) == ()


def test_a_sum_of_other_survivors_is_not_applied(desk: Desk) -> None:
    """Both signed by the round key: the sum under other names, and the sum of another round under the right ones."""
    desk.run()
    (before,) = set(desk.trial.sums)
    desk.houses["gamma"].restart()
    upto(desk, Step.CONSISTENCY)
    desk.advance(Step.CONSISTENCY)
    published = desk.server.close()
    body = Body.decode(published.frame.body)
    desk.trial.sums[published.sum] = published.frame.attachment
    forged = {"alpha": replace(body, survivors=NAMES[:3]), "beta": replace(body, sum=before)}
    for name, lie in forged.items():
        house = desk.houses[name]
        model = house.ready.model
        house.handle(Publish(sign(Step.PUBLISH, "", lie.encode(), desk.trial.round_key), lie.sum))
        assert (last_word(house).blamed, last_word(house).released) == ("", True)
        assert not [event for event in house.sent if isinstance(event, AckEvent)]
        assert house.ready.model == model


def test_of_two_published_sums_neither_is_fetched_twice(desk: Desk) -> None:
    """A coordinator could otherwise have a silo fetch without end."""
    upto(desk, Step.CONSISTENCY)
    desk.advance(Step.CONSISTENCY)
    alpha = desk.houses["alpha"]
    alpha.hold = FetchSum
    published = desk.server.close()
    event = Publish(published.frame.without_attachment(), published.sum)
    alpha.handle(event)
    alpha.handle(event)
    alpha.handle(replace(event, sum=blob_hash(b"another")))
    assert last_word(alpha).released
    alpha.handle(replace(event, sum=blob_hash(b"a third")))
    assert len([effect for effect in alpha.effects if isinstance(effect, FetchSum)]) == 2


def test_a_retry_that_is_announced_while_a_session_is_open_ends_that_session(desk: Desk) -> None:
    """Or a silo would answer in two sessions at a time."""
    upto(desk, Step.MASKED)
    alpha = desk.houses["alpha"]
    request = desk.request(Step.MASKED)["alpha"]
    sent = announce_to(desk, "alpha", desk.announcement(attempt=2), ())
    assert [event.frame.step for event in sent] == [Step.ABORT]
    assert alpha.handle(request) == []


@pytest.mark.parametrize("lie", [{"threshold": 3}, {"minimum_cohort": 3}, {"threshold": 3, "minimum_cohort": 3}])
def test_a_threshold_lowered_to_one_that_is_sound_is_refused(
    make_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, lie: dict[str, int]
) -> None:
    """The protocol alone would accept it: only the plan that the operator signed says four."""
    document = silo_trial.plan_document

    def four(**training: object) -> dict[str, Any]:
        plan = document(**training)
        return {**plan, "secure_aggregation": {**plan["secure_aggregation"], "threshold": 4, "minimum_cohort": 4}}

    monkeypatch.setattr(silo_trial, "plan_document", four)
    desk = make_desk()
    desk.offer()
    honest = desk.announcement()
    assert (honest.threshold, honest.minimum_cohort) == (4, 4)
    desk.cohort = NAMES
    for cohort in (NAMES, NAMES[:3]) if len(lie) == 2 else (NAMES,):
        sent = announce_to(desk, "alpha", replace(honest, cohort=cohort, **lie), ())
        assert Abort.decode(sent[-1].frame.body).reason == "announcement refused"
    assert desk.houses["alpha"].trained == []
    desk.run()
    assert desk.houses["alpha"].ready.round == 1
