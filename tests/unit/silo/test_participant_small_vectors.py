"""A small sum comes attached to the frame that publishes it: no other check, and none fewer, than for a fetched one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from silo_harness import NAMES, Desk

from feddrm.contract.messages import SMALL_VECTOR, AckEvent, Publish, SiloFrame
from secagg.bodies import Abort, Masked
from secagg.hashing import blob_hash
from secagg.wire import Step
from silo import session
from silo.effects import FetchSum, Send, Upload, Uploaded


def published(desk: Desk) -> Any:
    """A session up to the sum, which nobody was told of yet."""
    desk.open()
    for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY):
        desk.advance(step)
    return desk.server.close()


def test_a_sum_that_comes_along_is_applied_without_fetching(desk: Desk) -> None:
    found = published(desk)
    for name in NAMES:
        house = desk.houses[name]
        house.handle(Publish(found.frame, found.sum))
        assert not [effect for effect in house.effects if isinstance(effect, FetchSum)]
        assert len([event for event in house.sent if isinstance(event, AckEvent)]) == 1
        assert house.ready.round == 1
    assert len({desk.houses[name].ready.model for name in NAMES}) == 1


@pytest.mark.parametrize("fault", ["bit", "shorter", "another name"])
def test_other_bytes_than_the_signed_sum_end_the_session(desk: Desk, fault: str) -> None:
    found = published(desk)
    alpha, data, name = desk.houses["alpha"], found.frame.attachment, found.sum
    match fault:
        case "bit":
            data = bytes([data[0] ^ 1]) + data[1:]
        case "shorter":
            data = data[:-8]
        case "another name":
            data = bytes(len(data))
            name = blob_hash(data)
    before = alpha.ready
    sent = alpha.handle(Publish(replace(found.frame, attachment=data), name))
    word = Abort.decode(sent[-1].frame.body)
    assert word.released
    assert not word.blamed
    assert alpha.ready == before
    assert not [event for event in alpha.sent if isinstance(event, AckEvent)]
    # The true one comes too late: the session is over for this silo.
    assert not [e for e in alpha.handle(Publish(found.frame, found.sum)) if isinstance(e, AckEvent)]


def test_two_published_sums_are_one_too_many_however_they_come(desk: Desk) -> None:
    found = published(desk)
    alpha = desk.houses["alpha"]
    alpha.hold = FetchSum
    assert alpha.handle(Publish(found.frame.without_attachment(), found.sum)) == []
    sent = alpha.handle(Publish(found.frame, found.sum))
    assert "two different published sums" in Abort.decode(sent[-1].frame.body).reason


@pytest.mark.parametrize("small", [True, False])
def test_a_masked_input_travels_along_only_if_it_is_small(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if not small:
        monkeypatch.setattr(session, "SMALL_VECTOR", 16)
    desk.open()
    desk.advance(Step.KEYS)
    alpha = desk.houses["alpha"]
    alpha.hold = Upload
    assert alpha.handle(desk.request(Step.SHARES)["alpha"]) == [], (
        "nothing leaves before the shell took the vector over"
    )
    upload = next(effect for effect in alpha.effects if isinstance(effect, Upload))
    assert 16 < len(upload.data) <= SMALL_VECTOR
    (event,) = alpha.handle(Uploaded(upload.blob))
    assert isinstance(event, SiloFrame)
    assert event.frame.attachment == (upload.data if small else b"")
    assert Masked.decode(event.frame.body).vector == upload.blob
    assert Send(event) in alpha.effects
