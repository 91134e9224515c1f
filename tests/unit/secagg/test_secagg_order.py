"""Every pair of a state and a message that is not due in it, at silos and at the coordinator.

Keys and entropy of the harness are deterministic, so a session that ran to its end holds the genuine frames of the very
session that is probed: signatures, members and sid are right, and only the moment is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from secagg_harness import STEPS, Federation, Session

from secagg.bodies import Abort
from secagg.client import KeysReceived, ReadyToMask
from secagg.errors import Failed, MisuseError, ProtocolViolation, Rejected
from secagg.wire import Frame, Step

# What a silo's state is left by. The states between a request and the answer to it take no message at all.
DUE = {
    "AwaitingKeys": Step.KEYS,
    "AwaitingShares": Step.SHARES,
    "AwaitingConsistency": Step.MASKED,
    "AwaitingUnmask": Step.CONSISTENCY,
    "AwaitingSum": Step.PUBLISH,
}
PAIRS = [(state, step) for state, due in DUE.items() for step in Step if step != due]


def whole_session(federation: Federation) -> dict[Step, tuple[Frame, ...]]:
    """The frames of every step, as silo-0 gets them or as they were sent."""
    session = federation.start()
    frames: dict[Step, tuple[Frame, ...]] = {Step.ANNOUNCE: (session.announce,)}
    for step in STEPS:
        session.advance(step)
        if step != Step.UNMASK:
            frames[step] = session.server.outgoing["silo-0"]
    frames[Step.UNMASK] = tuple(session.sent[Step.UNMASK].values())
    frames[Step.PUBLISH] = (session.published.frame,)
    frames[Step.ABORT] = tuple(state.abort("late") for state in session.clients.values())
    return frames


def waiting(federation: Federation, state: str) -> Session:
    """A session in which silo-0 is in that state."""
    due = DUE[state]
    session = federation.start().run(Step.UNMASK if due == Step.PUBLISH else due)
    assert type(session.clients["silo-0"]).__name__ == state
    return session


def give(state: Any, frames: tuple[Frame, ...]) -> Any:
    return state.receive(frames[0] if type(state).__name__ == "AwaitingSum" else frames)


@pytest.mark.parametrize(("state", "step"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_a_silo_dies_of_a_message_that_is_not_due(federation: Federation, state: str, step: Step) -> None:
    frames = whole_session(federation)
    session = waiting(federation, state)
    client = session.clients["silo-0"]
    with pytest.raises(ProtocolViolation) as caught:
        give(client, frames[step])
    # All frames are genuine, so it is the relay's fault, and nothing that a silo could be convicted of.
    assert caught.value.peer == ""
    with pytest.raises(MisuseError, match="dead"):
        give(client, frames[DUE[state]])
    abort = Abort.decode(client.abort("order").body)
    assert abort.released == (state == "AwaitingSum")


@pytest.mark.parametrize(("state", "step"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_a_state_that_was_left_answers_its_own_request_only(federation: Federation, state: str, step: Step) -> None:
    frames = whole_session(federation)
    session = waiting(federation, state)
    client = session.clients["silo-0"]
    first = give(client, frames[DUE[state]])
    assert give(client, frames[DUE[state]]) is first
    with pytest.raises(ProtocolViolation, match="second, different"):
        give(client, frames[step])
    for again in (DUE[state], step):
        with pytest.raises(MisuseError, match="dead"):
            give(client, frames[again])


@pytest.mark.parametrize("step", [step for step in Step if step != Step.ANNOUNCE])
def test_only_an_announcement_opens_a_session(federation: Federation, step: Step) -> None:
    for frame in whole_session(federation)[step]:
        with pytest.raises(ProtocolViolation, match="not an announcement"):
            federation.join("silo-0", frame)


def test_no_message_reaches_the_states_in_which_the_caller_decides() -> None:
    for state in (KeysReceived, ReadyToMask):
        assert not hasattr(state, "receive")


def collecting(federation: Federation, step: Step) -> Session:
    session = federation.start()
    for earlier in STEPS[: STEPS.index(step)]:
        session.advance(earlier)
    assert session.server.step == step
    return session


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("other", list(Step))
def test_the_coordinator_refuses_what_is_not_due_and_is_unharmed(
    federation: Federation, step: Step, other: Step
) -> None:
    if other == step:
        return
    frames = whole_session(federation)[other]
    session = collecting(federation, step)
    for when in ("before", "between"):
        missing = session.server.missing
        for frame in frames:
            with pytest.raises(Rejected) as caught:
                session.server.receive(frame)
            assert caught.value.evidence == b""
        assert session.server.missing == missing
        if when == "before":
            session.server.receive(session.respond(step, "silo-2"))
    for later in STEPS[STEPS.index(step) :]:
        session.advance(later)
    np.testing.assert_array_equal(session.published.words32, federation.total(federation.names)[0])
    session.clients["silo-0"].receive(session.published.frame)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("other", list(Step))
def test_a_step_that_was_closed_takes_nothing(federation: Federation, step: Step, other: Step) -> None:
    frames = whole_session(federation)[other]
    session = collecting(federation, step)
    server = session.server
    session.advance(step)
    for frame in frames:
        with pytest.raises(Rejected, match="after the step was closed"):
            server.receive(frame)
    with pytest.raises(Failed):
        server.close()
