"""Options of both ends of a connection: keepalive, sizes, and which proxy."""

from __future__ import annotations

import pytest

from feddrm.contract.authority import Address
from feddrm.contract.codec_records import MAXIMUM_MESSAGE
from feddrm.contract.errors import (
    InputError,
)
from feddrm.transport import options
from feddrm.transport.options import channel_options, server_options


def test_both_ends_agree_about_keepalive_and_sizes() -> None:
    server, client = dict(server_options()), dict(channel_options(Address("agg.example.org", 8002), {}))
    assert int(client["grpc.keepalive_time_ms"]) >= 2 * int(server["grpc.http2.min_ping_interval_without_data_ms"])
    for name in ("grpc.keepalive_permit_without_calls", "grpc.max_send_message_length"):
        assert server[name] == client[name]
    assert server["grpc.max_receive_message_length"] == client["grpc.max_send_message_length"] == MAXIMUM_MESSAGE
    assert server["grpc.so_reuseport"] == 0
    assert int(client["grpc.max_reconnect_backoff_ms"]) <= 10_000
    assert options.KEEPALIVE_TIMEOUT_MS < options.CLIENT_KEEPALIVE_MS


def proxy(host: str, **environ: str) -> object:
    chosen = dict(channel_options(Address(host, 8002), environ))
    assert chosen["grpc.enable_http_proxy"] == ("grpc.http_proxy" in chosen)
    return chosen.get("grpc.http_proxy")


def test_which_proxy_is_used() -> None:
    a, b = "http://proxy.example.org:3128", "http://other.example.org:3128"
    assert proxy("agg.example.org") is None
    assert proxy("agg.example.org", https_proxy=a) == a
    assert proxy("agg.example.org", HTTPS_PROXY=a) == a
    assert proxy("agg.example.org", HTTPS_PROXY=a, https_proxy=b) == b
    assert proxy("agg.example.org", grpc_proxy=a, https_proxy=b) == a
    assert proxy("agg.example.org", https_proxy="proxy.example.org:3128") == a
    assert proxy("agg.example.org", HTTP_PROXY=a) is None
    assert proxy("agg.example.org", https_proxy="") is None
    for host in ("127.0.0.1", "127.8.9.10", "::1", "localhost"):
        assert proxy(host, https_proxy=a, grpc_proxy=a) is None


def test_who_needs_no_proxy() -> None:
    a = "http://proxy.example.org:3128"
    for entry in ("agg.example.org", ".example.org", "example.org", "*.example.org", "*", "x, AGG.example.org:8002"):
        assert proxy("agg.example.org", https_proxy=a, no_proxy=entry) is None, entry
        assert proxy("agg.example.org", https_proxy=a, NO_PROXY=entry) is None, entry
    for entry in ("", ",", "g.example.org", "example.com", "agg.example.org:1", "10.0.0.0/8"):
        assert proxy("agg.example.org", https_proxy=a, no_proxy=entry) == a, entry
    assert proxy("10.1.2.3", https_proxy=a, no_proxy="10.0.0.0/8") is None
    assert proxy("10.1.2.3", https_proxy=a, no_proxy="192.168.0.0/16,fd00::/8") == a


def test_a_proxy_that_cannot_be_used_is_named_without_its_password() -> None:
    with pytest.raises(InputError, match="https_proxy") as caught:
        proxy("agg.example.org", https_proxy="socks5://user:secret@proxy.example.org")
    assert "secret" not in str(caught.value)
