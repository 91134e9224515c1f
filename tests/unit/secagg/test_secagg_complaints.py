"""A silo that was dealt garbage proves it by one pair's key, which opens nothing else; liars convict themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from secagg_harness import STEPS, Federation, Session, of, refused, swap, verdict

from secagg.aborts import abort_frame
from secagg.bodies import Keys, Shares
from secagg.checks import ciphertext_hash, roll_of
from secagg.dealing import CIPHERTEXT_SIZE, receive_deal
from secagg.errors import MisuseError, ProtocolViolation, WireError
from secagg.exhibits import Complaint, WrongFrame, decode_exhibit, encode_exhibit
from secagg.keys import KeyPair
from secagg.wire import Frame, Step

DEALER, ACCUSER = "silo-1", "silo-0"


def garbage_for(federation: Federation, session: Session, accuser: str) -> tuple[Frame, ...]:
    """The accuser's request for R2 in which the dealer's properly signed ciphertext for it is garbage."""
    frames = session.server.outgoing[accuser]
    honest = of(frames, DEALER)
    body = Shares.decode(honest.body)
    position = federation.names.index(accuser)
    ciphertext = bytes(CIPHERTEXT_SIZE)
    entry = replace(body.dealt[position], ciphertext=ciphertext_hash(ciphertext))
    dealt = (*body.dealt[:position], entry, *body.dealt[position + 1 :])
    return swap(frames, federation.sign(DEALER, replace(body, dealt=dealt), ciphertext))


def complain(federation: Federation, accuser: str = ACCUSER) -> tuple[Session, Complaint]:
    session = federation.start().run(Step.SHARES)
    frames = garbage_for(federation, session, accuser)
    caught = refused(session, accuser, frames, "does not open", peer=DEALER)
    exhibit = decode_exhibit(caught.evidence)
    assert isinstance(exhibit, Complaint)
    return session, exhibit


def opened_by(federation: Federation, session: Session, private: bytes) -> set[tuple[str, str]]:
    """Every (owner, recipient) whose R2 ciphertext this key opens with any public key of the session."""
    pair = KeyPair.from_private(private)
    bodies = [Keys.decode(frame.body) for frame in session.sent[Step.KEYS].values()]
    publics = {key for body in bodies for key in (*body.transport, body.mask)}
    found = set()
    for owner, recipient in permutations(federation.names, 2):
        body = Shares.decode(session.sent[Step.SHARES][owner].body)
        entry = body.dealt[federation.names.index(recipient)]
        ciphertext = of(session.server.outgoing[recipient], owner).attachment
        for public in publics:
            try:
                receive_deal(body, entry, ciphertext, me=recipient, secret=pair.agree(public))
            except WireError:
                continue
            found.add((owner, recipient))
    return found


def test_a_complaint_convicts_the_dealer_by_the_key_of_one_pair(federation: Federation) -> None:
    session, exhibit = complain(federation)
    assert verdict(session, encode_exhibit(exhibit)).guilty == DEALER
    assert opened_by(federation, session, exhibit.private) == {(DEALER, ACCUSER), (ACCUSER, DEALER)}


def test_no_other_secret_travels_with_a_complaint(federation: Federation) -> None:
    session = federation.start().run(Step.SHARES)
    joined = session.clients[ACCUSER]._data.keyed.joined
    others = [pair.private for name, pair in joined.transport.items() if name != DEALER]
    frames = garbage_for(federation, session, ACCUSER)
    with pytest.raises(ProtocolViolation) as caught:
        session.clients[ACCUSER].receive(frames)
    assert joined.transport[DEALER].private in caught.value.evidence
    assert len(others) == 3
    for secret in (*others, joined.mask.private, joined.seed):
        assert secret not in caught.value.evidence


def test_a_dealer_that_provokes_everybody_to_complain_learns_one_share_of_each(federation: Federation) -> None:
    """Why there is a key for each pair: with one a silo, t complaints would open t shares of everybody."""
    opened: set[tuple[str, str]] = set()
    for accuser in federation.names:
        if accuser != DEALER:
            session, exhibit = complain(federation, accuser)
            opened |= opened_by(federation, session, exhibit.private)
    honest = {(owner, recipient) for owner, recipient in opened if owner != DEALER}
    assert honest == {(owner, DEALER) for owner in federation.names if owner != DEALER}


@pytest.mark.parametrize("tamper", [lambda c: bytes(len(c)), lambda c: c[:-1], lambda c: b"", lambda c: c + b"\0"])
def test_an_altered_ciphertext_reveals_nothing(federation: Federation, tamper: Callable[[bytes], bytes]) -> None:
    session = federation.start().run(Step.SHARES)
    joined = session.clients[ACCUSER]._data.keyed.joined
    frames = session.server.outgoing[ACCUSER]
    honest = of(frames, DEALER)
    caught = refused(
        session, ACCUSER, swap(frames, replace(honest, attachment=tamper(honest.attachment))), "other than"
    )
    assert not any(pair.private in caught.evidence for pair in joined.transport.values())


def test_garbage_too_long_for_evidence_is_the_coordinators_fault(federation: Federation) -> None:
    """The two together must not make a silo accuse without a proof; an honest coordinator refuses that R2."""
    session = federation.start().run(Step.SHARES)
    frames = session.server.outgoing[ACCUSER]
    body = Shares.decode(of(frames, DEALER).body)
    for size, peer in ((1024, DEALER), (1025, "")):
        victim = federation.start().run(Step.SHARES)
        entry = replace(body.dealt[0], ciphertext=ciphertext_hash(bytes(size)))
        long = federation.sign(DEALER, replace(body, dealt=(entry, *body.dealt[1:])), bytes(size))
        refused(victim, ACCUSER, swap(frames, long), "wrong length" if peer else "too long", peer=peer)


def reachable(value: Any, seen: set[int]) -> list[bytes]:
    """All byte strings that an object holds, however deep."""
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, bytes):
        return [value]
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    else:
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        parts = [getattr(value, name, None) for name in (*names, *getattr(value, "__dict__", {}))]
    return [found for part in parts for found in reachable(part, seen)]


def test_who_has_opened_its_shares_cannot_complain_any_more(federation: Federation) -> None:
    """From then on no state holds a transport key: a complaint beside a masked input would help to open it."""
    session = federation.start().run(Step.SHARES)
    waiting = session.clients[ACCUSER]
    privates = [pair.private for pair in waiting._data.keyed.joined.transport.values()]
    assert all(private in reachable(waiting, set()) for private in privates)
    ready = waiting.receive(session.server.outgoing[ACCUSER])
    masked, _ = ready.mask(*federation.words(ACCUSER))
    for state in (ready, masked):
        held = reachable(state, set())
        assert len(held) > 20
        assert not any(private in held for private in privates)
    with pytest.raises(ProtocolViolation) as caught:
        waiting.receive(garbage_for(federation, session, ACCUSER))
    assert not any(private in caught.value.evidence for private in privates)
    with pytest.raises(MisuseError, match="dead"):
        masked.receive(())


def test_after_a_complaint_the_session_is_over_and_nothing_was_released(federation: Federation) -> None:
    session, exhibit = complain(federation)
    for step in STEPS[1:2]:
        with pytest.raises(MisuseError, match="dead"):
            session.states[step][ACCUSER].receive(session.server.outgoing[ACCUSER])
    frame = session.clients[ACCUSER].abort("again", DEALER, encode_exhibit(exhibit))
    assert verdict(session, frame).guilty == DEALER
    federation = session.federation
    others = {name for name in federation.names if name != ACCUSER}
    session.advance(Step.MASKED, {ACCUSER})
    session.advance(Step.CONSISTENCY, {ACCUSER})
    session.advance(Step.UNMASK, {ACCUSER})
    assert set(session.published.survivors) == others


# Complaints that do not hold.


def forged(federation: Federation) -> dict[str, tuple[Session, Complaint]]:
    """The best a liar can do against an honest dealer, with everything that it and the coordinator know."""
    session = federation.start().run(Step.SHARES)
    other = federation.start(nonce=b"o" * 32).run(Step.SHARES)
    keys, shares = session.sent[Step.KEYS], session.sent[Step.SHARES]
    joined = session.clients[ACCUSER]._data.keyed.joined
    ciphertext = of(session.server.outgoing[ACCUSER], DEALER).attachment
    true = Complaint(
        keys[DEALER],
        keys[ACCUSER].without_attachment(),
        shares[DEALER].without_attachment(),
        roll_of(keys.values()),
        ciphertext,
        joined.transport[DEALER].private,
    )
    true = replace(true, dealer_keys=keys[DEALER].without_attachment())
    _, second = federation.join(ACCUSER, session.announce, salt="a second R1 that the dealer never saw")
    mine = KeyPair.from_private(b"l" * 32)
    body = Keys.decode(second.body)
    second = federation.sign(ACCUSER, replace(body, transport=(mine.public, *body.transport[1:])))
    forked = roll_of([second, *(frame for name, frame in keys.items() if name != ACCUSER)])
    unsent = [name for name in federation.names if name != "silo-4"]
    garbage = federation.sign(
        ACCUSER,
        replace(
            Shares.decode(shares[ACCUSER].body),
            dealt=(replace(Shares.decode(shares[ACCUSER].body).dealt[0], ciphertext=ciphertext_hash(b"g" * 228)),) * 5,
        ),
    )
    return {
        name: (session, exhibit)
        for name, exhibit in {
            "of shares that open": true,
            "with a key of its own": replace(true, private=mine.private),
            "with its key for another silo": replace(true, private=joined.transport["silo-2"].private),
            "with its mask key": replace(true, private=joined.mask.private),
            "with a second R1": replace(true, accuser_keys=second, private=mine.private),
            "with a second R1 in the roll": replace(true, accuser_keys=second, roll=forked, private=mine.private),
            "of an altered ciphertext": replace(true, ciphertext=bytes(CIPHERTEXT_SIZE)),
            "of no ciphertext": replace(true, ciphertext=b""),
            "of another silo's ciphertext": replace(
                true, ciphertext=of(session.server.outgoing["silo-2"], DEALER).attachment
            ),
            "of another session's R2": replace(true, shares=other.sent[Step.SHARES][DEALER].without_attachment()),
            "of another session": replace(
                true,
                dealer_keys=other.sent[Step.KEYS][DEALER].without_attachment(),
                shares=other.sent[Step.SHARES][DEALER].without_attachment(),
                ciphertext=of(other.server.outgoing[ACCUSER], DEALER).attachment,
            ),
            "with a shorter roll": replace(true, roll=roll_of(keys[name] for name in unsent)),
            "with a reordered roll": replace(true, roll=true.roll[::-1]),
            "without a roll": replace(true, roll=()),
            "with another silo's R1 for the dealer's": replace(true, dealer_keys=keys["silo-2"].without_attachment()),
            "of what another silo dealt": replace(true, shares=shares["silo-2"].without_attachment()),
            "of what it dealt itself": replace(true, dealer_keys=true.accuser_keys, shares=garbage),
            "of a changed R2": replace(true, shares=replace(true.shares, body=true.shares.body[:-1] + b"\0")),
            "with an R1 for an R2": replace(true, shares=true.dealer_keys),
        }.items()
    }


def test_a_false_complaint_convicts_who_signed_it_and_nobody_else(federation: Federation) -> None:
    cases = forged(federation)
    assert len(cases) == 19
    for name, (session, exhibit) in cases.items():
        evidence = encode_exhibit(exhibit)
        assert verdict(session, evidence).guilty == "", name
        frame = abort_frame(
            announcement=session.announcement.hash(),
            me=ACCUSER,
            signer=federation.identity[ACCUSER],
            released=False,
            reason="it dealt garbage",
            blamed=DEALER,
            evidence=evidence,
        )
        assert verdict(session, frame).guilty == ACCUSER, name
        assert verdict(session, replace(frame, attachment=b"")).guilty == "", name
        assert verdict(session, replace(frame, sender="silo-3")).guilty == "", name


def test_a_colluders_garbage_convicts_no_other_silo(federation: Federation) -> None:
    """A real garbage R2 beside an honest silo's R1 and this pair's true key; and an R2 for nobody."""
    session, true = complain(federation)
    victim = session.sent[Step.KEYS]["silo-2"].without_attachment()
    _, again = complain(federation, "silo-2")
    joined = federation.start().run(Step.SHARES).clients[ACCUSER]._data.keyed.joined
    claims = [
        replace(true, dealer_keys=victim, private=joined.transport["silo-2"].private),
        replace(true, dealer_keys=true.accuser_keys),
        replace(true, accuser_keys=victim),
        replace(again, accuser_keys=true.accuser_keys, private=true.private),
        replace(true, accuser_keys=true.dealer_keys, private=bytes(32)),
    ]
    for claim in claims:
        assert verdict(session, encode_exhibit(claim)).guilty in ("", DEALER)
    assert verdict(session, encode_exhibit(claims[0])).guilty == ""
    empty = federation.sign(DEALER, replace(Shares.decode(true.shares.body), dealt=()))
    assert verdict(session, encode_exhibit(replace(true, shares=empty))).guilty == ""
    assert verdict(session, encode_exhibit(WrongFrame(empty, true.roll))).guilty == DEALER


def test_an_honest_silo_never_signs_an_accusation_that_does_not_hold(federation: Federation) -> None:
    """Whatever its caller passes: signed, it would convict the silo itself."""
    for name, (session, exhibit) in forged(federation).items():
        fresh = federation.start().run(Step.SHARES)
        frame = fresh.clients["silo-3"].abort("it dealt garbage", DEALER, encode_exhibit(exhibit))
        assert frame.attachment == b"", name
        assert verdict(session, frame).guilty == ""


def test_a_complaint_of_a_cohort_of_which_some_never_came(federation: Federation) -> None:
    """U1 is smaller than the cohort: keys are found by the cohort's order, ciphertexts by U1's."""
    session = federation.start().run(Step.SHARES, lost={Step.KEYS: {"silo-0"}})
    frames = session.server.outgoing["silo-4"]
    honest = of(frames, DEALER)
    body = Shares.decode(honest.body)
    bad = federation.sign(DEALER, replace(body, tag_secret=b"h" * 32), honest.attachment)
    refused(session, "silo-4", swap(frames, bad), "tag secret", peer=DEALER)
