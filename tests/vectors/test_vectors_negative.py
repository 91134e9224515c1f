"""The negative vectors as another implementation meets them: from the files alone to the verdict of each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from vectors_replay import STEPS, Frames, Json, Replay, frame_of

from secagg.aborts import abort_certificate_valid
from secagg.errors import MisuseError, ProtocolViolation, Rejected
from secagg.wire import Step

FROZEN = Path(__file__).resolve().parent / "frozen"


def load(name: str) -> Json:
    document: Json = json.loads((FROZEN / name).read_text())
    return document


def cases(name: str) -> list[Any]:
    document = load(name)
    return [pytest.param(document["base"], case, id=case["name"]) for case in document["cases"]]


def request_of(session: Replay, step: Step, value: list[Any]) -> Frames:
    honest = {frame.sender: frame for frame in session.relayed(step, "silo-0")}
    return tuple(honest[item] if isinstance(item, str) else frame_of(item) for item in value)


@pytest.mark.parametrize(("base", "case"), cases("negative-silo.json"))
def test_a_silo_dies_of_it_and_blames_whom_the_file_says(base: str, case: Json) -> None:
    session, step = Replay(load(base)), Step[case["step"]]
    request = request_of(session, step, case["request"])
    if step == Step.ANNOUNCE:
        with pytest.raises(ProtocolViolation) as refused:
            session.join("silo-0", request[0])
        assert (refused.value.peer, case["outcome"]) == (case["blamed"], "does not join")
        return
    honest = session.relayed(step, "silo-0")
    state, _ = session.silo("silo-0", Step.UNMASK if step == Step.PUBLISH else step)

    def give(frames: Frames) -> None:
        state.receive(*frames) if step == Step.PUBLISH else state.receive(frames)

    if case["after_honest"]:
        give(honest)
    with pytest.raises(ProtocolViolation) as caught:
        give(request)
    assert (caught.value.peer, case["outcome"]) == (case["blamed"], "dead")
    with pytest.raises(MisuseError, match="dead"):
        give(honest)
    assert state.abort("refused", caught.value.peer, caught.value.evidence) == frame_of(case["abort"])


@pytest.mark.parametrize(("base", "case"), cases("negative-coordinator.json"))
def test_the_coordinator_does_not_count_it_and_goes_on(base: str, case: Json) -> None:
    session, step = Replay(load(base)), Step[case["step"]]
    state = session.coordinator(step)
    if case["after_honest"]:
        state.receive(session.sent[step]["silo-1"])
    missing = state.missing
    with pytest.raises(Rejected) as caught:
        state.receive(frame_of(case["frame"]))
    assert caught.value.evidence.hex() == case["evidence"]
    assert bool(case["evidence"]) == bool(case["blamed"])
    assert caught.value.peer == case["frame"]["sender"]
    assert state.missing == missing
    for frame in session.sent[step].values():
        state.receive(frame)
    following = state.close()
    if step == Step.UNMASK:
        session.keep(following.frame)


@pytest.mark.parametrize(("base", "case"), cases("negative-certificates.json"))
def test_a_certificate_is_worth_what_the_file_says(base: str, case: Json) -> None:
    session = Replay(load(base))
    frames = [frame_of(value) for value in case["frames"]]
    body = session.sent[Step.ANNOUNCE][""].body
    if case["valid"]:
        assert sorted(abort_certificate_valid(frames, announce_body=body, members=session.members)) == case["signers"]
    else:
        with pytest.raises(ProtocolViolation):
            abort_certificate_valid(frames, announce_body=body, members=session.members)


def test_the_honest_request_beside_each_fault_is_accepted() -> None:
    """A receiver that refuses everything would pass the tests above."""
    session = Replay(load(load("negative-silo.json")["base"]))
    for step in STEPS[:4]:
        state, _ = session.silo("silo-0", step)
        _, frame = session.answer(state, step, "silo-0", tuple(reversed(session.relayed(step, "silo-0"))))
        session.keep(frame)
    state, _ = session.silo("silo-0", Step.UNMASK)
    verified = state.receive(*session.relayed(Step.PUBLISH, "silo-0"))
    assert verified.sum.hex() == session.values["sum"]["sha256"]


def test_every_step_has_faults_of_both_parties() -> None:
    silo = Counter((case["step"], case["blamed"]) for case in load("negative-silo.json")["cases"])
    assert {step for step, blamed in silo if blamed == ""} == {step.name for step in Step} - {"UNMASK", "ABORT"}
    assert {step for step, blamed in silo if blamed == "silo-1"} == {"KEYS", "SHARES", "MASKED", "CONSISTENCY"}
    coordinator = Counter(case["step"] for case in load("negative-coordinator.json")["cases"])
    assert set(coordinator) == {step.name for step in STEPS}
    assert min(coordinator.values()) >= 16
    assert sum(silo.values()) >= 120
