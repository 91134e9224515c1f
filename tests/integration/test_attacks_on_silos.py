"""A hostile coordinator, with the server's real keys, over gRPC with mutual TLS against real agents: before any mask.

The tests share one federation and run in the order of this file; no round of it is ever published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from besieged import besieged, leaves
from siege import Siege, steps_of

from feddrm.contract import messages as m
from feddrm.contract.home import load_silo_home
from feddrm.contract.signed_plan import sign_plan
from privacy.leaves import Reserve
from secagg.bodies import Abort, Keys
from secagg.exhibits import Conflict, decode_exhibit
from secagg.keys import KeyPair, sign
from secagg.wire import Frame, Step


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with besieged(tmp_path_factory.mktemp("siege"), rounds=20, unreleased=7) as siege:
        yield siege


def test_different_plans_to_different_silos_share_no_session(siege: Siege) -> None:
    """Both are signed by the operator: an operator that conspires gets no further than an honest one's two plans."""
    three, west = siege.names[:3], siege.names[3]
    other = sign_plan(siege.plan.plan.model_copy(update={"name": "other"}), siege.operator)
    siege.offer(*three)
    siege.offer(west, plan=other)
    attempt = siege.open(siege.announcement())
    said = siege.announce(attempt)
    assert {name: Step(frame.step) for name, frame in said.items()} == dict.fromkeys(three, Step.KEYS) | {
        west: Step.ABORT
    }
    # West's R1 of its own plan, in everybody else's session.
    foreign = siege.open(replace(attempt.announcement, plan=other.hash, attempt=2))
    siege.host.send(west, siege.announce_event(foreign, west))
    assert Abort.decode(siege.abort_frame(west, foreign).body).reason == "announcement refused"
    siege.host.send(west, m.JobEnded(other.hash, "stopped", completed=False))
    siege.offer(west)
    assert leaves(siege, west, Reserve) == []
    for name in three:
        assert not siege.abort_of(name, attempt).released


@pytest.mark.parametrize(
    "lie",
    [
        {"threshold": 2, "minimum_cohort": 2},
        {"minimum_cohort": 2},
        {"colluders": 0},
        {"threshold": 4},
        {"model": bytes(32)},
        {"words64": 4},
        {"value_bound": 1 << 23},
        {"federation": "another"},
        {"stage": 2},
        {"round": 2},
        {"cohort": ("north", "east")},
    ],
    ids=lambda lie: " ".join(lie),
)
def test_what_the_plan_fixes_is_not_the_coordinators_to_change(siege: Siege, lie: dict[str, Any]) -> None:
    attempt = siege.open(siege.announcement(), **lie)
    said = siege.announce(attempt, to=siege.names[:2])
    assert {Step(frame.step) for frame in said.values()} == {Step.ABORT}
    assert {Abort.decode(frame.body).reason for frame in said.values()} == {"announcement refused"}
    assert {name: len(leaves(siege, name, Reserve)) for name in siege.names} == dict(
        zip(siege.names, (1, 1, 1, 0), strict=True)
    )


@pytest.mark.parametrize("relayed", ["everybody's", "their own"])
def test_different_announcements_to_different_silos_end_before_any_share(siege: Siege, relayed: str) -> None:
    one = siege.open(siege.announcement())
    other = siege.open(replace(one.announcement, nonce=b"\7" * 32))
    sides = {name: one if name in siege.names[:2] else other for name in siege.names}
    said = {name: siege.announce(side, to=(name,))[name] for name, side in sides.items()}
    assert {Step(frame.step) for frame in said.values()} == {Step.KEYS}
    for name, side in sides.items():
        frames = tuple(f for n, f in said.items() if relayed == "everybody's" or sides[n] is side)
        siege.host.send(name, m.StepFrames(side.opened, int(Step.KEYS), frames))
        last = Abort.decode(siege.abort_frame(name, side).body)
        assert (last.blamed, last.released) == ("", False)
        assert steps_of(siege.fence(name)) == []


def test_keys_substituted_by_the_coordinator_reach_no_session(siege: Siege) -> None:
    attempt = siege.keyed()
    requests = attempt.close()
    own = KeyPair.from_private(b"\5" * 32)
    for name, event in requests.items():
        west = next(frame for frame in event.frames if frame.sender != name)
        body = replace(Keys.decode(west.body), mask=own.public).encode()
        forged = replace(sign(Step.KEYS, west.sender, body, siege.host.home.round_key), attachment=west.attachment)
        siege.host.send(name, replace(event, frames=swapped(event.frames, forged)))
        last = Abort.decode(siege.abort_frame(name, attempt).body)
        assert (last.blamed, last.released) == ("", False)


def test_two_keys_of_a_colluding_silo_split_the_session_or_convict_it(siege: Siege) -> None:
    """West's identity key is in the coordinator's hands."""
    north, east, south, west = siege.names
    identity = load_silo_home(siege.homes[west]).keys.identity
    attempt = siege.keyed()
    requests = attempt.close()
    honest = next(frame for frame in requests[north].frames if frame.sender == west)
    body = replace(Keys.decode(honest.body), mask=KeyPair.from_private(b"\6" * 32).public)
    twin = sign(Step.KEYS, west, body.encode(), identity, honest.attachment)
    requests[south] = replace(requests[south], frames=swapped(requests[south].frames, twin))
    shares = siege.relay({name: requests[name] for name in (north, east, south)}, Step.SHARES)
    sids = {name: frame.body[:32] for name, frame in shares.items()}
    assert sids[north] == sids[east] != sids[south]
    # South's shares are for another session than north's: relayed there, they end it.
    carried = tuple(dealt_to(frame, north, siege.names) for frame in shares.values())
    siege.host.send(north, m.StepFrames(sids[north], int(Step.SHARES), carried))
    assert Abort.decode(siege.abort_frame(north, attempt).body).blamed == ""
    # Shown both, a silo convicts the one that signed them, with both as evidence.
    siege.host.send(east, replace(requests[east], frames=swapped(requests[east].frames, twin)))
    frame = siege.abort_frame(east, attempt)
    assert Abort.decode(frame.body).blamed == west
    conflict = decode_exhibit(frame.attachment)
    assert isinstance(conflict, Conflict)
    assert {conflict.first.body, conflict.second.body} == {honest.body, twin.body}


def swapped(frames: tuple[Frame, ...], new: Frame) -> tuple[Frame, ...]:
    return tuple(new if frame.sender == new.sender else frame for frame in frames)


def dealt_to(frame: Frame, recipient: str, members: tuple[str, ...]) -> Frame:
    """A silo's R2 with the one ciphertext for a recipient, as the coordinator relays it."""
    others = [name for name in members if name != frame.sender]
    size = len(frame.attachment) // len(others)
    if frame.sender == recipient:
        return frame.without_attachment()
    at = others.index(recipient)
    return replace(frame, attachment=frame.attachment[at * size : (at + 1) * size])
