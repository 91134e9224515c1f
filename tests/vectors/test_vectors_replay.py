"""The frozen files as another implementation meets them: they alone are read, and each side is played against them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vectors_replay import STEPS, Json, Replay

from secagg.aborts import abort_certificate_valid
from secagg.bodies import Consistency, Masked
from secagg.errors import ProtocolViolation
from secagg.wire import Step

FROZEN = Path(__file__).resolve().parent / "frozen"


def sessions() -> list[Any]:
    found = []
    for path in sorted(FROZEN.glob("k*.json")):
        document = json.loads(path.read_text())
        found += [pytest.param(document, i, id=f"{path.stem}-{i}") for i in range(len(document["sessions"]))]
    return found


def replay(document: Json, index: int) -> Replay:
    """A session whose long attachments, which files give by their hash, have been made again by their senders."""
    found = Replay(document, index)
    for name in found.announcement.cohort:
        if (Step.MASKED, name) in found.hashes:
            found.silo(name, Step.MASKED)
    return found


@pytest.mark.parametrize(("document", "index"), sessions())
def test_the_coordinator_relays_and_publishes_what_the_file_has(document: Json, index: int) -> None:
    session = replay(document, index)

    def relays(state: Any) -> None:
        if state.step > Step.KEYS:
            for name, frames in state.outgoing.items():
                assert frames == session.relayed(Step(state.step - 1), name)

    last = max(step for step in STEPS if session.sent[step])
    state = session.coordinator(last, relays)
    for frame in session.sent[last].values():
        state.receive(frame)
    if Step.PUBLISH not in {step for step, frames in session.sent.items() if frames}:
        return
    published = state.close()
    session.keep(published.frame)
    expected = session.values["sum"]
    assert published.sum.hex() == expected["blake3"]
    assert list(published.survivors) == expected["survivors"] == session.values["u3"]
    assert list(published.opened) == expected["mask_keys_opened"]
    if "words32" in expected:
        assert published.words32.tolist() == expected["words32"]
        assert published.words64.tolist() == expected["words64"]


@pytest.mark.parametrize(("document", "index"), sessions())
def test_every_silo_sends_what_the_file_has(document: Json, index: int) -> None:
    session = replay(document, index)
    if (Step.PUBLISH, "") in session.hashes:
        state = session.coordinator(Step.UNMASK)
        for frame in session.sent[Step.UNMASK].values():
            state.receive(frame)
        session.keep(state.close().frame)
    total = [np.sum([session.words(name)[part] for name in session.values["u3"]], axis=0) for part in (0, 1)]
    for name in session.announcement.cohort:
        last = session.last_step(name)
        if last is None:
            continue
        state, draws = session.silo(name, last)
        if last > Step.KEYS:
            assert not draws.left
        if last == Step.UNMASK and session.sent[Step.PUBLISH]:
            verified = state.receive(*session.relayed(Step.PUBLISH, name))
            np.testing.assert_array_equal(verified.words32, total[0])
            np.testing.assert_array_equal(verified.words64, total[1])
            assert verified.session.hex() == session.values["session"]
        if name in session.sent[Step.ABORT]:
            session.abort(state, session.sent[Step.ABORT][name])


@pytest.mark.parametrize(("document", "index"), sessions())
def test_the_values_are_those_in_the_frames(document: Json, index: int) -> None:
    session = Replay(document, index)
    assert session.announcement.hash().hex() == session.values["announced"]
    masked = [Masked.decode(frame.body) for frame in session.sent[Step.MASKED].values()]
    assert {body.session.hex() for body in masked} == {session.values["session"]}
    assert {body.transcript.hex() for body in masked} == {session.values["transcript"]}
    agreed = [Consistency.decode(frame.body) for frame in session.sent[Step.CONSISTENCY].values()]
    assert {body.agreement.hex() for body in agreed} <= {session.values["agreement"]}
    for set_, step in (("u1", Step.KEYS), ("u2", Step.SHARES), ("u3", Step.MASKED)):
        assert session.values[set_] == [name for name in session.announcement.cohort if name in session.sent[step]]


def aborted() -> list[Any]:
    return [param for param in sessions() if "certificate" in param.values[0]["sessions"][param.values[1]]]


@pytest.mark.parametrize(("document", "index"), aborted())
def test_certificates_are_worth_what_the_file_says(document: Json, index: int) -> None:
    session = Replay(document, index)
    body = session.sent[Step.ANNOUNCE][""].body
    expected = session.session["certificate"]
    try:
        signers = abort_certificate_valid(
            session.sent[Step.ABORT].values(), announce_body=body, members=session.members
        )
    except ProtocolViolation:
        signers = frozenset()
    assert sorted(signers) == expected["signers"]
    assert bool(signers) == expected["valid"]


def test_both_worths_of_a_certificate_are_there() -> None:
    worths = {document["sessions"][index]["certificate"]["valid"] for document, index in (p.values for p in aborted())}
    assert worths == {True, False}
