"""Malicious silos against the unmodified coordinator and unmodified peers: refused, blamed by name, evidence kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from secagg_harness import STEPS, Federation, at, frames_in, of, refused, rejected, swap

from secagg.bodies import Dealt, Keys, Shares
from secagg.dealing import CIPHERTEXT_SIZE
from secagg.errors import Failed, WireError
from secagg.hashing import blob_hash
from secagg.keys import KeyPair, check_public
from secagg.wire import MAXIMUM_PROOF, Frame, Step

# Every encoding of a point of low order on Curve25519 (cr.yp.to/ecdh.html), and the same with the ignored top bit set.
_P = 2**255 - 19
_ORDER_8 = (
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
)
LOW_ORDER = [value.to_bytes(32, "little") for value in (0, 1, _P - 1, _P, _P + 1)] + [
    bytes.fromhex(text) for text in _ORDER_8
]
LOW_ORDER += [point[:31] + bytes([point[31] | 0x80]) for point in LOW_ORDER]


# What every step shares.


@pytest.mark.parametrize("step", STEPS)
def test_the_coordinator_counts_only_members_own_frames(federation: Federation, step: Step) -> None:
    session = at(federation, step)
    frame = session.respond(step, "silo-1")
    other = federation.start(nonce=b"o" * 32).run(step).sent[step]["silo-1"]
    rejected(session, replace(frame, signature=bytes(64)), "valid signature")
    rejected(session, replace(frame, sender="silo-2"), "valid signature")
    rejected(session, replace(frame, sender="stranger"), "not a member")
    rejected(session, replace(frame, sender=""), "not a member")
    rejected(session, replace(frame, step=(step + 1) % 7), "where")
    rejected(session, other, "another session")
    trailing = federation.sign_raw("silo-1", step, frame.body + b"\0")
    rejected(session, trailing, "malformed", evidence=(trailing,))
    named = federation.sign_raw("silo-2", step, frame.body)
    rejected(session, named, "in the name of silo-1", evidence=(named,))
    session.server.receive(frame)
    assert "silo-1" not in session.server.missing


@pytest.mark.parametrize("step", STEPS)
def test_a_resend_changes_nothing_and_a_different_frame_is_refused(federation: Federation, step: Step) -> None:
    session = at(federation, step)
    session.collect(step)
    frame = session.sent[step]["silo-1"]
    session.server.receive(frame)
    rejected(session, replace(frame, attachment=frame.attachment + b"x"), "two ways")
    session.server.close()
    rejected(session, frame, "after the step was closed")
    with pytest.raises(Failed):
        session.server.close()


def test_two_differing_r1_of_one_silo_are_evidence(federation: Federation) -> None:
    session = federation.start()
    first = session.respond(Step.KEYS, "silo-1")
    session.server.receive(first)
    _, second = federation.join("silo-1", session.announce, salt="again")
    rejected(session, second, "signed two KEYS", evidence=(first, second))


def test_two_differing_r1_in_one_request_blame_the_silo_with_both(federation: Federation) -> None:
    session = federation.start().run(Step.KEYS)
    _, second = federation.join("silo-1", session.announce, salt="again")
    frames = session.server.outgoing["silo-0"]
    caught = refused(session, "silo-0", (*frames, second), "two KEYS", peer="silo-1")
    assert {frame.body for frame in frames_in(caught.evidence)} == {of(frames, "silo-1").body, second.body}


@pytest.mark.parametrize("step", STEPS[:4])
def test_what_a_silo_signed_wrongly_is_its_fault_also_when_it_is_relayed(federation: Federation, step: Step) -> None:
    """Malformed, or in another's name: the frame itself convicts its signer, not the coordinator."""
    for signer, extra, match in (("silo-1", b"\0", "malformed"), ("silo-2", b"", "in the name of silo-1")):
        session = federation.start().run(step)
        frames = session.server.outgoing["silo-0"]
        bad = federation.sign_raw(signer, step, of(frames, "silo-1").body + extra)
        caught = refused(session, "silo-0", swap(frames, bad), match, peer=signer)
        assert frames_in(caught.evidence) == [bad]


# R1


