"""The federation's certificate authority: one root, leaves for members, coordinator, operator (design 4, 10).

A request contributes its public key and nothing else. Subject, extended key usage and subject alternative names are
the authority's own: exactly one URI SAN decides a role, members can only be TLS clients, the coordinator only a server.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.identity import Role, Subject

DAY_MS: Final = 86_400_000
ROOT_DAYS: Final = 3650
LEAF_DAYS: Final = 365
# A certificate is valid from an hour before its making: machines' clocks differ, and a fresh one must work at once.
CLOCK_SKEW_MS: Final = 3_600_000

_HOST = re.compile(r"(?=.{1,253}\Z)(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*\Z")


@dataclass(frozen=True, slots=True)
class Address:
    """Where silos reach the coordinator."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read HOST:PORT; an IPv6 host stands in brackets.

        Raises:
            InputError: not of that form.
        """
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})", text)
        if match is None or not 0 < int(match[3]) < 65536:
            raise InputError(f"The address {text!r} is not of the form HOST:PORT, such as agg.example.org:8002.")
        host = (match[1] or match[2]).lower()
        if match[1] is not None or re.fullmatch(r"[0-9.]+", host):
            try:
                host = str(ipaddress.ip_address(host))
            except ValueError as error:
                raise InputError(f"The address {text!r} does not hold a valid IP address.") from error
        elif not _HOST.match(host):
            raise InputError(f"The address {text!r} does not hold a valid host name.")
        return cls(host, int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def general_name(self) -> x509.GeneralName:
        """The SAN by which TLS recognises the host."""
        try:
            return x509.IPAddress(ipaddress.ip_address(self.host))
        except ValueError:
            return x509.DNSName(self.host)


@dataclass(frozen=True, slots=True)
class Authority:
    """The root's certificate and private key: with the operator, never with a server."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)


def _time(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms // 1000, datetime.UTC)


def day(ms: int) -> str:
    """The UTC date and minute of a time in milliseconds since the epoch, for messages."""
    return f"{_time(ms):%Y-%m-%d %H:%M} UTC"


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def create_authority(federation: str, now_ms: int, *, days: int = ROOT_DAYS) -> Authority:
    """Make a root key and its self-signed certificate, which can sign leaves only (path length 0)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"feddrm {federation} root")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_ms - CLOCK_SKEW_MS))
        .not_valid_after(_time(now_ms + days * DAY_MS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def issue(
    authority: Authority,
    public_key: ec.EllipticCurvePublicKey,
    subject: Subject,
    now_ms: int,
    *,
    days: int = LEAF_DAYS,
    address: Address | None = None,
) -> x509.Certificate:
    """Issue a leaf for `subject`.

    Args:
        public_key: P-256; all that is taken from a request.
        address: the coordinator's; becomes its DNS or IP SAN.

    Raises:
        ValueError: an address for anybody but the coordinator, none for the coordinator, or not P-256.
    """
    serves = subject.role is Role.COORDINATOR
    if serves != (address is not None):
        raise ValueError("exactly the coordinator's certificate carries an address")
    if not isinstance(public_key.curve, ec.SECP256R1):
        raise ValueError("TLS keys are P-256")
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(subject.uri)]
    if address is not None:
        names.append(address.general_name())
    usage = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
    end_ms = min(now_ms + days * DAY_MS, _milliseconds(authority.certificate.not_valid_after_utc))
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject.name)]))
        .issuer_name(authority.certificate.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_ms - CLOCK_SKEW_MS))
        .not_valid_after(_time(end_ms))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _milliseconds(moment: datetime.datetime) -> int:
    return int(moment.timestamp()) * 1000


def pem(certificate: x509.Certificate) -> bytes:
    """PEM text."""
    return certificate.public_bytes(Encoding.PEM)


def parse_certificate(data: bytes, *, what: str) -> x509.Certificate:
    """Read exactly one PEM certificate.

    Raises:
        MalformedError: none, several, or damaged.
    """
    try:
        certificates = x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise MalformedError(f"{what} is not a PEM certificate.") from error
    if len(certificates) != 1:
        raise MalformedError(f"{what} holds {len(certificates)} certificates; exactly one is expected.")
    return certificates[0]


def certificate_hash(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the DER form (32 bytes), as rosters name certificates."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()


def key_bytes(certificate: x509.Certificate) -> bytes:
    """The certified public key, DER SubjectPublicKeyInfo: what two certificates of one key share."""
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def check_root(certificate: x509.Certificate, *, what: str) -> None:
    """Check that a certificate can be a federation's root.

    Raises:
        VerificationError: not a self-signed P-256 authority.
    """
    try:
        certificate.verify_directly_issued_by(certificate)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise VerificationError(f"{what} is not a root certificate.") from error
    if not constraints.ca or not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey):
        raise VerificationError(f"{what} is not a root certificate.")


def check_leaf(certificate: x509.Certificate, root: x509.Certificate, *, what: str) -> Subject:
    """Check that the root issued a certificate, with the key usage of the role that its one URI SAN names.

    Validity in time is `check_validity`'s matter.

    Raises:
        VerificationError: another authority's, or not of the form that `issue` makes.
    """
    try:
        certificate.verify_directly_issued_by(root)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usages = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise VerificationError(f"{what} was not issued by this federation's authority.") from error
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise VerificationError(f"{what} has {len(uris)} URI names; exactly one is expected.")
    subject = Subject.parse(uris[0])
    serves = subject.role is Role.COORDINATOR
    expected = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
    if usages != [expected] or constraints.ca or (not serves and len(list(names)) != 1):
        raise VerificationError(f"{what} does not have the form of a {subject.role.value}'s certificate.")
    return subject


def check_validity(certificate: x509.Certificate, now_ms: int, *, what: str, remedy: str = "") -> None:
    """Check that a certificate is valid now.

    Raises:
        VerificationError: expired, or not valid yet.
    """
    begin, end = _milliseconds(certificate.not_valid_before_utc), _milliseconds(certificate.not_valid_after_utc)
    if now_ms >= end:
        raise VerificationError(f"{what} expired on {day(end)}.", remedy=remedy)
    if now_ms < begin:
        raise VerificationError(
            f"{what} is valid from {day(begin)} on only.", remedy="Check this machine's clock and date."
        )
