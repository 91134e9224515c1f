"""The short cut for values without odd reals writes and accepts exactly what RFC 8785 does."""

from __future__ import annotations

import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import MalformedError

TEXT = st.text(st.characters(max_codepoint=0x7F) | st.sampled_from("\u2014\u2028\uff00\U0001f600\u00e9"), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300)
@given(VALUES)
def test_every_canonical_text_is_accepted(value: Any) -> None:
    data = canonical_json(value)
    assert canonical_json(parse_canonical(data)) == data


@settings(max_examples=300)
@given(st.floats(1e-5, 1e-3) | st.floats(2.0**52, 2.0**54) | st.floats(allow_nan=False, allow_infinity=False))
def test_reals_are_written_as_ecmascript_writes_them(value: float) -> None:
    for real in (value, -value):
        assert canonical_json([real]) == rfc8785.dumps([real])


@settings(max_examples=300)
@given(VALUES | st.integers(-(2**54), 2**54).map(float) | st.lists(st.integers(-9, 9).map(float)))
def test_every_value_is_written_as_the_standard_says(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_way_leads_round_a_real_that_is_not_finite(value: float) -> None:
    for wrapped in (value, [value], {"a": [1.0, value]}):
        with pytest.raises(MalformedError):
            canonical_json(wrapped)


@settings(max_examples=300)
@given(VALUES, st.booleans(), st.booleans(), st.booleans())
def test_another_spelling_is_refused(value: Any, ordered: bool, ascii_only: bool, spaced: bool) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    data = json.dumps(value, sort_keys=ordered, ensure_ascii=ascii_only, separators=separators).encode()
    if data == canonical_json(value):
        parse_canonical(data)
        return
    with pytest.raises(MalformedError):
        parse_canonical(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a": 1}',
        b"[-0]",
        b"[01]",
        b"[1e0]",
        b"[1.0]",
        b"[9007199254740993]",
        b'["\\u0041"]',
        b'["\\/"]',
        b'["\\u001F"]',
        b'["\\u000a"]',
        b'["\\ud800"]',
        b'["\\u00e9"]',
        b'{"\\u20ac":1,"\\ud83d\\ude00":2}',
        '{"\uff00":1,"\U0001f600":2}'.encode(),
        b"[NaN]",
        b"[1]\n",
        b"[" * 100_000,
    ],
)
def test_what_is_not_canonical_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_canonical(data)


@pytest.mark.parametrize(
    "data",
    [
        b'["\\u001f\\n\\t\\"\\\\/\x7f"]',
        b'{"":null,"A":true,"a":[]}',
        b"[9007199254740991]",
        '{"\U0001f600":2,"\uff00":"\u2028"}'.encode(),
    ],
)
def test_what_is_canonical_is_accepted(data: bytes) -> None:
    assert canonical_json(parse_canonical(data)) == data
