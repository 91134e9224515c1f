"""Making channels: mutual TLS to the coordinator of one federation. Nobody else constructs one."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from dataclasses import dataclass

import grpc
import grpc.aio

from feddrm.contract.authority import Address, check_leaf, check_validity, parse_certificate
from feddrm.contract.errors import UnreachableError, VerificationError
from feddrm.contract.identity import Credentials
from feddrm.transport.options import channel_options
from feddrm.transport.status import BusyError, DisconnectedError, error_of, translated

__all__ = [
    "BusyError",
    "DisconnectedError",
    "TlsFacts",
    "error_of",
    "make_channel",
    "make_sync_channel",
    "probe_tls",
    "translated",
]

_RENEW = "Ask the operator for a new kit."


def check_own_certificate(credentials: Credentials, now_ms: int) -> None:
    """Check this member's own certificate, because a server that refuses it merely closes the connection.

    Raises:
        VerificationError: expired, not valid yet, or of another federation than the root.
    """
    what = "This member's certificate"
    certificate = parse_certificate(credentials.certificate, what=what)
    check_validity(certificate, now_ms, what=what, remedy=_RENEW)
    root = parse_certificate(credentials.root, what="The federation's root certificate")
    check_validity(root, now_ms, what="The federation's root certificate", remedy="Ask the operator.")
    check_leaf(certificate, root, what=what)


def _credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    check_own_certificate(credentials, time.time_ns() // 1_000_000)
    return grpc.ssl_channel_credentials(credentials.root, credentials.key, credentials.certificate)


def make_channel(address: Address, credentials: Credentials) -> grpc.aio.Channel:
    """An asyncio channel. Each channel has a connection of its own; errors of calls: see `translated`.

    Raises:
        VerificationError: see check_own_certificate.
        InputError: an unusable proxy in the environment.
    """
    return grpc.aio.secure_channel(str(address), _credentials(credentials), options=channel_options(address))


def make_sync_channel(address: Address, credentials: Credentials) -> grpc.Channel:
    """A blocking channel, for commands; otherwise as make_channel."""
    return grpc.secure_channel(str(address), _credentials(credentials), options=channel_options(address))


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """What a server's TLS does: the version it chose, and whether it serves a client without certificate."""

    version: str
    client_auth: bool


def probe_tls(address: Address, root: bytes, *, timeout: float = 10.0) -> TlsFacts:
    """Ask a server how it does TLS, by connecting (never through a proxy) without a certificate.

    Raises:
        UnreachableError: no connection.
        VerificationError: the server's certificate is not acceptable.
    """
    context = ssl.create_default_context(cadata=root.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((address.host, address.port), timeout) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as tls,
        ):
            version = tls.version() or "none"
            greeting = b""
            # In TLS 1.3 the client's handshake is over before the server looks for a certificate; so what tells is
            # whether the server then greets (HTTP/2 SETTINGS) or closes.
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
                greeting = tls.recv(9)
            return TlsFacts(version, client_auth=not greeting)
    except ssl.SSLCertVerificationError as error:
        raise VerificationError(
            f"The certificate at {address} is not acceptable: {error.verify_message}.", remedy="Check the address."
        ) from error
    except OSError as error:
        raise UnreachableError(f"No connection to {address}: {error.strerror or error}.") from error
