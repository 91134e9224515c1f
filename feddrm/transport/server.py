"""Making a server: mutual TLS 1.3 and the guard over every call. Nobody else constructs one."""

from __future__ import annotations

import errno
import logging
import socket
import time

import grpc
import grpc.aio

from feddrm.contract.authority import check_leaf, check_validity, parse_certificate
from feddrm.contract.errors import AlreadyRunningError, FeddrmError, InputError, VerificationError
from feddrm.contract.identity import Credentials, Role
from feddrm.transport.guard import Admit, Guard
from feddrm.transport.options import server_options
from feddrm.transport.recorder import Recorder

log = logging.getLogger(__name__)


def make_server(
    listen: str, *, federation: str, credentials: Credentials, admit: Admit, recorder: Recorder | None = None
) -> tuple[grpc.aio.Server, int]:
    """A server bound to `listen`, not started yet: add servicers to it, then `await server.start()`.

    Servicers' methods are async, read requests from their iterator argument and simply raise FeddrmErrors. Must be
    called where an event loop runs.

    Args:
        listen: HOST:PORT of the interface; port 0 lets the system choose.
        admit: see feddrm.transport.guard.Guard.
        recorder: records all traffic, for demo and tests only.

    Returns:
        the server and the port it listens on.

    Raises:
        AlreadyRunningError: the port is taken.
        InputError: the address cannot be listened on.
        VerificationError: the coordinator's certificate is not usable.
    """
    _check_own_certificate(federation, credentials)
    server = grpc.aio.server(options=server_options(), interceptors=(Guard(federation, admit, recorder),))
    tls = grpc.ssl_server_credentials(
        [(credentials.key, credentials.certificate)], root_certificates=credentials.root, require_client_auth=True
    )
    try:
        port = server.add_secure_port(listen, tls)
    except RuntimeError as error:
        raise _bind_error(listen) from error
    if recorder is not None:
        log.warning("All traffic of this server is being recorded.")
    return server, port


def _check_own_certificate(federation: str, credentials: Credentials) -> None:
    what = "The coordinator's certificate"
    certificate = parse_certificate(credentials.certificate, what=what)
    root = parse_certificate(credentials.root, what="The federation's root certificate")
    subject = check_leaf(certificate, root, what=what)
    check_validity(certificate, time.time_ns() // 1_000_000, what=what, remedy="Renew it with the operator's key.")
    if subject.role is not Role.COORDINATOR or subject.federation != federation:
        raise VerificationError(f"{what} is made out to {subject.uri}.")


def _bind_error(listen: str) -> FeddrmError:
    """gRPC does not say why it could not bind, so the system is asked."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except (OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return AlreadyRunningError(
                f"Another process listens on {listen} already.", remedy="Stop it, or choose another port."
            )
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not of the form HOST:PORT"
        return InputError(f"Cannot listen on {listen}: {reason}.", remedy="Check the address.")
    return InputError(f"Cannot listen on {listen}.", remedy="Check the address and the TLS files.")
