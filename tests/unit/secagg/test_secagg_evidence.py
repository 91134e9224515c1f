"""What a silo signed wrongly convicts it; nothing that others put together convicts one that kept to the protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest
from secagg_harness import STEPS, Federation, of, refused, verdict
from secagg_proofs import (
    honest_opening,
    honest_secret,
    opening_fault,
    other_body,
    roll,
    secret_fault,
    whole,
)

from secagg.bodies import Opening, Shares, Unmask
from secagg.checks import dealt_by
from secagg.errors import ProtocolViolation
from secagg.exhibits import (
    Conflict,
    Loose,
    WrongFrame,
    WrongOpening,
    WrongSecret,
    decode_exhibit,
    encode_exhibit,
)
from secagg.wire import Step

# Faults found by the coordinator.


def test_a_wrong_opening_convicts_its_holder(federation: Federation) -> None:
    session, evidence = opening_fault(federation)
    assert isinstance(decode_exhibit(evidence), WrongOpening)
    assert verdict(session, evidence).guilty == "silo-1"


def test_honest_openings_convict_nobody_whatever_stands_beside_them(federation: Federation) -> None:
    session = whole(federation)
    holder, owner = "silo-1", "silo-2"
    true = honest_opening(session, holder, owner)
    assert verdict(session, encode_exhibit(true)).guilty == ""
    assert verdict(session, encode_exhibit(honest_opening(session, holder, "silo-4"))).guilty == ""
    shares = Shares.decode(true.shares.body)
    second = replace(shares, dealt=(*shares.dealt[:1], shares.dealt[2], *shares.dealt[2:]))
    forked = federation.sign(owner, second)
    dealt = tuple((n, dealt_by([forked])[0][1] if n == owner else h) for n, h in true.dealt)
    claims = {
        "a second R2 of a dealer that colludes": replace(true, shares=forked),
        "and it in the transcript": replace(true, shares=forked, dealt=dealt),
        "a survivor that is said to have dropped out": replace(
            true, masked=tuple(entry for entry in true.masked if entry[0] != owner)
        ),
        "a U2 without somebody": replace(true, dealt=true.dealt[:-1]),
        "another U1": replace(true, roll=true.roll[:-1]),
        "nothing": replace(true, roll=(), dealt=(), masked=()),
        "its own frame for an R2": replace(true, shares=true.unmask),
        "an R4 for an R5": replace(true, unmask=session.sent[Step.CONSISTENCY][holder]),
    }
    for name, claim in claims.items():
        assert verdict(session, encode_exhibit(claim)).guilty == "", name


@pytest.mark.parametrize("dropped", [False, True], ids=["seed", "mask key"])
def test_shares_that_give_the_secret_convict_nobody(federation: Federation, dropped: bool) -> None:
    session = whole(federation)
    owner = "silo-4" if dropped else "silo-1"
    true = honest_secret(session, owner)
    names = [name for name, _ in true.openings]
    rotated = tuple(zip(names, [opening for _, opening in true.openings[1:] + true.openings[:1]], strict=True))
    claims = {
        "the truth": true,
        "in another order": replace(true, openings=true.openings[::-1]),
        "the other kind": replace(true, mask_key=not dropped),
        "fewer": replace(true, openings=true.openings[:-1]),
        "exchanged": replace(true, openings=rotated),
        "altered": replace(true, openings=((names[0], Opening(bytes(66), bytes(32))), *true.openings[1:])),
        "of a stranger": replace(true, openings=(("stranger", true.openings[0][1]), *true.openings[1:])),
        "another silo's R1": replace(true, keys=session.sent[Step.KEYS]["silo-2"].without_attachment()),
        "another silo's R2": replace(true, shares=session.sent[Step.SHARES]["silo-2"].without_attachment()),
        "no roll": replace(true, roll=()),
    }
    for name, claim in claims.items():
        assert verdict(session, encode_exhibit(claim)).guilty == "", name


def test_shares_of_another_secret_convict_the_dealer_without_anybodys_signature(federation: Federation) -> None:
    session, evidence = secret_fault(federation)
    assert verdict(session, evidence).guilty == "silo-1"
    exhibit = decode_exhibit(evidence)
    assert isinstance(exhibit, WrongSecret)
    assert verdict(session, encode_exhibit(replace(exhibit, openings=exhibit.openings[:-1]))).guilty == ""


# Frames that exclude each other.


@pytest.mark.parametrize("step", STEPS)
def test_two_frames_of_a_step_convict_and_one_frame_twice_does_not(federation: Federation, step: Step) -> None:
    session = whole(federation)
    frame = session.sent[step]["silo-1"].without_attachment()
    second = federation.sign("silo-1", other_body(frame))
    names = roll(session)
    assert verdict(session, encode_exhibit(Conflict(frame, second, names))).guilty == "silo-1"
    assert verdict(session, encode_exhibit(Conflict(second, frame, names))).guilty == "silo-1"
    theirs = session.sent[step]["silo-2"].without_attachment()
    elsewhere = federation.start(nonce=b"o" * 32).run(step).sent[step]["silo-1"].without_attachment()
    later = session.sent[STEPS[(STEPS.index(step) + 2) % 5]]["silo-1"].without_attachment()
    forged = replace(second, signature=bytes(64))
    for other in (frame, theirs, elsewhere, later, forged):
        assert verdict(session, encode_exhibit(Conflict(frame, other, names))).guilty == ""
    if step != Step.KEYS:
        assert verdict(session, encode_exhibit(Conflict(frame, second, names[:-1]))).guilty == ""


def test_unmasking_other_survivors_than_were_agreed_on_convicts(federation: Federation) -> None:
    session = whole(federation)
    agreed, unmask = (session.sent[step]["silo-1"] for step in (Step.CONSISTENCY, Step.UNMASK))
    assert verdict(session, encode_exhibit(Conflict(agreed, unmask, roll(session)))).guilty == ""
    lie = federation.sign("silo-1", replace(Unmask.decode(unmask.body), agreement=b"z" * 32))
    assert verdict(session, encode_exhibit(Conflict(agreed, lie, roll(session)))).guilty == "silo-1"


def test_to_release_shares_and_deny_it_convicts(federation: Federation) -> None:
    """What c colluders do with an abort certificate: their own two signatures show it."""
    session = whole(federation)
    unmask = session.sent[Step.UNMASK]["silo-1"]
    liar = federation.start().run(Step.CONSISTENCY).clients["silo-1"].abort("I released nothing")
    true = session.clients["silo-1"].abort("no sum came")
    other = federation.start(nonce=b"o" * 32).run(Step.CONSISTENCY).clients["silo-1"].abort("another session")
    names = roll(session)
    assert verdict(session, encode_exhibit(Conflict(unmask, liar, names))).guilty == "silo-1"
    for abort in (true, other, replace(liar, signature=bytes(64))):
        assert verdict(session, encode_exhibit(Conflict(unmask, abort, names))).guilty == ""


def test_a_second_request_with_a_silos_second_frame_convicts_the_silo(federation: Federation) -> None:
    session = federation.start().run(Step.SHARES)
    frames = session.server.outgoing["silo-0"]
    session.clients["silo-0"].receive(frames)
    victim = of(frames, "silo-1")
    second = federation.sign("silo-1", other_body(victim), victim.attachment)
    others = tuple(frame for frame in frames if frame.sender != "silo-1")
    with pytest.raises(ProtocolViolation) as caught:
        session.clients["silo-0"].receive((*others, second))
    assert caught.value.peer == "silo-1"
    assert verdict(session, caught.value.evidence).guilty == "silo-1"


def test_a_second_request_with_a_frame_of_another_session_is_the_coordinators_fault(federation: Federation) -> None:
    """An honest silo signs one frame of a step in each session: two of them are no conflict."""
    session = federation.start().run(Step.SHARES)
    other = federation.start(nonce=b"o" * 32).run(Step.SHARES)
    frames = session.server.outgoing["silo-0"]
    session.clients["silo-0"].receive(frames)
    others = tuple(frame for frame in frames if frame.sender != "silo-1")
    with pytest.raises(ProtocolViolation, match="second, different") as caught:
        session.clients["silo-0"].receive((*others, of(other.server.outgoing["silo-0"], "silo-1")))
    assert caught.value.peer == ""


def test_a_malformed_frame_of_another_session_is_the_fault_of_who_relays_it(federation: Federation) -> None:
    session = federation.start().run(Step.SHARES)
    other = federation.start(nonce=b"o" * 32).run(Step.SHARES)
    frames = session.server.outgoing["silo-0"]
    old = federation.sign_raw("silo-1", Step.SHARES, of(other.server.outgoing["silo-0"], "silo-1").body + b"\0")
    others = tuple(frame for frame in frames if frame.sender != "silo-1")
    refused(session, "silo-0", (*others, old), "another session")
    assert verdict(session, encode_exhibit(WrongFrame(old, roll(session)))).guilty == ""
    assert verdict(other, encode_exhibit(WrongFrame(old, roll(other)))).guilty == "silo-1"


@pytest.mark.parametrize("step", STEPS)
def test_an_honest_frame_is_no_fault(federation: Federation, step: Step) -> None:
    session = whole(federation)
    for frame in session.sent[step].values():
        assert verdict(session, encode_exhibit(WrongFrame(frame, roll(session)))).guilty == ""


def test_frames_of_the_coordinator_convict_no_silo(federation: Federation) -> None:
    session = whole(federation)
    for frame in (session.announce, session.published.frame):
        for exhibit in (WrongFrame(frame, roll(session)), Conflict(frame, frame, ()), Loose((frame,))):
            assert verdict(session, encode_exhibit(exhibit)).guilty == ""
