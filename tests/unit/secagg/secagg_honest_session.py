"""One honest session that ran to its end, and strategies over everything that was signed in it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st
from secagg_harness import STEPS, Federation, Session

from secagg.aborts import abort_frame
from secagg.bodies import Masked, Unmask
from secagg.checks import dealt_by, roll_of
from secagg.exhibits import Complaint, Conflict, Loose, WrongFrame, WrongOpening, WrongSecret
from secagg.states import Life
from secagg.wire import Frame, Step


@cache
def whole() -> Session:
    """One session that ran to its end, with a dropout; never changed by a test."""
    return Federation().start().run(lost={Step.MASKED: {"silo-3"}})


@cache
def frames() -> tuple[Frame, ...]:
    """Everything that honest silos and an honest coordinator signed in it, aborts of another announcement too."""
    session = whole()
    federation = session.federation
    sent = [frame for step in STEPS for frame in session.sent[step].values()]
    other = federation.announcement(attempt=2)
    aborts = [
        abort_frame(announcement=other.hash(), me=name, signer=federation.identity[name], released=False, reason="x")
        for name in federation.names
    ]
    second = [federation.join(name, federation.announce(other))[1] for name in federation.names]
    own = session.clients["silo-0"]
    last = type(own)(replace(own._context, life=Life(released=True)), None).abort("the end")
    return (session.announce, *sent, session.published.frame, *aborts, *second, last)


def rolls() -> list[Any]:
    """U1, U2 and U3 of the session as evidence names them, and one roll that is none of them."""
    sent = whole().sent
    u1, u2 = roll_of(sent[Step.KEYS].values()), dealt_by(sent[Step.SHARES].values())
    u3 = tuple((name, Masked.decode(frame.body).vector) for name, frame in sent[Step.MASKED].items())
    return [u1, u2, u3, u1[:-1], ()]


@cache
def transport() -> dict[tuple[str, str], bytes]:
    """The private transport key of each silo for each other one, which a complaint reveals."""
    session = whole()
    return {
        (name, peer): pair.private
        for name in session.federation.names
        for peer, pair in session.federation.join(name, session.announce)[0]._data.transport.items()
    }


def likely(draw: st.DrawFn, good: Any, other: st.SearchStrategy[Any]) -> Any:
    """Mostly what belongs here, so that all but one or two parts of an exhibit are right."""
    return good if draw(st.integers(0, 9)) else draw(other)


@st.composite
def exhibits(draw: st.DrawFn) -> Any:
    """Every kind of evidence, put together from genuine frames, hashes, openings and keys."""
    session = whole()
    sent, names = session.sent, session.federation.names
    frame, roll = st.sampled_from(frames()), st.sampled_from(rolls())
    u1, u2, u3, _, _ = rolls()
    one, other = draw(st.permutations(names))[:2]
    holder = draw(st.sampled_from(list(sent[Step.UNMASK])))
    r1, r2 = (likely(draw, sent[step][one], frame) for step in (Step.KEYS, Step.SHARES))
    match draw(st.integers(0, 5)):
        case 0:
            exhibit: Any = Loose(tuple(draw(st.lists(frame, max_size=3))))
        case 1:
            exhibit = WrongFrame(draw(frame), draw(roll))
        case 2:
            step = draw(st.sampled_from(STEPS))
            first = likely(draw, draw(st.sampled_from(list(sent[step].values()))), frame)
            exhibit = Conflict(first, draw(st.one_of(st.just(first), frame)), draw(roll))
        case 3:
            at = 244 * [name for name in names if name != one].index(other)
            ciphertext = likely(draw, sent[Step.SHARES][one].attachment[at : at + 244], st.binary(max_size=300))
            private = likely(draw, transport()[other, one], st.sampled_from(list(transport().values())))
            accuser = likely(draw, sent[Step.KEYS][other], frame)
            exhibit = Complaint(r1, accuser, r2, likely(draw, u1, roll), ciphertext, private)
        case 4:
            unmask = likely(draw, sent[Step.UNMASK][holder], frame)
            exhibit = WrongOpening(unmask, r2, *(likely(draw, good, roll) for good in (u1, u2, u3)))
        case _:
            index = names.index(one)
            opened = [(h, Unmask.decode(f.body).openings[index]) for h, f in sent[Step.UNMASK].items()]
            some = st.sets(st.sampled_from(opened)).map(tuple)
            kind = likely(draw, one not in dict(u3), st.booleans())
            exhibit = WrongSecret(r1, r2, likely(draw, u1, roll), kind, likely(draw, tuple(opened[:4]), some))
    return _stripped(exhibit)


def _stripped(exhibit: Any) -> Any:
    changes = {
        name: value.without_attachment()
        for name in exhibit.__slots__
        if isinstance(value := getattr(exhibit, name), Frame)
    }
    if isinstance(exhibit, Loose):
        return Loose(tuple(frame.without_attachment() for frame in exhibit.frames))
    return replace(exhibit, **changes)


@st.composite
def mutated(draw: st.DrawFn, source: bytes) -> bytes:
    """Valid bytes, damaged as by a hostile hand: cut, stretched, repeated, overwritten, spliced."""
    data = bytearray(source)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 40))
        match draw(st.sampled_from(["cut", "insert", "overwrite", "repeat", "end", "largest"])):
            case "cut":
                del data[at : at + size]
            case "insert":
                data[at:at] = draw(st.binary(max_size=40))
            case "overwrite":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "repeat":
                data[at:at] = data[at : at + size]
            case "end":
                del data[at:]
            case "largest":
                data[at : at + 4] = b"\xff" * min(4, len(data) - at)
    return bytes(data)
