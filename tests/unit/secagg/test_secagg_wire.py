"""One encoding for every value: round trips, and nothing else is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secagg_harness import Federation

from secagg.bodies import (
    MAXIMUM_REASON,
    Abort,
    Consistency,
    Dealt,
    Keys,
    Masked,
    Opening,
    Publish,
    Shares,
    Unmask,
)
from secagg.errors import SecaggError, WireError
from secagg.exhibits import decode_exhibit
from secagg.session import Announcement
from secagg.wire import (
    MAXIMUM_ATTACHMENT,
    MAXIMUM_BODY,
    Frame,
    Reader,
    Step,
    Writer,
    check_name,
)

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True).filter(lambda name: len(name) <= 32)
hashes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
bodies: st.SearchStrategy[Any] = st.one_of(
    st.builds(Keys, hashes, names, st.lists(hashes, max_size=4).map(tuple), hashes, hashes, hashes),
    st.builds(Shares, hashes, names, hashes, st.lists(st.builds(Dealt, hashes, hashes, hashes), max_size=4).map(tuple)),
    st.builds(Masked, hashes, names, hashes, hashes),
    st.builds(Consistency, hashes, names, hashes),
    st.builds(
        Unmask,
        hashes,
        names,
        hashes,
        st.lists(
            st.builds(Opening, st.binary(min_size=66, max_size=66), st.binary(min_size=32, max_size=32)), max_size=4
        ).map(tuple),
    ),
    st.builds(
        Publish,
        hashes,
        hashes,
        hashes,
        st.lists(names, unique=True, max_size=4).map(tuple),
        st.lists(st.tuples(names, signatures), unique_by=lambda pair: pair[0], max_size=4).map(tuple),
    ),
    st.builds(
        Abort,
        hashes,
        hashes,
        names,
        st.booleans(),
        st.one_of(st.just(""), names),
        st.text(max_size=50),
        hashes,
    ),
)


@given(bodies)
def test_bodies_round_trip_and_every_cut_or_addition_is_refused(body: Any) -> None:
    data = body.encode()
    decode = type(body).decode
    assert decode(data) == body
    with pytest.raises(WireError):
        decode(data + b"\0")
    for cut in {0, 1, len(data) // 2, len(data) - 1}:
        with pytest.raises(WireError):
            decode(data[:cut])


@given(bodies, st.data())
def test_no_two_encodings_mean_the_same(body: Any, data: st.DataObject) -> None:
    encoded = bytearray(body.encode())
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    try:
        other = type(body).decode(bytes(encoded))
    except WireError:
        return
    assert other != body
    assert other.encode() == bytes(encoded)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_the_packages_own_errors(data: bytes) -> None:
    for decode in (
        Keys.decode,
        Shares.decode,
        Masked.decode,
        Consistency.decode,
        Unmask.decode,
        Publish.decode,
        Abort.decode,
        Announcement.decode,
        decode_exhibit,
    ):
        try:
            decode(data)
        except SecaggError:
            continue


@given(st.integers(1, 255), st.integers(0, 400))
def test_a_changed_announcement_is_refused_or_is_another(change: int, position: int) -> None:
    announcement = Federation().announcement()
    data = bytearray(announcement.encode())
    assert Announcement.decode(bytes(data)) == announcement
    data[position % len(data)] ^= change
    try:
        other = Announcement.decode(bytes(data))
    except SecaggError:
        return
    assert other != announcement
    assert other.encode() == bytes(data)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a b", "a\n", "é", "a" * 33, "a/b", "a\0"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(WireError):
        check_name(name)


def test_lists_beyond_their_limits_are_refused_before_they_are_read() -> None:
    many = [f"s{index}" for index in range(101)]
    for data in (Writer().names(many).done(), Writer().names(["a", "a"]).done()):
        with pytest.raises(WireError):
            Reader(data).names()
    prefix = Writer().fixed(bytes(32), 32).name("a")
    with pytest.raises(WireError, match="limit"):
        Keys.decode(prefix.uint(101, 2).done())
    prefix = Writer().fixed(bytes(32), 32).name("a").fixed(bytes(32), 32)
    prefix.uint(101, 2)
    for decode in (Shares.decode, Unmask.decode):
        with pytest.raises(WireError, match="limit"):
            decode(prefix.done())


@pytest.mark.parametrize(
    "body",
    [
        lambda head: head.uint(2, 1).blob(b"").blob(b"").fixed(bytes(32), 32),
        lambda head: head.uint(0, 1).blob(b"-a").blob(b"").fixed(bytes(32), 32),
        lambda head: head.uint(0, 1).blob(b"").blob(b"\xff").fixed(bytes(32), 32),
        lambda head: head.uint(0, 1).blob(b"").blob(b"x" * (MAXIMUM_REASON + 1)).fixed(bytes(32), 32),
    ],
    ids=["truth value", "name", "text", "length"],
)
def test_aborts_that_are_refused(body: Any) -> None:
    head = Writer().fixed(bytes(32), 32).fixed(bytes(32), 32).name("a")
    with pytest.raises(WireError):
        Abort.decode(body(head).done())


def test_frames_outside_their_limits_are_refused() -> None:
    class Large(bytes):
        def __len__(self) -> int:
            return MAXIMUM_ATTACHMENT + 1

    good = (Step.KEYS, "a", b"body", bytes(64))
    Frame(*good)
    for bad in (
        (8, "a", b"", bytes(64)),
        (-1, "a", b"", bytes(64)),
        (1, "A", b"", bytes(64)),
        (1, "a", bytes(MAXIMUM_BODY + 1), bytes(64)),
        (1, "a", b"", bytes(63)),
        (1, "a", b"", b""),
    ):
        with pytest.raises(WireError):
            Frame(*bad)
    with pytest.raises(WireError):
        Frame(*good, attachment=Large())


def test_writers_refuse_what_readers_would() -> None:
    writes: list[Callable[[], Writer]] = [
        lambda: Writer().uint(256, 1),
        lambda: Writer().uint(-1, 1),
        lambda: Writer().fixed(b"a", 2),
        lambda: Writer().name("A"),
    ]
    for write in writes:
        with pytest.raises(WireError):
            write()
    with pytest.raises(WireError):
        Reader(Writer().uint(1, 1).fixed(b"\xff", 1).done()).name()
    with pytest.raises(WireError):
        Reader(Writer().blob(b"abc").done()).blob(2)