@pytest.mark.parametrize("point", LOW_ORDER, ids=[point.hex()[:8] + point.hex()[-2:] for point in LOW_ORDER])
@pytest.mark.parametrize("which", ["transport", "mask"])
def test_low_order_keys_are_refused_by_coordinator_and_silos(federation: Federation, point: bytes, which: str) -> None:
    session = federation.start()
    frame = session.respond(Step.KEYS, "silo-1")
    body = Keys.decode(frame.body)
    changes: Any = {"mask": point} if which == "mask" else {"transport": (*body.transport[:3], point)}
    bad = federation.sign("silo-1", replace(body, **changes), frame.attachment)
    rejected(session, bad, "low order", evidence=(bad,))
    session = federation.start().run(Step.KEYS)
    frames = swap(session.server.outgoing["silo-0"], bad)
    caught = refused(session, "silo-0", frames, "low order", peer="silo-1")
    assert frames_in(caught.evidence) == [bad.without_attachment()]


def test_low_order_points_are_all_and_only_these() -> None:
    """The five u whose eightfold is no point: 0 and +-1 by their form, two more solve the doubling formula for 1."""
    for point in range(7, 300):
        with contextlib.suppress(WireError):
            assert KeyPair.from_private(b"k" * 32).agree(point.to_bytes(32, "little"))
            check_public(point.to_bytes(32, "little"))
    for text in _ORDER_8:
        u = int.from_bytes(bytes.fromhex(text), "little")
        assert ((u * u - 1) ** 2 - 4 * u * (u * u + 486662 * u + 1)) % _P == 0
    for point in LOW_ORDER:
        with pytest.raises(WireError):
            KeyPair.from_private(b"k" * 32).agree(point)


def test_one_key_for_two_uses_is_refused(federation: Federation) -> None:
    session = federation.start()
    frame = session.respond(Step.KEYS, "silo-1")
    body = Keys.decode(frame.body)
    for changed in (
        replace(body, mask=body.transport[1]),
        replace(body, transport=(*body.transport[:2], body.transport[0], body.transport[3])),
    ):
        bad = federation.sign("silo-1", changed, frame.attachment)
        rejected(session, bad, "one key", evidence=(bad,))
        victim = federation.start().run(Step.KEYS)
        refused(victim, "silo-0", swap(victim.server.outgoing["silo-0"], bad), "one key", peer="silo-1")


def test_one_key_in_two_encodings_is_refused(federation: Federation) -> None:
    """X25519 ignores the top bit and reduces modulo p: equal keys must not look different."""
    session = federation.start()
    frame = session.respond(Step.KEYS, "silo-1")
    body = Keys.decode(frame.body)
    twin = body.mask[:31] + bytes([body.mask[31] | 0x80])
    own = KeyPair.from_private(b"k" * 32)
    assert own.agree(twin) == own.agree(body.mask)
    for key in (twin, (_P + 9).to_bytes(32, "little")):
        bad = federation.sign("silo-1", replace(body, transport=(*body.transport[:3], key)), frame.attachment)
        rejected(session, bad, "malformed", evidence=(bad,))


def test_another_number_of_transport_keys_than_peers_is_refused(federation: Federation) -> None:
    session = federation.start()
    frame = session.respond(Step.KEYS, "silo-1")
    body = Keys.decode(frame.body)
    more = (*body.transport, KeyPair.from_private(b"k" * 32).public)
    for transport in ((), body.transport[:3], more):
        bad = federation.sign("silo-1", replace(body, transport=transport), frame.attachment)
        rejected(session, bad, "in a cohort of 5", evidence=(bad,))
        victim = federation.start().run(Step.KEYS)
        refused(victim, "silo-0", swap(victim.server.outgoing["silo-0"], bad), "in a cohort of 5", peer="silo-1")


def test_a_ledger_proof_that_was_not_signed_or_is_too_large_is_refused(federation: Federation) -> None:
    session = federation.start()
    frame = session.respond(Step.KEYS, "silo-1")
    rejected(session, replace(frame, attachment=b"other"), "ledger proof")
    large = bytes(MAXIMUM_PROOF + 1)
    body = replace(Keys.decode(frame.body), proof=blob_hash(large))
    rejected(session, federation.sign("silo-1", body, large), "ledger proof")


# R2


