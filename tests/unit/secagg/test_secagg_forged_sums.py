"""A malicious coordinator that publishes another sum than the survivors' (R6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from secagg_harness import Federation, Session

from secagg import keys
from secagg.bodies import Consistency, Publish
from secagg.errors import ProtocolViolation
from secagg.hashing import blob_hash
from secagg.wire import Frame, Step

Frames = tuple[Frame, ...]


def published(federation: Federation, lost: str = "") -> tuple[Session, Any]:
    session = federation.start().run(lost={Step.MASKED: {lost} if lost else set()})
    return session, session.published.frame


def republish(federation: Federation, frame: Frame, data: bytes, **changes: Any) -> Frame:
    """The coordinator signs whatever it likes, consistently."""
    body = replace(Publish.decode(frame.body), sum=blob_hash(data), **changes)
    return keys.sign(Step.PUBLISH, "", body.encode(), federation.round_key, data)


def add(data: bytes, position: int, value: int, dtype: str, count: int, offset: int = 0) -> bytes:
    words = np.frombuffer(data, dtype=dtype, count=count, offset=offset).copy()
    words[position] += np.array(value).astype(dtype)
    return data[:offset] + words.tobytes() + data[offset + words.nbytes :]


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "zeroed": lambda d: bytes(len(d)),
    "zeroed but for the tags": lambda d: bytes(len(d) - 16) + d[-16:],
    "doubled": lambda d: (
        (np.frombuffer(d, "<u4", 7) * 2).astype("<u4").tobytes()
        + (np.frombuffer(d, "<u8", offset=28) * 2).astype("<u8").tobytes()
    ),
    "shifted by one": lambda d: add(d, 0, 1, "<u4", 7),
    "shifted by a power of two": lambda d: add(d, 3, 1 << 19, "<u4", 7),
    "two entries that cancel": lambda d: add(add(d, 0, 1, "<u4", 7), 1, -1, "<u4", 7),
    "two entries exchanged": lambda d: d[4:8] + d[:4] + d[8:],
    "a 64-bit entry shifted": lambda d: add(d, 0, 1 << 30, "<u8", 4, 28),
    "a 64-bit entry shifted by a large power of two": lambda d: add(d, 1, -1 << 42, "<u8", 4, 28),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_sum_does_not_pass_its_tags(federation: Federation, forgery: str) -> None:
    session, frame = published(federation)
    data = FORGERIES[forgery](frame.attachment)
    assert data != frame.attachment
    with pytest.raises(ProtocolViolation, match="tags"):
        session.clients["silo-0"].receive(republish(federation, frame, data))
    session.clients["silo-1"].receive(frame)


@pytest.mark.parametrize("tag", [2, 3])
def test_each_tag_alone_refuses(federation: Federation, tag: int) -> None:
    """A forger who knew one tag's weights would still have to guess the other."""
    session, frame = published(federation)
    with pytest.raises(ProtocolViolation, match="tags"):
        session.clients["silo-0"].receive(republish(federation, frame, add(frame.attachment, tag, 1, "<u8", 4, 28)))


@pytest.mark.parametrize(
    ("position", "value", "dtype", "count", "offset"), [(0, 1 << 31, "<u4", 7, 0), (0, 1 << 63, "<u8", 4, 28)]
)
def test_a_shift_by_half_the_ring_is_refused_by_range_not_by_luck(
    federation: Federation, position: int, value: int, dtype: str, count: int, offset: int
) -> None:
    """2^63 in a 64-bit entry changes a tag only with probability 1/2: the range must refuse it."""
    session, frame = published(federation)
    data = frame.attachment[:offset] + b"".join(
        (int.from_bytes(frame.attachment[offset : offset + size], "little") ^ value).to_bytes(size, "little")
        for size in [int(dtype[2])]
    )
    data += frame.attachment[len(data) :]
    with pytest.raises(ProtocolViolation, match="range"):
        session.clients["silo-0"].receive(republish(federation, frame, data))


