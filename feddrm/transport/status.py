"""Errors to gRPC status and back. Outsiders get a fixed sentence; the detail stays in the log of whoever found it.

The trailing metadata key `feddrm-error` carries the error's kind, because gRPC's codes are too few to tell them apart
and gRPC itself uses some of them (RESOURCE_EXHAUSTED also means "message too large").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc

from feddrm.contract.errors import (
    AlreadyRunningError,
    BudgetError,
    FeddrmError,
    InputError,
    MalformedError,
    NotAuthorisedError,
    UnreachableError,
    UsageError,
    VerificationError,
)
from feddrm.contract.identity import Role

ERROR_KEY: Final = "feddrm-error"
_LONGEST_DETAIL: Final = 1000
Code = grpc.StatusCode


class BusyError(UnreachableError):
    """The other side works but has no room, or a rate limit is reached: ask again later."""


class DisconnectedError(UnreachableError):
    """The connection to the coordinator broke or could not be made; the coordinator itself said nothing."""


class NoReleaseError(UnreachableError):
    """No release is in service yet."""


class UnknownQuerierError(NotAuthorisedError):
    """The silo that is asked does not list the querier in the roster that it has approved."""


class SiloRefusedError(NotAuthorisedError):
    """The silo that is asked refuses the query; why stays in its log."""


class ReleaseChangedError(InputError):
    """A query is about a release that is no longer in service."""


@dataclass(frozen=True, slots=True)
class Status:
    """What goes over the wire in place of an error."""

    code: Any
    sentence: str
    kind: str


# The first class that fits wins, so subclasses stand before their bases.
_KINDS: Final[tuple[tuple[type[FeddrmError], Status], ...]] = (
    (MalformedError, Status(Code.INVALID_ARGUMENT, "The message does not have the agreed form.", "malformed")),
    (UnknownQuerierError, Status(Code.PERMISSION_DENIED, "The silo does not know this querier.", "unknown-querier")),
    (SiloRefusedError, Status(Code.PERMISSION_DENIED, "The silo refuses the query.", "silo-refused")),
    (NotAuthorisedError, Status(Code.PERMISSION_DENIED, "Not authorised.", "not-authorised")),
    (BusyError, Status(Code.RESOURCE_EXHAUSTED, "Busy; ask again later.", "busy")),
    (NoReleaseError, Status(Code.UNAVAILABLE, "No release is in service yet; ask again later.", "no-release")),
    (UnreachableError, Status(Code.UNAVAILABLE, "Whoever is needed for this cannot be reached now.", "unreachable")),
    (BudgetError, Status(Code.FAILED_PRECONDITION, "A budget or limit is used up.", "budget")),
    (VerificationError, Status(Code.FAILED_PRECONDITION, "A signature, hash or proof fails.", "verification")),
    (AlreadyRunningError, Status(Code.ALREADY_EXISTS, "Already running.", "already-running")),
    (ReleaseChangedError, Status(Code.FAILED_PRECONDITION, "Another release is in service now.", "release-changed")),
    (UsageError, Status(Code.FAILED_PRECONDITION, "The request is refused.", "input")),
    (InputError, Status(Code.FAILED_PRECONDITION, "The request is refused.", "input")),
)
_CLASSES: Final[dict[str, type[FeddrmError]]] = {status.kind: kind for kind, status in reversed(_KINDS)} | {
    "input": InputError
}
INTERNAL: Final = Status(Code.INTERNAL, "Internal error; the coordinator's log has the detail.", "internal")


def status_of(error: FeddrmError, caller: Role | None) -> Status:
    """The status that a caller may see.

    An operator also gets the sentence itself: it is about the operator's own input, and only the operator can act on
    it. Nobody else does, as it may tell about other members.
    """
    status = next((status for kind, status in _KINDS if isinstance(error, kind)), INTERNAL)
    if caller is Role.OPERATOR and status is not INTERNAL:
        text = "".join(c if c.isprintable() else " " for c in str(error))[:_LONGEST_DETAIL]
        return Status(status.code, text, status.kind)
    return status


# What gRPC's TLS says about the server's certificate, and what it means for a person.
_SERVER_CERTIFICATE: Final = (
    ("certificate has expired", "The coordinator's certificate at {0} has expired.", "Tell the operator."),
    ("certificate is not yet valid", "The coordinator's certificate at {0} is not valid yet.", "Check the clocks."),
    ("certificate purpose", "The certificate at {0} is not a coordinator's.", "Tell the operator."),
    (
        "Hostname Verification Check failed",
        "The certificate at {0} is made for another address.",
        "Check the address, or ask the operator for a certificate that names it.",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "The server at {0} does not belong to this federation: another authority issued its certificate.",
        "Check the address.",
    ),
)
_CONNECTION: Final = (
    ("Connection refused", "Nothing listens at {0}.", "Check the address and whether the coordinator runs."),
    ("lookup", "The host of {0} is not known.", "Check the address and the name service."),
    ("Domain name not found", "The host of {0} is not known.", "Check the address and the name service."),
    ("HTTP proxy", "The proxy on the way to {0} refuses the connection.", "Check https_proxy and no_proxy."),
    ("No route to host", "There is no network route to {0}.", "Check the network and the firewall."),
    ("Network is unreachable", "There is no network route to {0}.", "Check the network and the firewall."),
)
_CLOSED: Final = (
    "The server at {0} closed the connection.",
    "It is restarting, or it does not accept this member's certificate.",
)


_STRANGER: Final = (
    "Either side may not have the newest roster: the operator runs `feddrm-aggregator roster publish`, every hospital "
    "`feddrm-silo roster accept`."
)


def _unavailable(address: str, detail: str) -> FeddrmError:
    for text, message, remedy in _SERVER_CERTIFICATE:
        if text in detail:
            return VerificationError(message.format(address), remedy=remedy)
    for text, message, remedy in _CONNECTION:
        if text in detail:
            return DisconnectedError(message.format(address), remedy=remedy)
    message, remedy = _CLOSED
    return DisconnectedError(message.format(address), remedy=remedy)


def error_of(error: grpc.RpcError, address: object) -> FeddrmError:
    """The error that a person reads when an RPC to the coordinator at `address` fails.

    Returns:
        DisconnectedError (no connection), UnreachableError (no answer in time), VerificationError (the server's
        certificate), BusyError, or the kind that the coordinator named, with its sentence.
    """
    code, detail = error.code(), error.details() or ""
    kind = next((str(value) for key, value in error.trailing_metadata() or () if key == ERROR_KEY), None)
    if kind in _CLASSES:
        remedy = _STRANGER if kind == "not-authorised" else ""
        return _CLASSES[kind](f"The coordinator at {address} refuses: {_printable(detail)}", remedy=remedy)
    if kind is not None:
        return UnreachableError(f"The coordinator at {address} failed: {INTERNAL.sentence}")
    if code is Code.UNAVAILABLE:
        return _unavailable(str(address), detail)
    if code is Code.DEADLINE_EXCEEDED:
        return UnreachableError(f"The coordinator at {address} did not answer in time.")
    if code is Code.UNIMPLEMENTED:
        return UnreachableError(
            f"The coordinator at {address} does not know this call.", remedy="It runs another version of feddrm."
        )
    if code is Code.RESOURCE_EXHAUSTED:
        return MalformedError(f"A message to or from {address} exceeds the size limit.")
    return UnreachableError(f"The call to {address} failed ({code.name}).")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:_LONGEST_DETAIL]


@contextmanager
def translated(address: object) -> Iterator[None]:
    """Inside, gRPC's errors become FeddrmErrors (see error_of); works around sync and awaited calls alike."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error, address) from error
