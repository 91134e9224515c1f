"""What a hospital gives to auditors: read strictly, and without any secret."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from privacy_cases import DATA, NOW, ORIGIN

from privacy.bundle import Bundle, export_bundle, parse_bundle
from privacy.errors import MalformedError
from privacy.ledger import Ledger


def test_bundles_survive(ledger: Ledger) -> None:
    ledger.append(DATA, now_ms=NOW)
    text = export_bundle(ledger, witnessed={"feddrm/retina/b": b"note\n"}, roster="roster é", plans=["plan"])
    bundle = parse_bundle(text.encode())
    expected = Bundle(
        ORIGIN, ledger.bodies(), ledger.head(), {"feddrm/retina/b": b"note\n"}, (), "roster é", (), ("plan",)
    )
    assert bundle == expected


@pytest.mark.parametrize(
    "change",
    [
        {"format": "feddrm ledger bundle 1"},
        {"origin": "elsewhere"},
        {"origin": None},
        {"leaves": {}},
        {"leaves": [1]},
        {"leaves": ["\ud800"]},
        {"head": None},
        {"witnessed": []},
        {"witnessed": {"x": "y"}},
        {"witnessed": {"feddrm/retina/b": 1}},
        {"roster": {}},
        {"plans": "x"},
        {"plans": [None]},
        {"key": "secret"},
    ],
)
def test_malformed_bundles_are_refused(ledger: Ledger, change: dict[str, object]) -> None:
    fields = json.loads(export_bundle(ledger, witnessed={}, roster="", plans=[]))
    with pytest.raises(MalformedError):
        parse_bundle(json.dumps({**fields, **change}).encode())


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"format":1,"format":1}'])
def test_what_is_no_bundle_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_bundle(text)


@given(st.binary(max_size=100))
def test_random_bytes_are_no_bundle(text: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_bundle(text)


def test_a_bundle_holds_no_private_key(ledger: Ledger) -> None:
    text = export_bundle(ledger, witnessed={}, roster="", plans=[])
    secret = b"s" * 32
    assert secret.hex() not in text
    assert secret.decode() not in text