def test_a_sum_of_other_survivors_is_refused(federation: Federation) -> None:
    session, frame = published(federation)
    smaller = federation.start().run(lost={Step.MASKED: {"silo-4"}}).published.frame
    for forged in (
        republish(federation, frame, frame.attachment, survivors=federation.names[:4]),
        republish(federation, frame, frame.attachment, agreement=b"a" * 32),
        republish(federation, frame, frame.attachment, session=b"s" * 32),
        smaller,
    ):
        session, frame = published(federation)
        with pytest.raises(ProtocolViolation, match="other survivors or another session"):
            session.clients["silo-0"].receive(forged)


def test_a_sum_of_another_survivor_set_under_the_right_name_fails_its_tags(federation: Federation) -> None:
    """The masks of silo-4 are known to the coordinator, so it can leave silo-4's vector out; the offsets tell."""
    session, frame = published(federation)
    gone32, gone64 = federation.words("silo-4")
    small = np.frombuffer(frame.attachment, "<u4", 7) - gone32.astype("<u4")
    large = np.frombuffer(frame.attachment, "<u8", offset=28).copy()
    large[:2] -= gone64.astype("<u8")
    with pytest.raises(ProtocolViolation, match="tags"):
        session.clients["silo-0"].receive(republish(federation, frame, small.tobytes() + large.tobytes()))


def test_a_sum_without_t_signatures_is_refused(federation: Federation) -> None:
    session, frame = published(federation)
    good = Publish.decode(frame.body).signatures
    forged = (*good[:3], ("silo-3", good[2][1]))
    for signatures in (good[:3], forged, ()):
        session, frame = published(federation)
        with pytest.raises(ProtocolViolation, match="t signatures"):
            session.clients["silo-0"].receive(republish(federation, frame, frame.attachment, signatures=signatures))


def test_signatures_of_dropouts_do_not_certify_a_sum() -> None:
    federation = Federation(size=6, threshold=5, minimum_cohort=5, colluders=1)
    session = federation.start().run(lost={Step.MASKED: {"silo-5"}})
    frame = session.published.frame
    body = Publish.decode(frame.body)
    ghost = federation.sign("silo-5", Consistency(body.session, "silo-5", body.agreement))
    signatures = (*body.signatures[:4], ("silo-5", ghost.signature))
    with pytest.raises(ProtocolViolation, match="t signatures"):
        session.clients["silo-0"].receive(republish(federation, frame, frame.attachment, signatures=signatures))


@pytest.mark.parametrize(
    ("tamper", "match"),
    [
        (lambda f, p: replace(p, attachment=p.attachment[:-4]), "wrong length"),
        (lambda f, p: replace(p, attachment=b"\1" * len(p.attachment)), "other bytes"),
        (lambda f, p: keys.sign(Step.PUBLISH, "", p.body, f.identity["silo-1"], p.attachment), "round key"),
        (lambda f, p: keys.sign(Step.PUBLISH, "", p.body + b"\0", f.round_key, p.attachment), "malformed"),
        (lambda f, p: replace(p, sender="silo-1"), "not a published"),
        (lambda f, p: f.announce(f.announcement()), "not a published"),
    ],
)
def test_a_malformed_publication_is_refused(
    federation: Federation, tamper: Callable[[Federation, Frame], Frame], match: str
) -> None:
    session, frame = published(federation)
    with pytest.raises(ProtocolViolation, match=match):
        session.clients["silo-0"].receive(tamper(federation, frame))


def test_a_published_sum_resent_is_the_same_and_another_ends_the_session(federation: Federation) -> None:
    session, frame = published(federation)
    first = session.clients["silo-0"].receive(frame)
    assert session.clients["silo-0"].receive(frame) is first
    with pytest.raises(ProtocolViolation, match="second, different"):
        session.clients["silo-0"].receive(republish(federation, frame, bytes(len(frame.attachment))))
