"""Sessions in which a silo does something wrong, and the proofs and the lies that can be made of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from secagg_harness import Federation, Session, at, of

from secagg.bodies import Consistency, Keys, Masked, Shares, Unmask
from secagg.checks import dealt_by, roll_of
from secagg.errors import Failed, ProtocolViolation, Rejected
from secagg.exhibits import (
    Conflict,
    WrongFrame,
    WrongOpening,
    WrongSecret,
    encode_exhibit,
)
from secagg.wire import Frame, Step


def whole(federation: Federation, dropped: str = "silo-4") -> Session:
    return federation.start().run(lost={Step.MASKED: {dropped}})


def roll(session: Session) -> Any:
    return roll_of(session.sent[Step.KEYS].values())


def honest_opening(session: Session, holder: str, owner: str) -> WrongOpening:
    """The claim that an honest holder opened a wrong share of an honest owner."""
    masked = tuple((n, Masked.decode(f.body).vector) for n, f in session.sent[Step.MASKED].items())
    return WrongOpening(
        session.sent[Step.UNMASK][holder],
        session.sent[Step.SHARES][owner].without_attachment(),
        roll(session),
        dealt_by(session.sent[Step.SHARES].values()),
        masked,
    )


def honest_secret(session: Session, owner: str) -> WrongSecret:
    """The claim that an honest owner's shares do not fit."""
    index = session.federation.names.index(owner)
    openings = tuple(
        (holder, Unmask.decode(frame.body).openings[index]) for holder, frame in session.sent[Step.UNMASK].items()
    )[: session.federation.threshold]
    return WrongSecret(
        session.sent[Step.KEYS][owner].without_attachment(),
        session.sent[Step.SHARES][owner].without_attachment(),
        roll(session),
        owner not in session.sent[Step.MASKED],
        openings,
    )


def opening_fault(federation: Federation) -> tuple[Session, bytes]:
    """silo-1 opens another share of silo-2 than it was dealt."""
    session = at(federation, Step.UNMASK)
    body = Unmask.decode(session.respond(Step.UNMASK, "silo-1").body)
    lie = replace(body, openings=(*body.openings[:2], body.openings[3], *body.openings[3:]))
    with pytest.raises(Rejected) as caught:
        session.server.receive(federation.sign("silo-1", lie))
    return session, caught.value.evidence


def secret_fault(federation: Federation) -> tuple[Session, bytes]:
    """silo-1 deals shares of another seed than it committed to."""
    session = federation.start().run(Step.KEYS)
    for name in federation.names:
        state = session.clients[name].receive(session.server.outgoing[name])
        if name == "silo-1":
            state._data = replace(state._data, joined=replace(state._data.joined, seed=b"w" * 32))
        session.clients[name], frame = state.share()
        session.sent[Step.SHARES][name] = frame
        session.server.receive(frame)
    session.server = session.server.close()
    session.advance(Step.MASKED)
    session.advance(Step.CONSISTENCY)
    session.collect(Step.UNMASK)
    with pytest.raises(Failed) as caught:
        session.server.close()
    assert set(caught.value.evidence) == caught.value.blamed == {"silo-1"}
    return session, caught.value.evidence["silo-1"]


def other_body(frame: Frame) -> Any:
    match frame.step:
        case Step.KEYS:
            return replace(Keys.decode(frame.body), seed=b"2" * 32)
        case Step.SHARES:
            return replace(Shares.decode(frame.body), tag_secret=b"2" * 32)
        case Step.MASKED:
            return replace(Masked.decode(frame.body), vector=b"2" * 32)
        case Step.CONSISTENCY:
            return replace(Consistency.decode(frame.body), agreement=b"2" * 32)
        case _:
            body = Unmask.decode(frame.body)
            return replace(body, openings=body.openings[::-1])


@cache
def convictions() -> tuple[tuple[bytes, bytes, str], ...]:
    """One true proof of each kind: R0, evidence, who is guilty."""
    federation = Federation()
    session = whole(federation)
    frame = session.sent[Step.MASKED]["silo-1"].without_attachment()
    malformed = federation.sign_raw("silo-1", Step.MASKED, frame.body + b"\0")
    victim = federation.start().run(Step.SHARES)
    frames = victim.server.outgoing["silo-0"]
    dealt = of(frames, "silo-1")
    bad = federation.sign("silo-1", replace(Shares.decode(dealt.body), tag_secret=b"h" * 32), dealt.attachment)
    with pytest.raises(ProtocolViolation) as complaint:
        victim.clients["silo-0"].receive((bad, *(other for other in frames if other.sender != "silo-1")))
    proofs = [
        (session, encode_exhibit(WrongFrame(malformed, roll(session)))),
        (session, encode_exhibit(Conflict(frame, federation.sign("silo-1", other_body(frame)), roll(session)))),
        (victim, complaint.value.evidence),
        opening_fault(federation),
        secret_fault(federation),
    ]
    return tuple((case.announce.body, evidence, "silo-1") for case, evidence in proofs)
