"""A session against a coordinator that lies, repeats itself, or comes back after this silo's process died."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from silo_harness import NAMES, Desk, House

from feddrm.contract.messages import AbortRequest, AckEvent, OutcomeEvent, Publish, StepFrames
from feddrm.method.update import model_hash
from secagg.aborts import abort_frame
from secagg.bodies import Abort
from secagg.evidence import judge
from secagg.wire import Frame, Step
from silo.effects import Send, Train, Upload

STEPS = (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY)
ANSWER = {s: Step(s + 1) for s in STEPS}


def upto(desk: Desk, step: Step) -> None:
    """An honest session up to the moment at which the frames of `step` are due at the members."""
    desk.open()
    for earlier in STEPS[: STEPS.index(step)]:
        desk.advance(earlier)


def last_words(house: House) -> list[Abort]:
    return [Abort.decode(frame.body) for frame in house.frames(Step.ABORT)]


@pytest.mark.parametrize("step", STEPS)
def test_the_same_request_gets_the_same_answer_and_a_different_one_the_last_word(desk: Desk, step: Step) -> None:
    upto(desk, step)
    event = desk.request(step)["alpha"]
    alpha = desk.houses["alpha"]
    first = alpha.handle(event)
    assert first[-1].frame.step == ANSWER[step]
    shuffled = replace(event, frames=tuple(reversed(event.frames)))
    assert alpha.handle(shuffled) == first
    different = replace(event, frames=event.frames[:-1])
    sent = alpha.handle(different)
    last = Abort.decode(sent[-1].frame.body)
    assert last.blamed == ""
    assert last.released == (step == Step.CONSISTENCY)
    # Dead: not even the first request is answered now, beyond what was answered already.
    for later in STEPS[STEPS.index(step) + 1 :]:
        assert alpha.handle(StepFrames(event.session, int(later), event.frames)) == []


@pytest.mark.parametrize("step", STEPS)
def test_a_restart_kills_the_session(desk: Desk, step: Step) -> None:
    upto(desk, step)
    event = desk.request(step)["alpha"]
    alpha = desk.houses["alpha"]
    alpha.restart()
    assert alpha.handle(event) == []
    sent = alpha.handle(desk.announce_event("alpha"))
    assert Abort.decode(sent[-1].frame.body).announcement == desk.announcement_hash
    sent = alpha.handle(AbortRequest(desk.announcement_hash, "gone"))
    assert not Abort.decode(sent[-1].frame.body).released
    assert alpha.handle(event) == []


def test_a_restart_after_unmasking_says_that_shares_were_released(desk: Desk) -> None:
    upto(desk, Step.CONSISTENCY)
    desk.advance(Step.CONSISTENCY)
    alpha = desk.houses["alpha"]
    assert alpha.frames(Step.UNMASK)
    alpha.restart()
    sent = alpha.handle(AbortRequest(desk.announcement_hash, "again"))
    assert Abort.decode(sent[-1].frame.body).released
    # And nothing makes it mask that update again, not even everybody else's statements.
    certificate = statements(desk, NAMES)
    desk.open(desk.announcement(attempt=2), certificate)
    assert not alpha.frames(Step.KEYS)
    assert not alpha.frames(Step.MASKED)


def statements(desk: Desk, names: tuple[str, ...], *, released: bool = False, other: bytes = b"") -> tuple[Frame, ...]:
    return tuple(
        abort_frame(
            announcement=other or desk.announcement_hash,
            me=name,
            signer=desk.trial.keys[name].identity,
            released=released,
            reason="asked",
        )
        for name in names
    )


BAD_CERTIFICATES: dict[str, Callable[[Desk], tuple[Frame, ...]]] = {
    "none": lambda desk: (),
    "too few": lambda desk: statements(desk, NAMES[:2]),
    "one silo several times": lambda desk: statements(desk, (NAMES[1],) * 4),
    "released": lambda desk: statements(desk, NAMES, released=True),
    "of another session": lambda desk: statements(desk, NAMES, other=bytes(32)),
    "forged": lambda desk: tuple(replace(f, signature=bytes(64)) for f in statements(desk, NAMES)),
}


@pytest.mark.parametrize("kind", BAD_CERTIFICATES)
@pytest.mark.parametrize("restart", [False, True])
def test_an_update_is_not_masked_again_without_a_certificate(desk: Desk, kind: str, restart: bool) -> None:
    upto(desk, Step.MASKED)
    alpha = desk.houses["alpha"]
    assert alpha.frames(Step.MASKED)
    certificate = BAD_CERTIFICATES[kind](desk)
    if restart:
        alpha.restart()
    desk.cohort = NAMES
    announcement = desk.announcement(attempt=2)
    sent = announce_to(desk, "alpha", announcement, certificate)
    assert [event.frame.step for event in sent] == [Step.ABORT]
    assert not Abort.decode(sent[0].frame.body).released


def announce_to(desk: Desk, name: str, announcement: Any, certificate: tuple[Frame, ...]) -> list[Any]:
    from secagg.server import open_session

    _, desk.announce = open_session(announcement, desk.trial.round_key, desk.members)
    return desk.houses[name].handle(desk.announce_event(name, certificate))


@pytest.mark.parametrize("restart", [False, True])
def test_with_a_certificate_the_same_update_is_masked_again_under_fresh_keys(desk: Desk, restart: bool) -> None:
    upto(desk, Step.MASKED)
    alpha = desk.houses["alpha"]
    first_keys, first_mask = alpha.frames(Step.KEYS)[-1], alpha.frames(Step.MASKED)[-1]
    for house in desk.houses.values():
        house.handle(AbortRequest(desk.announcement_hash, "a silo is gone"))
    certificate = tuple(house.frames(Step.ABORT)[-1] for house in desk.houses.values())
    if restart:
        alpha.restart()
    desk.open(desk.announcement(attempt=2), certificate)
    for step in STEPS:
        desk.advance(step)
    desk.publish()
    assert alpha.trained == [1]
    assert alpha.frames(Step.KEYS)[-1].body != first_keys.body
    assert alpha.frames(Step.MASKED)[-1].body != first_mask.body
    assert alpha.ready.model == model_hash(desk.model)
    assert len(desk.published.survivors) == 4


def test_a_retry_before_anybody_masked_needs_no_certificate(desk: Desk) -> None:
    desk.open()
    for house in desk.houses.values():
        house.handle(AbortRequest(desk.announcement_hash, "too few keys"))
    desk.open(desk.announcement(attempt=2))
    for step in STEPS:
        desk.advance(step)
    desk.publish()
    assert {house.ready.model for house in desk.houses.values()} == {model_hash(desk.model)}


def test_an_older_masked_attempt_is_not_forgotten_behind_an_aborted_one(desk: Desk) -> None:
    upto(desk, Step.MASKED)
    alpha = desk.houses["alpha"]
    sent = announce_to(desk, "alpha", desk.announcement(attempt=2), ())
    assert [event.frame.step for event in sent] == [Step.ABORT]
    only_second = statements(desk, NAMES)
    sent = announce_to(desk, "alpha", desk.announcement(attempt=3), only_second)
    assert [event.frame.step for event in sent] == [Step.ABORT]
    assert len(alpha.frames(Step.MASKED)) == 1


@pytest.mark.parametrize("change", ["zero", "shift", "double", "truncate"])
def test_a_forged_sum_is_not_applied(desk: Desk, change: str) -> None:
    upto(desk, Step.CONSISTENCY)
    desk.advance(Step.CONSISTENCY)
    published = desk.server.close()
    data = bytearray(published.frame.attachment)
    match change:
        case "zero":
            data = bytearray(len(data))
        case "shift":
            data[0] ^= 1
        case "double":
            data = bytearray(b"".join((2 * w & 0xFFFFFFFF).to_bytes(4, "little") for w in words(bytes(data))))
        case "truncate":
            del data[-8:]
    alpha = desk.houses["alpha"]
    from feddrm.contract.chunks import blob_hash
    from secagg.bodies import Publish as Body
    from secagg.keys import sign

    body = replace(Body.decode(published.frame.body), sum=blob_hash(bytes(data)))
    frame = sign(Step.PUBLISH, "", body.encode(), desk.trial.round_key)
    desk.trial.sums[body.sum] = bytes(data)
    before = alpha.ready
    sent = alpha.handle(Publish(frame, body.sum))
    assert Abort.decode(sent[-1].frame.body).released
    assert not [event for event in alpha.sent if isinstance(event, AckEvent)]
    assert alpha.ready == before
    assert alpha.state.outcome(desk.trial.plan_hash, 1) is None


def words(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def test_a_silo_that_signed_two_keys_is_blamed_by_name_with_evidence(desk: Desk) -> None:
    desk.open()
    beta = desk.houses["beta"]
    event = desk.request(Step.KEYS)["alpha"]
    alpha = desk.houses["alpha"]
    alpha.handle(event)
    twin = beta.twin_keys(desk.announce_event("beta"))
    changed = tuple(twin if frame.sender == "beta" else frame for frame in event.frames)
    sent = alpha.handle(replace(event, frames=changed))
    last = Abort.decode(sent[-1].frame.body)
    assert last.blamed == "beta"
    assert judge(sent[-1].frame, desk.announce.body, desk.members).guilty == "beta"


def test_a_substituted_key_is_not_blamed_on_the_silo(desk: Desk) -> None:
    desk.open()
    event = desk.request(Step.KEYS)["alpha"]
    alpha = desk.houses["alpha"]
    alpha.handle(event)
    forged = tuple(
        replace(frame, body=frame.body[:-1] + bytes([frame.body[-1] ^ 1])) if frame.sender == "beta" else frame
        for frame in event.frames
    )
    sent = alpha.handle(replace(event, frames=forged))
    assert Abort.decode(sent[-1].frame.body).blamed == ""


def test_requests_for_other_sessions_and_steps_are_ignored(desk: Desk) -> None:
    desk.open()
    alpha = desk.houses["alpha"]
    event = desk.request(Step.KEYS)["alpha"]
    assert alpha.handle(replace(event, session=bytes(32))) == []
    assert alpha.handle(replace(event, step=int(Step.SHARES))) == []
    assert alpha.handle(replace(event, step=int(Step.PUBLISH))) == []
    assert alpha.handle(event)[-1].frame.step == Step.SHARES


def test_a_lost_round_after_an_applied_sum_takes_the_model_back(desk: Desk) -> None:
    upto(desk, Step.CONSISTENCY)
    desk.advance(Step.CONSISTENCY)
    alpha = desk.houses["alpha"]
    before = alpha.ready.model
    desk.publish()
    assert alpha.ready.model != before
    desk.round -= 1
    outcome = desk.lose()
    desk.model = desk.first_model
    for house in desk.houses.values():
        house.handle(OutcomeEvent(outcome))
        assert (house.ready.round, house.ready.model) == (1, before)
    desk.run()
    assert alpha.ready.round == 2
    assert alpha.ready.model == model_hash(desk.model)


def test_marks_are_durable_before_anything_leaves(desk: Desk) -> None:
    """The process dies with its effects in hand: nothing left, yet everything counts as if it had."""
    alpha = desk.houses["alpha"]

    def entered() -> Any:
        return alpha.state.entered(desk.trial.plan_hash, 1, 1)[-1]

    alpha.hold = Train
    desk.open()
    assert not entered().masked
    train = next(effect for effect in alpha.effects if isinstance(effect, Train))
    alpha.handle(alpha.trained_event(train))
    desk.collect(Step.KEYS)
    desk.advance(Step.KEYS)
    alpha.hold = Upload
    for name, event in desk.request(Step.SHARES).items():
        desk.houses[name].handle(event)
    assert not alpha.frames(Step.MASKED)
    assert entered().masked
    assert set(entered().members) == set(NAMES)
    upload = next(effect for effect in alpha.effects if isinstance(effect, Upload))
    alpha.hold = None
    alpha.perform([upload])
    desk.collect(Step.MASKED)
    desk.advance(Step.MASKED)
    alpha.hold = Send
    for name, event in desk.request(Step.CONSISTENCY).items():
        desk.houses[name].handle(event)
    assert not alpha.frames(Step.UNMASK)
    assert entered().released
