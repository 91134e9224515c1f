from __future__ import annotations

import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.canonical import canonical_json, parse_canonical
from privacy.commitments import commit_dataset, commit_update
from privacy.errors import MalformedError
from privacy.events import PoissonSubsampledGaussian
from privacy.handover import Carry, Recovered, Successor
from privacy.leaves import (
    Abort,
    AbortReason,
    Caps,
    Commit,
    Dataset,
    Key,
    Leaf,
    Plan,
    Record,
    Release,
    Reserve,
    coarse_time,
)

TIME = "2027-01-15T08:00:00Z"
H = bytes(range(32))
EVENT = PoissonSubsampledGaussian(2.0, 0.04, 5)
LEAVES: list[Leaf] = [
    Key("feddrm/retina/hospital-a", H),
    Dataset(H, H, H, "patient id", 700),
    Plan(H, "job-1", 1e-5, 2.5, 2.5, (EVENT,), Caps(3.0, 3.0, 1e-5, 10.0, 10.0, 1e-4, 3), "0.1.0"),
    Reserve(H, 1, 2, EVENT, H),
    Commit(H, 1, 2, 17, H),
    Abort(H, 1, 2, AbortReason.LOST),
    Abort(H, 0, 0, AbortReason.STOPPED),
    Release(H, 1, 2, H, H),
    Successor(H, bytes(32), H, H + H, H + H),
    Recovered(H, 17, H, H + H),
    Recovered(H, 17, H, H + H, ("east", "west")),
    Carry(H, "job-1", 1e-5, 2.5, 2.5, (EVENT,), "patient id", 1000),
]


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaves_survive(leaf: Leaf) -> None:
    record = Record(TIME, leaf)
    assert Record.decode(record.encode()) == record


def test_reals_have_one_form() -> None:
    body = Record(TIME, LEAVES[3]).encode()
    assert b'"noise_multiplier":2,' in body
    with pytest.raises(MalformedError, match="canonical"):
        Record.decode(body.replace(b'"noise_multiplier":2,', b'"noise_multiplier":2.0,'))


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_missing_or_extra_field_is_refused(leaf: Leaf) -> None:
    fields = json.loads(Record(TIME, leaf).encode())
    for name in fields:
        rest = {other: value for other, value in fields.items() if other != name}
        with pytest.raises(MalformedError):
            Record.decode(canonical_json(rest))
    with pytest.raises(MalformedError):
        Record.decode(canonical_json({**fields, "batch_size": 17}))


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("value", [None, True, -1, 1.5, "", "x", [], {}, [1], {"a": 1}, 1e13])
def test_fields_of_another_kind_never_pass_unnoticed(leaf: Leaf, value: object) -> None:
    fields = json.loads(Record(TIME, leaf).encode())
    for name in fields:
        changed = canonical_json({**fields, name: value})
        try:
            record = Record.decode(changed)
        except MalformedError:
            continue
        # What is accepted means exactly what it says.
        assert record.encode() == changed


@pytest.mark.parametrize("kind", ["EVALUATE", "key", "__import__", "", 3, None, ["KEY"]])
def test_unknown_types_are_refused(kind: object) -> None:
    with pytest.raises(MalformedError):
        Record.decode(canonical_json({"type": kind, "time": TIME}))


@pytest.mark.parametrize(
    "time", ["2027-01-15T08:30:00Z", "2027-01-15T08:00:00", "2027-1-15T08:00:00Z", "2027-02-30T08:00:00Z", "", 8, None]
)
def test_times_are_whole_hours(time: object) -> None:
    fields = json.loads(Record(TIME, LEAVES[1]).encode())
    with pytest.raises(MalformedError):
        Record.decode(canonical_json({**fields, "time": time}))


def test_times_are_coarse() -> None:
    assert coarse_time(1_800_000_123_456) == coarse_time(1_800_000_000_000) == TIME


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":1}\n',
        b"\xef\xbb\xbf{}",
        b"\xff",
        b'{"a":"\\u0041"}',
        b'{"a":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b"1" * 5000,
        b"-0",
    ],
)
def test_what_is_not_canonical_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        Record.decode(body)


@pytest.mark.parametrize("body", [b"-0", b"1.0", b"1e2", b"12345678901234567890", b'"\\u0041"', b'{"b":1,"a":2}'])
def test_other_spellings_are_not_canonical(body: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_canonical(body)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53) + 1, 2**53 - 1)
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
def test_canonical_json_survives(value: object) -> None:
    body = canonical_json(value)
    assert parse_canonical(body) == value
    assert canonical_json(parse_canonical(body)) == body


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_what_is_promised(body: bytes) -> None:
    with pytest.raises(MalformedError):
        Record.decode(body)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**60, b"bytes", {1: 2}, "\ud800", object()])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(MalformedError):
        canonical_json(value)


def test_events_of_a_plan_are_canonical() -> None:
    fields = json.loads(Record(TIME, LEAVES[2]).encode())
    for events in ([EVENT.to_json()] * 2, [EVENT.to_json()] * 65, [{**EVENT.to_json(), "steps": 10**6}] * 2):
        with pytest.raises(MalformedError):
            Record.decode(canonical_json({**fields, "events": events}))


@pytest.mark.parametrize("value", [-1.0, 1e6, float("nan"), float("inf")])
def test_caps_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="cap"):
        Caps(value, 3, 1e-5, 10, 10, 1e-4, 3)
    with pytest.raises(ValueError, match="cap"):
        Caps(3, 3, value, 10, 10, 1e-4, 3)
    with pytest.raises(ValueError, match="cap"):
        Caps(3, 3, 1e-5, 10, 10, 1e-4, -1)


def test_commitments_bind_every_part() -> None:
    base = commit_update(b"k" * 32, H, 1, 2, b"update")
    others = {
        commit_update(b"l" * 32, H, 1, 2, b"update"),
        commit_update(b"k" * 32, H[::-1], 1, 2, b"update"),
        commit_update(b"k" * 32, H, 2, 1, b"update"),
        commit_update(b"k" * 32, H, 1, 3, b"update"),
        commit_update(b"k" * 32, H, 1, 2, b"updatf"),
        commit_dataset(b"k" * 32, sha256(b"update").digest(), bytes(32)),
    }
    assert len(others | {base}) == 7
    assert len(base) == 32
    for key, nonce in ((b"", bytes(32)), (b"k" * 32, b"")):
        with pytest.raises(ValueError, match="32 bytes"):
            commit_dataset(key, H, nonce)


def test_the_same_data_read_twice_looks_like_other_data() -> None:
    """An equal commitment would tell whoever sees the ledger that nothing had changed."""
    first, second = (commit_dataset(b"k" * 32, H, nonce) for nonce in (b"1" * 32, b"2" * 32))
    assert first != second
    assert first == commit_dataset(b"k" * 32, H, b"1" * 32)


@pytest.mark.parametrize("name", ["", " id", "id ", "a\nb", "a\x1b[2J", "x" * 129, 3, None])
def test_a_column_s_name_can_carry_nothing_else(name: object) -> None:
    fields = json.loads(Record(TIME, LEAVES[1]).encode())
    with pytest.raises(MalformedError, match="column"):
        Record.decode(canonical_json({**fields, "patient": name}))


@pytest.mark.parametrize("delta", [0, 9.9e-9, 1e-15, 5e-324, 1])
def test_a_delta_below_what_the_accountant_can_resolve_is_no_leaf(delta: float) -> None:
    fields = json.loads(Record(TIME, LEAVES[2]).encode())
    with pytest.raises(MalformedError, match="delta"):
        Record.decode(canonical_json({**fields, "delta": delta}))
