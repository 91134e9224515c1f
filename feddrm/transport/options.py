"""Channel and server options, in the only place that sets them, so that both ends always agree (design section 10)."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from typing import Final

from feddrm.contract.authority import Address
from feddrm.contract.codec_records import MAXIMUM_MESSAGE
from feddrm.contract.errors import InputError

Options = list[tuple[str, int | str]]

# Twice the interval that the server allows: a client that pings more often than its server allows is cut off with
# GOAWAY too_many_pings. Thirty seconds is below the idle limit of common NAT gateways and proxies.
CLIENT_KEEPALIVE_MS: Final = 30_000
SERVER_KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
MINIMUM_PING_INTERVAL_MS: Final = 15_000
# The default is two minutes, in which who shows no certificate holds a connection.
HANDSHAKE_TIMEOUT_MS: Final = 10_000
# Members have two connections at most; a hundred hospitals and many queriers have room.
MAXIMUM_CONNECTIONS: Final = 1024
_OTHER_FILES: Final = 256

_COMMON: Final[Options] = [
    ("grpc.max_send_message_length", MAXIMUM_MESSAGE),
    ("grpc.max_receive_message_length", MAXIMUM_MESSAGE),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


def most_connections(files: int) -> int:
    """How many connections a server may have that may open so many files.

    Whoever reaches the port can open connections, and when no descriptor is left the process cannot write what it must.
    """
    return min(MAXIMUM_CONNECTIONS, files - min(_OTHER_FILES, files // 2))


def _files() -> int:
    """How many files this process may open: as many as it is allowed to ask for, within reason."""
    wanted = MAXIMUM_CONNECTIONS + _OTHER_FILES
    if sys.platform == "win32":
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


def server_options() -> Options:
    """Options of every server. Raises how many files this process may open where the system lets it."""
    return [
        *_COMMON,
        ("grpc.max_allowed_incoming_connections", most_connections(_files())),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        # Or a second server on the same port starts without an error and gets half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", SERVER_KEEPALIVE_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", MINIMUM_PING_INTERVAL_MS),
        ("grpc.max_concurrent_streams", 128),
    ]


def channel_options(address: Address, environ: Mapping[str, str] | None = None) -> Options:
    """Options of every channel to `address`.

    Raises:
        InputError: the environment names a proxy that cannot be used.
    """
    return [
        *_COMMON,
        ("grpc.keepalive_time_ms", CLIENT_KEEPALIVE_MS),
        # The default is two minutes: a coordinator that was restarted would wait that long for its silos.
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 10_000),
        # Otherwise two channels of one process share a connection, and answers queue behind model chunks.
        ("grpc.use_local_subchannel_pool", 1),
        *_proxy_options(address, os.environ if environ is None else environ),
    ]


def _proxy_options(address: Address, environ: Mapping[str, str]) -> Options:
    """gRPC would send loopback connections through https_proxy and ignore the upper-case names; so the choice is made
    here, and gRPC is told the result."""
    direct: Options = [("grpc.enable_http_proxy", 0)]
    if address.is_loopback:
        return direct
    # Upper-case HTTP_PROXY is left out on purpose: in a CGI environment the client of a request chooses it.
    name = next((n for n in ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy") if environ.get(n)), None)
    if name is None:
        return direct
    exempt = next((environ[n] for n in ("no_grpc_proxy", "no_proxy", "NO_PROXY") if environ.get(n)), "")
    if any(_exempts(entry.strip(), address) for entry in exempt.split(",")):
        return direct
    proxy = environ[name] if "://" in environ[name] else f"http://{environ[name]}"
    if not proxy.startswith("http://"):
        # The value may hold a password, so it is not quoted.
        raise InputError(
            f"The environment variable {name} names a proxy that is not of the form http://HOST:PORT.",
            remedy=f"Set it so, or add {address.host} to no_proxy.",
        )
    return [("grpc.enable_http_proxy", 1), ("grpc.http_proxy", proxy)]


def _exempts(entry: str, address: Address) -> bool:
    """Whether one entry of no_proxy (a host, a domain, a network, or *) covers the address."""
    entry = entry.lower().removesuffix(f":{address.port}").strip("[]")
    try:
        return ipaddress.ip_address(address.host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        domain = entry.removeprefix("*").removeprefix(".")
        return entry == "*" or (domain != "" and f".{address.host}".endswith(f".{domain}"))
