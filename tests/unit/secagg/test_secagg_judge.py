"""The judge is total, and bound to its announcement and roster; the encoding of evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secagg_harness import Federation, verdict
from secagg_proofs import (
    convictions,
    honest_secret,
    opening_fault,
    roll,
    whole,
)

from secagg import labels
from secagg.bodies import Dealt, Keys, Opening, Shares, Unmask
from secagg.checks import agreement, dealt_by, roll_of, session_id, share_hash, transcript
from secagg.errors import WireError
from secagg.evidence import judge
from secagg.exhibits import (
    Complaint,
    Conflict,
    Exhibit,
    Loose,
    WrongFrame,
    WrongOpening,
    WrongSecret,
    decode_exhibit,
    encode_exhibit,
    is_exhibit,
    loose,
)
from secagg.session import Announcement
from secagg.wire import MAXIMUM_EVIDENCE, MAXIMUM_PROOF, MAXIMUM_SILOS, Frame, Step


def test_evidence_holds_for_its_own_announcement_and_roster_only(federation: Federation) -> None:
    session, evidence = opening_fault(federation)
    body = session.announce.body
    assert judge(evidence, body, federation.members).guilty == "silo-1"
    assert judge(evidence, federation.announcement(attempt=2).encode(), federation.members).guilty == ""
    assert judge(evidence, body + b"\0", federation.members).guilty == ""
    assert judge(evidence, b"", federation.members).guilty == ""
    assert judge(evidence, body, {}).guilty == ""
    assert judge(evidence, body, dict.fromkeys(federation.members, b"")).guilty == ""
    strangers = Federation(name="other").members
    assert judge(evidence, body, strangers).guilty == ""


def test_an_abort_says_nothing_where_its_evidence_is_none(federation: Federation) -> None:
    session = federation.start().run(Step.SHARES)
    for evidence in (b"", b'{"a ledger": "proof"}', loose([session.announce]), labels.EVIDENCE, b"\0" * 100):
        frame = federation.start().run(Step.SHARES).clients["silo-0"].abort("broken", "silo-1", evidence)
        assert verdict(session, frame).guilty == ""
    for frame in (session.announce, session.sent[Step.KEYS]["silo-1"]):
        assert verdict(session, frame).guilty == ""
    other = federation.start(nonce=b"o" * 32).run(Step.SHARES).clients["silo-0"].abort("x")
    assert "another announcement" in verdict(session, other).reason


def test_there_is_a_proof_of_every_kind() -> None:
    kinds = {type(decode_exhibit(evidence)) for _, evidence, _ in convictions()}
    assert kinds == {WrongFrame, Conflict, Complaint, WrongOpening, WrongSecret}
    for body, evidence, guilty in convictions():
        assert judge(evidence, body, Federation().members).guilty == guilty


@given(st.sampled_from(range(5)), st.integers(0), st.integers(1, 255), st.sampled_from(["flip", "cut", "insert"]))
def test_changed_proofs_convict_nobody_else(kind: int, position: int, change: int, how: str) -> None:
    body, evidence, guilty = convictions()[kind]
    at_byte = position % len(evidence)
    changed = bytearray(evidence)
    if how == "flip":
        changed[at_byte] ^= change
    elif how == "cut":
        del changed[at_byte]
    else:
        changed.insert(at_byte, change)
    assert judge(bytes(changed), body, Federation().members).guilty in ("", guilty)


@given(st.integers(0, 7), st.binary(max_size=400), st.binary(max_size=100))
def test_the_judge_raises_nothing(kind: int, data: bytes, body: bytes) -> None:
    for evidence in (data, labels.EVIDENCE + bytes([kind]) + data):
        for announce in (body, Federation().announcement().encode()):
            assert judge(evidence, announce, Federation().members).guilty == ""


def test_what_colluders_sign_together_raises_nothing(federation: Federation) -> None:
    """Consistent to the last hash, but of a silo outside U1, and of a dealer whose R1 has too few keys."""
    session = whole(federation)
    outsider = "silo-3"
    u1 = tuple(entry for entry in roll(session) if entry[0] != outsider)
    sid = session_id(session.announcement.hash(), u1)
    names = [name for name, _ in u1]
    value = agreement(sid, names, [], (), transcript(sid, ()))
    unmask = federation.sign(outsider, Unmask(sid, outsider, value, ()))
    claim = WrongOpening(unmask, unmask, u1, (), ())
    assert "not a member" in verdict(session, encode_exhibit(claim)).reason
    longer = federation.sign(outsider, Unmask(sid, outsider, value, (Opening(bytes(66), bytes(32)),)))
    assert verdict(session, encode_exhibit(replace(claim, unmask=longer))).guilty == ""

    keys = {name: frame.without_attachment() for name, frame in session.sent[Step.KEYS].items()}
    for liar in ("silo-1", "silo-0"):
        few = dict(keys)
        few[liar] = federation.sign(liar, replace(Keys.decode(keys[liar].body), transport=()))
        forked = roll_of(few.values())
        body = Shares.decode(session.sent[Step.SHARES]["silo-1"].body)
        shares = federation.sign("silo-1", replace(body, session=session_id(session.announcement.hash(), forked)))
        complaint = Complaint(few["silo-1"], few["silo-0"], shares, forked, b"", bytes(32))
        assert "0 transport keys" in verdict(session, encode_exhibit(complaint)).reason


def test_a_colluders_r2_that_hashes_shares_in_a_victims_name_convicts_nobody_else(federation: Federation) -> None:
    """silo-1 signs salted hashes of junk as if silo-2 had dealt it: all t open, and give no secret of silo-2."""
    session = whole(federation)
    sid, victim = session.server.session, "silo-2"
    junk = Opening(bytes(66), bytes(32))
    names = federation.names
    hashes = [share_hash(labels.SELF_SHARE, sid, victim, name, junk.share, junk.salt) for name in names]
    shares = federation.sign("silo-1", Shares(sid, "silo-1", bytes(32), tuple(Dealt(h, h, h) for h in hashes)))
    keys = session.sent[Step.KEYS][victim].without_attachment()
    openings = tuple((name, junk) for name in names[: federation.threshold])
    claim = WrongSecret(keys, shares, roll(session), False, openings)
    assert verdict(session, encode_exhibit(claim)).guilty == ""
    empty = federation.sign("silo-1", Shares(sid, "silo-1", bytes(32), ()))
    own = session.sent[Step.KEYS]["silo-1"].without_attachment()
    assert verdict(session, encode_exhibit(replace(claim, keys=own, shares=empty))).guilty == ""
    second = federation.sign("silo-1", replace(Keys.decode(own.body), seed=bytes(32)))
    true = honest_secret(session, "silo-1")
    assert verdict(session, encode_exhibit(replace(true, keys=second))).guilty == ""


def test_a_share_of_a_dealer_that_dealt_to_another_set_convicts_no_holder(federation: Federation) -> None:
    """Colluders sign on from an R2 that honest silos refuse: the R2 is the fault, not what is opened of it."""
    session = whole(federation)
    empty = federation.sign("silo-1", Shares(session.server.session, "silo-1", bytes(32), ()))
    dealt = dealt_by((empty,))
    names = [name for name, _ in roll(session)]
    value = agreement(session.server.session, names, ["silo-1"], (), transcript(session.server.session, dealt))
    opening = Opening(bytes(66), bytes(32))
    unmask = federation.sign("silo-4", Unmask(session.server.session, "silo-4", value, (opening,)))
    claim = WrongOpening(unmask, empty, roll(session), dealt, ())
    assert "another set" in verdict(session, encode_exhibit(claim)).reason
    assert verdict(session, encode_exhibit(claim)).guilty == ""


# The encoding.

names = st.sampled_from([f"silo-{index}" for index in range(9)])
hashes = st.binary(min_size=32, max_size=32)
frames = st.builds(
    Frame, st.sampled_from(list(Step)), names, st.binary(max_size=40), st.binary(min_size=64, max_size=64)
)
rolls = st.lists(st.tuples(names, hashes), unique_by=lambda entry: entry[0], max_size=4).map(tuple)
openings = st.builds(Opening, st.binary(min_size=66, max_size=66), hashes)
exhibits: st.SearchStrategy[Exhibit] = st.one_of(
    st.builds(Loose, st.lists(frames, max_size=3).map(tuple)),
    st.builds(WrongFrame, frames, rolls),
    st.builds(Conflict, frames, frames, rolls),
    st.builds(Complaint, frames, frames, frames, rolls, st.binary(max_size=1024), hashes),
    st.builds(WrongOpening, frames, frames, rolls, rolls, rolls),
    st.builds(
        WrongSecret,
        frames,
        frames,
        rolls,
        st.booleans(),
        st.lists(st.tuples(names, openings), unique_by=lambda entry: entry[0], max_size=4).map(tuple),
    ),
)


@given(exhibits)
def test_evidence_round_trips_and_every_cut_or_addition_is_refused(exhibit: Exhibit) -> None:
    data = encode_exhibit(exhibit)
    assert is_exhibit(data)
    assert decode_exhibit(data) == exhibit
    for bad in (data + b"\0", data[:-1], data[:5], b"", data[: len(labels.EVIDENCE)] + b"\x07" + data[26:]):
        with pytest.raises(WireError):
            decode_exhibit(bad)


def test_oversized_evidence_is_refused() -> None:
    large = loose([Frame(Step.KEYS, "silo-0", bytes(60_000), bytes(64))] * 5)
    assert len(large) > MAXIMUM_EVIDENCE
    with pytest.raises(WireError, match="limit"):
        decode_exhibit(large)


def test_evidence_about_the_largest_session_travels_with_an_abort() -> None:
    """100 silos of the longest names: the largest kind holds U1, U2 and U3, an R2 and an R5."""
    people = [f"{index:032}" for index in range(MAXIMUM_SILOS)]
    entries = tuple((name, bytes(32)) for name in people)
    shares = Frame(Step.SHARES, people[0], bytes(32 + 33 + 32 + 2 + 96 * MAXIMUM_SILOS), bytes(64))
    unmask = Frame(Step.UNMASK, people[0], bytes(32 + 33 + 32 + 2 + 98 * MAXIMUM_SILOS), bytes(64))
    largest = encode_exhibit(WrongOpening(unmask, shares, entries, entries, entries))
    assert len(largest) < min(MAXIMUM_PROOF, MAXIMUM_EVIDENCE) // 4
    assert isinstance(decode_exhibit(largest), WrongOpening)


def test_a_private_key_in_evidence_does_not_print() -> None:
    exhibit = decode_exhibit(convictions()[2][1])
    assert isinstance(exhibit, Complaint)
    assert repr(exhibit.private) not in repr(exhibit)
    assert Announcement.decode(convictions()[2][0]).cohort
