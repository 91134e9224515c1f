"""Who calls, and what each role may call: the identity of a TLS peer and the one table of rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from feddrm.contract.authority import certificate_hash, parse_certificate
from feddrm.contract.chunks import CHUNK_BYTES
from feddrm.contract.codec_records import MAXIMUM_MESSAGE
from feddrm.contract.errors import MalformedError, NotAuthorisedError
from feddrm.contract.identity import Role, Subject

_SERVICES: Final[Mapping[Role, tuple[str, tuple[str, ...]]]] = {
    Role.SILO: ("SiloService", ("Hello", "Attend", "Upload", "UploadStatus", "Fetch", "Serve")),
    Role.OPERATOR: (
        "OperatorService",
        ("Hello", "PublishRoster", "StartJob", "StopJob", "Status", "ListReleases", "PublishRelease"),
    ),
    Role.QUERIER: ("QueryService", ("Hello", "GetRelease", "Fetch", "Route", "Ask")),
}

# A method that is missing here is refused to everybody; a test holds it against the protobuf descriptors.
ROLE_OF_METHOD: Final[Mapping[str, Role]] = {
    f"/feddrm.v1.{service}/{method}": role for role, (service, methods) in _SERVICES.items() for method in methods
}


# Requests of methods that carry little, in bytes: what is larger is refused before it is parsed. An event on a control
# stream is a frame with its evidence, or a signed record, at most.
_LARGEST: Final[Mapping[str, int]] = {
    "/feddrm.v1.SiloService/Attend": 1 << 20,
    "/feddrm.v1.SiloService/Upload": CHUNK_BYTES + 1024,
    "/feddrm.v1.SiloService/UploadStatus": 1024,
    "/feddrm.v1.SiloService/Fetch": 1024,
    "/feddrm.v1.QueryService/Fetch": 1024,
}


def largest_request(method: str) -> int:
    """The most bytes that one request message of a method may have."""
    return _LARGEST.get(method, MAXIMUM_MESSAGE)


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a mutual TLS connection. `certificate` is the SHA-256 of its DER form, as rosters hold it;
    `expires_ms` is when it expires (Unix milliseconds), for TLS checks that only when a connection begins."""

    federation: str
    role: Role
    name: str
    certificate: bytes
    expires_ms: int

    @property
    def uri(self) -> str:
        """The name in its certificate."""
        return Subject(self.federation, self.role, self.name).uri


class Context(Protocol):
    """The part of gRPC's servicer context that tells who calls."""

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Properties of the authenticated peer."""


def peer_of(context: Context) -> Peer:
    """The caller of an RPC: its role and name from exactly one URI SAN, never from any other name.

    Raises:
        NotAuthorisedError: not mutual TLS 1.3, or a certificate without exactly one feddrm URI.
    """
    properties = context.auth_context()
    if list(properties.get("ssl_tls_version", ())) != [b"TLSv1.3"]:
        raise NotAuthorisedError("The connection does not use TLS 1.3.")
    uris, certificates = properties.get("peer_uri", ()), properties.get("x509_pem_cert", ())
    if len(uris) != 1 or len(certificates) != 1:
        raise NotAuthorisedError("The peer does not show exactly one certificate with exactly one URI.")
    try:
        subject = Subject.parse(uris[0].decode("ascii"))
        digest, expires_ms = _facts(bytes(certificates[0]))
    except (UnicodeDecodeError, MalformedError) as error:
        raise NotAuthorisedError("The peer's certificate is not a feddrm member's.") from error
    return Peer(subject.federation, subject.role, subject.name, digest, expires_ms)


@lru_cache(maxsize=1024)
def _facts(certificate: bytes) -> tuple[bytes, int]:
    """Hash and expiry of a certificate (PEM); every call of a connection shows the same one."""
    parsed = parse_certificate(certificate, what="The peer's certificate")
    return certificate_hash(parsed), int(parsed.not_valid_after_utc.timestamp() * 1000)