def redeal(federation: Federation, frame: Frame, position: int, ciphertext: bytes) -> Frame:
    """silo-1's R2 with another, properly signed ciphertext for the silo at `position`."""
    body = Shares.decode(frame.body)
    entry = replace(body.dealt[position], ciphertext=blob_hash(ciphertext))
    dealt = (*body.dealt[:position], entry, *body.dealt[position + 1 :])
    return federation.sign("silo-1", replace(body, dealt=dealt), ciphertext)


@pytest.mark.parametrize(
    ("garbage", "match"),
    [
        (lambda c: bytes(CIPHERTEXT_SIZE), "does not open"),
        (lambda c: c[:-1] + bytes([c[-1] ^ 1]), "does not open"),
        (lambda c: bytes([c[0] ^ 1]) + c[1:], "does not open"),
        (lambda c: c[:-1], "wrong length"),
        (lambda c: c + b"\0", "wrong length"),
        (lambda c: b"", "wrong length"),
    ],
)
def test_garbage_that_a_silo_signed_blames_that_silo(
    federation: Federation, garbage: Callable[[bytes], bytes], match: str
) -> None:
    session = federation.start().run(Step.SHARES)
    frames = session.server.outgoing["silo-0"]
    victim = of(frames, "silo-1")
    bad = redeal(federation, victim, 0, garbage(victim.attachment))
    caught = refused(session, "silo-0", swap(frames, bad), match, peer="silo-1")
    assert bad.without_attachment() in frames_in(caught.evidence)


def test_a_ciphertext_meant_for_another_silo_or_session_does_not_open(federation: Federation) -> None:
    session = federation.start().run(Step.SHARES)
    old = federation.start(nonce=b"o" * 32).run(Step.SHARES)
    frames = session.server.outgoing["silo-0"]
    for stolen in (
        of(session.server.outgoing["silo-2"], "silo-1").attachment,
        of(old.server.outgoing["silo-0"], "silo-1").attachment,
    ):
        session = federation.start().run(Step.SHARES)
        bad = redeal(federation, of(frames, "silo-1"), 0, stolen)
        refused(session, "silo-0", swap(frames, bad), "does not open", peer="silo-1")


@pytest.mark.parametrize(
    ("field", "match"),
    [("seed_share", "self mask seed"), ("key_share", "mask key"), ("tag_secret", "tag secret")],
)
def test_contents_that_differ_from_their_signed_hashes_blame_the_dealer(
    federation: Federation, field: str, match: str
) -> None:
    session = federation.start().run(Step.SHARES)
    frames = session.server.outgoing["silo-0"]
    victim = of(frames, "silo-1")
    body = Shares.decode(victim.body)
    changes: Any = {field: b"h" * 32}
    if field == "tag_secret":
        bad = replace(body, **changes)
    else:
        bad = replace(body, dealt=(replace(body.dealt[0], **changes), *body.dealt[1:]))
    refused(session, "silo-0", swap(frames, federation.sign("silo-1", bad, victim.attachment)), match, peer="silo-1")


def test_shares_dealt_to_another_set_are_refused_by_both(federation: Federation) -> None:
    session = at(federation, Step.SHARES)
    frame = session.respond(Step.SHARES, "silo-1")
    body = Shares.decode(frame.body)
    entry = Dealt(b"1" * 32, b"2" * 32, b"3" * 32)
    for dealt in (body.dealt[:-1], (*body.dealt, entry), ()):
        bad = federation.sign("silo-1", replace(body, dealt=dealt), frame.attachment)
        rejected(session, bad, "another set", evidence=(bad,))
        victim = federation.start().run(Step.SHARES)
        own = replace(bad, attachment=of(victim.server.outgoing["silo-0"], "silo-1").attachment)
        refused(victim, "silo-0", swap(victim.server.outgoing["silo-0"], own), "another set", peer="silo-1")


def test_the_coordinator_refuses_ciphertexts_other_than_were_signed(federation: Federation) -> None:
    session = at(federation, Step.SHARES)
    frame = session.respond(Step.SHARES, "silo-1")
    rejected(session, replace(frame, attachment=frame.attachment[:-1]), "wrong length")
    rejected(session, replace(frame, attachment=bytes(len(frame.attachment))), "other than were signed")
    swapped = frame.attachment[CIPHERTEXT_SIZE:] + frame.attachment[:CIPHERTEXT_SIZE]
    rejected(session, replace(frame, attachment=swapped), "other than were signed")
