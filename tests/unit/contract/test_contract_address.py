"""Addresses HOST:PORT, and what is none."""

from __future__ import annotations

import pytest

from feddrm.contract.authority import (
    Address,
)
from feddrm.contract.errors import InputError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("agg.example.org:8002", "agg.example.org", 8002),
        ("AGG.Example.org:1", "agg.example.org", 1),
        ("localhost:65535", "localhost", 65535),
        ("127.0.0.1:8002", "127.0.0.1", 8002),
        ("[::1]:8002", "::1", 8002),
        ("[2001:DB8:0::1]:8002", "2001:db8::1", 8002),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address)) == address
    assert address.is_loopback == (host in ("localhost", "127.0.0.1", "::1"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agg",
        ":8002",
        "agg:",
        "agg:0",
        "agg:65536",
        "agg:-1",
        "agg:8002x",
        "agg:8002\n",
        "a b:1",
        "::1:8002",
        "[::1]",
        "[zz]:1",
        "1.2.3:4",
        "999.1.1.1:4",
        "-a.org:1",
        "a..b:1",
        "https://agg.example.org:8002",
        "agg.example.org/x:1",
        "user@agg:1",
        "*.example.org:1",
        "a" * 64 + ":1",
        '"\n[x]:1',
    ],
)
def test_addresses_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"The address"):
        Address.parse(text)
