"""The negative vectors as another implementation meets them: from the files alone to the verdict of each."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vectors_replay import STEPS, Frames, Json, Replay, announcement_of, frame_of

from secagg.aborts import abort_certificate_valid
from secagg.errors import MisuseError, ProtocolViolation, Rejected, WireError
from secagg.evidence import judge
from secagg.exhibits import decode_exhibit
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
    abort = state.abort("refused", caught.value.peer, caught.value.evidence)
    assert abort == frame_of(case["abort"])
    assert judge(abort, session.sent[Step.ANNOUNCE][""].body, session.members).guilty == case["guilty"]
    # Whom a silo blames by name it can convict.
    assert case["guilty"] == case["blamed"]


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
    verdict = judge(bytes.fromhex(case["evidence"]), session.sent[Step.ANNOUNCE][""].body, session.members)
    assert verdict.guilty == case["guilty"] == case["blamed"]
    assert caught.value.peer == case["frame"]["sender"]
    assert state.missing == missing
    for frame in session.sent[step].values():
        state.receive(frame)
    following = state.close()
    if step == Step.UNMASK:
        session.keep(following.frame)


@pytest.mark.parametrize(("base", "case"), cases("negative-evidence.json"))
def test_a_judge_finds_guilty_whom_the_file_says_and_nobody_else(base: str, case: Json) -> None:
    session, evidence = Replay(load(base)), bytes.fromhex(case["evidence"])
    announce = session.sent[Step.ANNOUNCE][""].body
    assert judge(evidence, announce, session.members).guilty == case["guilty"]
    abort = replace(frame_of(case["abort"]), attachment=evidence)
    assert judge(abort, announce, session.members).guilty == case["guilty_by_abort"]
    # The accuser of one who is not guilty may be guilty of that, the accused never.
    assert case["guilty"] in ("", "silo-1")
    assert case["guilty_by_abort"] in ((case["guilty"],) if case["guilty"] else ("", "silo-0"))
    later = announcement_of(session.session["announcement"] | {"attempt": 2}).encode()
    assert judge(evidence, later, session.members).guilty == ""


def test_evidence_of_every_kind_convicts_and_fails_to() -> None:
    verdicts: dict[str, set[str]] = {}
    for case in load("negative-evidence.json")["cases"]:
        try:
            kind = type(decode_exhibit(bytes.fromhex(case["evidence"]))).__name__
        except WireError:
            kind = "malformed"
        verdicts.setdefault(kind, set()).add(case["guilty"])
    convicting = ("WrongFrame", "Conflict", "Complaint", "WrongOpening", "WrongSecret")
    assert verdicts == {kind: {"", "silo-1"} for kind in convicting} | {"Loose": {""}, "malformed": {""}}


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
    assert verified.sum.hex() == session.values["sum"]["blake3"]


def test_every_step_has_faults_of_both_parties() -> None:
    silo = Counter((case["step"], case["blamed"]) for case in load("negative-silo.json")["cases"])
    assert {step for step, blamed in silo if blamed == ""} == {step.name for step in Step} - {"UNMASK", "ABORT"}
    assert {step for step, blamed in silo if blamed == "silo-1"} == {"KEYS", "SHARES", "MASKED", "CONSISTENCY"}
    coordinator = Counter(case["step"] for case in load("negative-coordinator.json")["cases"])
    assert set(coordinator) == {step.name for step in STEPS}
    assert min(coordinator.values()) >= 16
    assert sum(silo.values()) >= 120
