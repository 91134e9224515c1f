"""Negative vectors: a valid prefix, one fault, and the verdict that every implementation must reach."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from vectors_evidence import evidence_cases
from vectors_mutations import CULPRIT, OBSERVER, Fault, Forger
from vectors_negative import server_faults, silo_faults
from vectors_replay import Frames, Json, Replay
from vectors_session import frame_json

from secagg.aborts import abort_certificate_valid
from secagg.bodies import Abort
from secagg.errors import MisuseError, ProtocolViolation, Rejected
from secagg.evidence import judge
from secagg.wire import Frame, Step

FORMAT = "feddrm secagg negative vectors 1"
BASE = "k5-lost-before-masked"
RETRY = "k5-retry"
REASON = "refused"


def silo_case(base: Replay, step: Step, fault: Fault) -> Json:
    """silo-0 answered everything before `step` as the base file has it, and is given these frames: its session dies."""
    honest = base.relayed(step, OBSERVER)
    case: Json = {
        "name": f"{step.name.lower()}/{fault.name}",
        "step": step.name,
        "after_honest": fault.first,
        "request": listed(fault.frames, honest),
        "blamed": fault.blamed,
    }
    if step == Step.ANNOUNCE:
        violation = refusal(lambda: base.join(OBSERVER, fault.frames[0]), fault)
        return case | {"outcome": "does not join", "blamed": violation.peer}
    state, _ = base.silo(OBSERVER, Step.UNMASK if step == Step.PUBLISH else step)
    given: Any = (lambda frames: state.receive(*frames)) if step == Step.PUBLISH else state.receive
    if fault.first:
        given(honest)
    violation = refusal(lambda: given(fault.frames), fault)
    try:
        given(honest)
    except MisuseError:
        abort = state.abort(REASON, violation.peer, violation.evidence)
        guilty = judge(abort, base.sent[Step.ANNOUNCE][""].body, base.members).guilty
        return case | {"outcome": "dead", "abort": frame_json(abort), "guilty": guilty}
    raise AssertionError(f"{fault.name}: the session lives")


def refusal(call: Any, fault: Fault) -> ProtocolViolation:
    """The violation that a call raises, which must be the fault's."""
    try:
        call()
    except ProtocolViolation as violation:
        if violation.peer == fault.blamed and re.search(fault.match, violation.reason):
            return violation
        raise AssertionError(f"{fault.name}: {violation}") from violation
    raise AssertionError(f"{fault.name}: accepted")


def server_case(base: Replay, step: Step, fault: Fault) -> Json:
    """The coordinator collects `step` of the base file: it does not count the frame, and goes on."""
    state = base.coordinator(step)
    honest = base.sent[step][CULPRIT]
    if fault.first:
        state.receive(honest)
    before = state.missing
    try:
        state.receive(fault.frames[0])
    except Rejected as rejected:
        right = bool(rejected.evidence) == bool(fault.blamed) and re.search(fault.match, rejected.reason)
        if not right or rejected.peer != fault.frames[0].sender or state.missing != before:
            raise AssertionError(f"{step.name} {fault.name}: {rejected}") from rejected
        evidence = rejected.evidence
    else:
        raise AssertionError(f"{step.name} {fault.name}: counted")
    for frame in base.sent[step].values():
        state.receive(frame)
    state.close()
    return {
        "name": f"{step.name.lower()}/{fault.name}",
        "step": step.name,
        "after_honest": fault.first,
        "frame": frame_json(fault.frames[0]),
        "outcome": "not counted",
        "blamed": fault.blamed,
        "evidence": evidence.hex(),
        "guilty": judge(evidence, base.sent[Step.ANNOUNCE][""].body, base.members).guilty,
    }


def listed(frames: Frames, honest: Sequence[Frame]) -> list[Any]:
    """A request: honest frames by their sender, all others as they are."""
    return [frame.sender if frame in honest and frame.sender else frame_json(frame) for frame in frames]


def certificates(base: Replay) -> Iterator[tuple[str, list[Frame], bool]]:
    """Aborts of the retry's first session, where three signers are needed: name, frames, whether they are enough."""
    forger = Forger(base)
    aborts = list(base.sent[Step.ABORT].values())
    two, third = aborts[:2], aborts[2]
    body = Abort.decode(third.body)
    blank = hashlib.sha256(b"another announcement").digest()

    def signed(by: str = "", attachment: bytes = b"", **changes: Any) -> Frame:
        return forger.sign(Step.ABORT, body.sender, replace(body, **changes).encode(), attachment, by)

    yield "three-signers", aborts[:3], True
    yield "four-signers-in-another-order", aborts[::-1], True
    yield "two-signers", two, False
    yield "one-signer-twice", [*two, two[0]], False
    yield "a-signer-that-released", [*two, signed(released=True)], False
    yield "of-another-announcement", [*two, signed(announcement=blank)], False
    yield "signed-by-the-round-key", [*two, signed(by="coordinator")], False
    yield "signed-by-another-silo", [*two, signed(by="silo-0")], False
    yield "in-another-name", [*two, forger.sign(Step.ABORT, "silo-3", third.body)], False
    yield "renamed", [*two, replace(third, sender="silo-3")], False
    yield "of-a-stranger", [*two, replace(third, sender="stranger")], False
    yield "under-another-step", [*two, replace(third, step=Step.UNMASK)], False
    yield "other-evidence-than-signed", [*two, replace(third, attachment=b"x")], False
    yield "trailing-byte", [*two, forger.sign(Step.ABORT, third.sender, third.body + b"\0")], False
    yield "a-forgery-beside-three-signers", [*aborts[:3], replace(aborts[3], signature=bytes(64))], True


def certificate_case(base: Replay, name: str, frames: list[Frame], valid: bool) -> Json:
    """Whether the frames are a certificate for the announcement of the first session."""
    body = base.sent[Step.ANNOUNCE][""].body
    try:
        signers = sorted(abort_certificate_valid(frames, announce_body=body, members=base.members))
    except ProtocolViolation:
        signers = []
    if bool(signers) != valid:
        raise AssertionError(f"certificate {name}: {signers}")
    return {"name": name, "frames": [frame_json(frame) for frame in frames], "valid": valid, "signers": signers}


def negative_documents(documents: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    """All negative files, given the session files by name."""
    base, retry = Replay(documents[BASE]), Replay(documents[RETRY])
    head = {"format": FORMAT, "base": f"{BASE}.json", "receiver": OBSERVER}
    cases = [silo_case(base, step, fault) for step, fault in silo_faults(base)]
    yield "negative-silo", head | {"cases": cases}
    cases = [server_case(base, step, fault) for step, fault in server_faults(base)]
    yield "negative-coordinator", head | {"receiver": "coordinator", "cases": cases}
    yield "negative-evidence", head | {"receiver": "judge", "cases": evidence_cases(base, retry)}
    cases = [certificate_case(retry, *case) for case in certificates(retry)]
    yield "negative-certificates", {"format": FORMAT, "base": f"{RETRY}.json", "cases": cases}
