"""sid, transcript and agreement: whatever two silos may have been shown differently gives different values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from secagg_harness import Federation, of, stream, swap

from secagg.bodies import Consistency, Shares
from secagg.checks import agreement, ciphertext_hash, dealt_by, roll_of, session_id, transcript
from secagg.dealing import deal, receive_deal
from secagg.errors import ProtocolViolation, WireError
from secagg.keys import KeyPair, derive, sign
from secagg.labels import SELF_MASK, TRANSPORT_KEY
from secagg.wire import Step

SID = b"S" * 32


def test_the_sid_binds_r0_and_every_r1_with_its_signature_and_order(federation: Federation) -> None:
    frames = list(federation.start().run(Step.KEYS).sent[Step.KEYS].values())
    resigned = replace(frames[0], signature=bytes(64))
    rebodied = replace(frames[0], body=b"other")
    renamed = replace(frames[0], sender="other")
    values = {
        session_id(announced, roll_of(keys))
        for announced, keys in (
            (b"r0", frames),
            (b"r0!", frames),
            (b"r0", frames[1:]),
            (b"r0", frames[::-1]),
            (b"r0", [resigned, *frames[1:]]),
            (b"r0", [rebodied, *frames[1:]]),
            (b"r0", [renamed, *frames[1:]]),
        )
    }
    assert len(values) == 7


def test_the_agreement_binds_every_part() -> None:
    one, two = ("a", b"1" * 32), ("b", b"2" * 32)
    base: dict[str, Any] = {
        "session": SID,
        "u1": ("a", "b", "c"),
        "u2": ("a", "b", "c"),
        "masked": (one, two),
        "shares_transcript": b"t" * 32,
    }
    changes: list[dict[str, Any]] = [
        {},
        {"session": b"s" * 32},
        {"u1": ("a", "b", "c", "d")},
        {"u2": ("a", "b")},
        {"shares_transcript": b"u" * 32},
        {"masked": (one,)},
        {"masked": (("c", one[1]), two)},
        {"masked": (("a", b"3" * 32), two)},
        {"masked": (two, one)},
    ]
    assert len({agreement(**(base | change)) for change in changes}) == len(changes)


def test_two_r2_of_one_silo_shown_to_different_silos_stop_before_any_share(federation: Federation) -> None:
    """Same U2 by name, other R2 body: the transcript differs, so no honest silo signs R4 for both."""
    session = federation.start().run(Step.SHARES)
    entry = session.sent[Step.SHARES]["silo-4"]
    body = Shares.decode(entry.body)
    forked = replace(body, dealt=(*body.dealt[:4], replace(body.dealt[4], key_share=b"f" * 32)))
    frames = session.server.outgoing["silo-1"]
    second = sign(
        Step.SHARES, "silo-4", forked.encode(), federation.identity["silo-4"], of(frames, "silo-4").attachment
    )
    assert transcript(SID, dealt_by([entry])) != transcript(SID, dealt_by([second]))
    masked = []
    for name in federation.names[:4]:
        request = session.server.outgoing[name]
        if name == "silo-1":
            request = swap(frames, second)
        session.clients[name], frame = session.clients[name].receive(request).mask(*federation.words(name))
        masked.append(frame.without_attachment())
    for name in federation.names[:4]:
        with pytest.raises(ProtocolViolation, match="other shares"):
            session.clients[name].receive(tuple(masked))


def test_a_deal_opens_only_for_its_recipient_session_and_direction() -> None:
    sender, recipient = KeyPair.from_private(b"s" * 32), KeyPair.from_private(b"r" * 32)
    secret = sender.agree(recipient.public)
    dealt = deal(
        session=SID,
        me="a",
        u1=("a", "b", "c"),
        threshold=2,
        seed=b"b" * 32,
        mask_key=b"k" * 32,
        transport_secrets={"b": secret, "c": secret},
        entropy=stream("deal"),
    )
    entry, ciphertext = dealt.body.dealt[1], dealt.ciphertexts[0]
    assert ciphertext_hash(ciphertext) == entry.ciphertext
    assert receive_deal(dealt.body, entry, ciphertext, me="b", secret=secret).tag_secret == dealt.own.tag_secret
    wrong: list[tuple[Shares, str]] = [
        (dealt.body, "c"),
        (replace(dealt.body, session=b"T" * 32), "b"),
        (replace(dealt.body, sender="c"), "b"),
        (replace(dealt.body, sender="b"), "a"),
    ]
    for body, me in wrong:
        with pytest.raises(WireError, match="does not open"):
            receive_deal(body, entry, ciphertext, me=me, secret=secret)


def test_derived_keys_depend_on_secret_label_session_and_context() -> None:
    values = {
        derive(secret, label, sid, *context)
        for secret in (b"1" * 32, b"2" * 32)
        for label in (SELF_MASK, TRANSPORT_KEY)
        for sid in (SID, b"T" * 32)
        for context in ((), (b"a",), (b"b",), (b"a", b"b"), (b"b", b"a"), (b"ab",))
    }
    assert len(values) == 48


def test_every_silo_of_a_session_signs_the_same_agreement(federation: Federation) -> None:
    session = federation.start().run(Step.CONSISTENCY, lost={Step.SHARES: {"silo-2"}})
    assert len({Consistency.decode(frame.body).agreement for frame in session.sent[Step.CONSISTENCY].values()}) == 1


def test_a_share_that_is_no_field_element_is_refused_when_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dealer that signs the right hash of an impossible share: found at R2, not when shares are combined."""
    monkeypatch.setattr("secagg.dealing.split", lambda secret, threshold, count, entropy: (b"\xff" * 66,) * count)
    dealt = deal(
        session=SID,
        me="a",
        u1=("a", "b"),
        threshold=2,
        seed=b"b" * 32,
        mask_key=b"k" * 32,
        transport_secrets={"b": b"x" * 32},
        entropy=stream("deal"),
    )
    with pytest.raises(WireError, match="share of the self mask seed"):
        receive_deal(dealt.body, dealt.body.dealt[1], dealt.ciphertexts[0], me="b", secret=b"x" * 32)
