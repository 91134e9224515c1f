"""A silo whose process dies at every step: what it had entered is dead, and none of it lies on its disk (design 6)."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from silo_harness import NAMES, Desk, House

from feddrm.contract.messages import AbortRequest, OutcomeEvent, Publish
from secagg.bodies import Abort
from secagg.wire import Step
from silo.context import commitment_key

STEPS = (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY)
SMALLEST = 16


class Tap:
    """A silo's entropy, with a copy of all that it gave."""

    def __init__(self) -> None:
        self.drawn: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.drawn.append(os.urandom(size))
        return self.drawn[-1]


def inside(value: Any, seen: set[int]) -> Iterator[bytes]:
    """All byte strings that an object leads to: private keys, seeds, shares, G, whatever it is called."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, X25519PrivateKey):
        yield value.private_bytes_raw()
    elif isinstance(value, dict):
        for entry in (*value.keys(), *value.values()):
            yield from inside(entry, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for entry in value:
            yield from inside(entry, seen)
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from inside(getattr(value, entry.name), seen)


def secrets(house: House, tap: Tap, public: bytes) -> set[bytes]:
    """What a session holds in memory now and ever drew, except what everybody was told anyway."""
    session: Any = house.participant._reactions._rounds.current
    held = set(inside(session._waiting._data, set())) if session._waiting is not None else set()
    return {value for value in held | set(tap.drawn) if len(value) >= SMALLEST and value not in public}


def on_disk(house: House) -> bytes:
    files = sorted(path for path in house.directory.iterdir() if path.is_file())
    assert {path.name for path in files} >= {"agent.db", "agent.db-wal", "ledger.db"}
    return b"\0".join(path.read_bytes() for path in files)


def forms(secret: bytes) -> tuple[bytes, ...]:
    """As it is, backwards, and as text; base64 without its last group, which may be cut differently."""
    encoded = base64.b64encode(secret)
    return secret, secret[::-1], secret.hex().encode(), secret.hex().upper().encode(), encoded[:20]


def assert_no_trace(house: House, found: set[bytes]) -> None:
    disk = on_disk(house)
    # A search that finds nothing at all proves nothing: the announcement is there.
    assert house.state.entered(house.trial.plan_hash, 1, 1)[-1].announcement in disk
    assert not [secret.hex() for secret in found for form in forms(secret) if form in disk]


class Played:
    """An honest session up to a step, with alpha's entropy tapped and all that alpha was sent kept."""

    def __init__(self, desk: Desk, step: Step, *, answered: bool) -> None:
        self.desk = desk
        self.alpha = desk.houses["alpha"]
        self.tap = Tap()
        # The one key that is kept for life; it commits to updates and is no session's.
        commitment_key(self.alpha.state, os.urandom)
        object.__setattr__(self.alpha.context, "entropy", self.tap)
        self.received: list[Any] = []
        desk.open()
        self.received.append(desk.announce_event("alpha"))
        for earlier in STEPS[: STEPS.index(step)]:
            self._relay(earlier, to_alpha=True)
        self.found = secrets(self.alpha, self.tap, self.public())
        self._relay(step, to_alpha=answered)
        if answered:
            self.found |= secrets(self.alpha, self.tap, self.public())

    def _relay(self, step: Step, *, to_alpha: bool) -> None:
        requests = self.desk.request(step)
        self.received.append(requests["alpha"])
        for name, event in requests.items():
            if to_alpha or name != "alpha":
                self.desk.houses[name].handle(event)
        self.desk.collect(Step(step + 1), () if to_alpha else ("alpha",))

    def public(self) -> bytes:
        """All that travelled in clear, and the names of things that follow from it."""
        frames = [
            f for house in self.desk.houses.values() for f in (e.frame for e in house.sent if hasattr(e, "frame"))
        ]
        session: Any = self.alpha.participant._reactions._rounds.current
        data = session._waiting._data
        known = [
            getattr(place, "transcript", b"") for place in (data, getattr(data, "masked", None)) if place is not None
        ]
        known += [self.desk.announce.body, self.desk.announcement_hash, self.desk.server.session, *known]
        return b"\0".join([*(part for f in frames for part in (f.body, f.signature, f.attachment)), *known])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("answered", [False, True], ids=["before its answer", "after its answer"])
def test_a_silo_that_dies_at_any_step_leaves_no_secret_and_never_answers_again(
    desk: Desk, step: Step, answered: bool
) -> None:
    played = Played(desk, step, answered=answered)
    alpha = played.alpha
    released = answered and step == Step.CONSISTENCY
    # Three private keys and seeds, the dealt polynomials, what the others dealt: there is something to find.
    assert len(played.found) >= (3 if step == Step.KEYS and not answered else 20)
    assert_no_trace(alpha, played.found)
    alpha.restart()
    assert_no_trace(alpha, played.found)
    for event in (*played.received, *reversed(played.received)):
        for answer in alpha.handle(event):
            last = Abort.decode(answer.frame.body)
            assert (last.announcement, last.released) == (desk.announcement_hash, released)
    sent = alpha.handle(AbortRequest(desk.announcement_hash, "x"))
    assert [Abort.decode(event.frame.body).released for event in sent] == [released]
    assert_no_trace(alpha, played.found)


@pytest.mark.parametrize("step", STEPS)
def test_a_retry_after_a_death_at_any_step_counts_the_update_once_or_not_at_all(desk: Desk, step: Step) -> None:
    played = Played(desk, step, answered=True)
    alpha = played.alpha
    alpha.restart()
    for house in desk.houses.values():
        house.handle(AbortRequest(desk.announcement_hash, "x"))
    certificate = tuple(house.frames(Step.ABORT)[-1] for house in desk.houses.values())
    # Everybody released in the last step: no certificate can be, and no retry.
    released = step == Step.CONSISTENCY
    assert {Abort.decode(frame.body).released for frame in certificate} == {released}
    desk.open(desk.announcement(attempt=2), certificate)
    if released:
        assert not any(house.frames(Step.KEYS) for house in desk.houses.values())
        return
    for later in STEPS:
        desk.advance(later)
    desk.publish()
    assert desk.published.survivors == NAMES
    assert alpha.trained == [1]


def test_a_silo_that_dies_before_a_published_sum_takes_it_from_its_peers_acks_only(desk: Desk) -> None:
    desk.open()
    for step in STEPS:
        desk.advance(step)
    alpha = desk.houses["alpha"]
    alpha.restart()
    event = desk.publish(without=("alpha",))
    before = alpha.ready
    assert alpha.handle(event) == []
    assert alpha.handle(Publish(event.frame, event.sum)) == []
    assert alpha.ready == before
    alpha.handle(OutcomeEvent(desk.outcomes[1]))
    assert alpha.ready.round == 1


def test_the_walk_finds_what_a_session_holds(make_desk: Callable[..., Desk]) -> None:
    """Else the searches above would prove nothing: it sees private keys, seeds, shares and G by their values."""
    desk = make_desk()
    desk.offer()
    played = Played(desk, Step.SHARES, answered=False)
    session: Any = played.alpha.participant._reactions._rounds.current
    joined = session._waiting._data.keyed.joined
    held = set(inside(session._waiting._data, set()))
    assert {joined.mask.private, joined.seed} <= held & played.found
    played.alpha.handle(played.received[-1])
    data = session._waiting._data
    assert data.group in secrets(played.alpha, played.tap, b"")
    assert {entry.seed.share for entry in data.held.values()} <= secrets(played.alpha, played.tap, b"")
