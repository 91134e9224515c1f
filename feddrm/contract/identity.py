"""Who a member is: its name in a certificate, and three keys made on the machine that uses them (design section 4).

TLS (ECDSA P-256: gRPC's TLS accepts neither Ed25519 nor P-521), identity (Ed25519, signs protocol messages and ledger
heads) and sealing (HPKE with MLKEM768-X25519). The identity key signs the sealing key, so that not even the operator
can put another sealing key under a member's name unnoticed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Self, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from feddrm.contract import labels
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.files import private_write, read_private
from feddrm.contract.names import check_name
from feddrm.contract.signed import signing_input

K = TypeVar("K")

MLKEM_PUBLIC: Final = 1184
SEALING_PUBLIC: Final = MLKEM_PUBLIC + 32
_MLKEM_SEED: Final = 64
_SEALING_ARMOUR: Final = ("-----BEGIN FEDDRM SEALING KEY-----", "-----END FEDDRM SEALING KEY-----")

# Encodings (sign bit cleared) of the Ed25519 points of order 1, 2, 4 and 8, the non-canonical ones included. Under such
# a key one signature verifies for many messages, so its owner could deny what it signed.
_SMALL_ORDER: Final = frozenset(
    {
        (0).to_bytes(32, "little"),
        (1).to_bytes(32, "little"),
        (2**255 - 20).to_bytes(32, "little"),
        (2**255 - 19).to_bytes(32, "little"),
        (2**255 - 18).to_bytes(32, "little"),
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
        bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    }
)


class Role(StrEnum):
    """What a certificate lets its holder be."""

    SILO = "silo"
    QUERIER = "querier"
    OPERATOR = "operator"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Subject:
    """A role and a name within a federation, as certificates carry them."""

    federation: str
    role: Role
    name: str

    def __post_init__(self) -> None:
        check_name(self.federation)
        check_name(self.name)

    @property
    def uri(self) -> str:
        """The subject as the one URI SAN of its certificate."""
        return f"feddrm://{self.federation}/{self.role.value}/{self.name}"

    @classmethod
    def parse(cls, uri: str) -> Self:
        """Read a URI SAN.

        Raises:
            MalformedError: anything but feddrm://FEDERATION/ROLE/NAME, exactly.
        """
        match = re.fullmatch(r"feddrm://([a-z0-9-]{1,32})/([a-z]{1,16})/([a-z0-9-]{1,32})", uri)
        if match is None:
            raise MalformedError("A certificate's URI does not have the form feddrm://FEDERATION/ROLE/NAME.")
        try:
            return cls(match[1], Role(match[2]), match[3])
        except ValueError as error:
            raise MalformedError("A certificate's URI holds an unknown role or a malformed name.") from error


@dataclass(frozen=True, slots=True)
class SealingKey:
    """The private half of a sealing pair: ML-KEM-768 seed (64 bytes) and X25519 key (32 bytes)."""

    seed: bytes = field(repr=False)
    x25519: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        """A fresh key from the operating system's entropy."""
        return cls(MLKEM768PrivateKey.generate().private_bytes_raw(), X25519PrivateKey.generate().private_bytes_raw())

    def hpke(self) -> MLKEM768X25519PrivateKey:
        """The key as pyca's HPKE takes it."""
        return MLKEM768X25519PrivateKey(
            MLKEM768PrivateKey.from_seed_bytes(self.seed), X25519PrivateKey.from_private_bytes(self.x25519)
        )

    def public(self) -> bytes:
        """1216 bytes: ML-KEM-768 encapsulation key (1184), X25519 public key (32)."""
        return (
            MLKEM768PrivateKey.from_seed_bytes(self.seed).public_key().public_bytes_raw()
            + X25519PrivateKey.from_private_bytes(self.x25519).public_key().public_bytes_raw()
        )

    def to_text(self) -> bytes:
        """The armoured text of the key file."""
        return "\n".join(
            (_SEALING_ARMOUR[0], base64.b64encode(self.seed + self.x25519).decode(), _SEALING_ARMOUR[1], "")
        ).encode()

    @classmethod
    def from_text(cls, text: bytes) -> Self:
        """Read the armoured text.

        Raises:
            ValueError: not of that form.
        """
        lines = text.decode("ascii").split()
        if " ".join(lines[:4]) != _SEALING_ARMOUR[0] or " ".join(lines[5:]) != _SEALING_ARMOUR[1]:
            raise ValueError("no sealing key")
        try:
            raw = base64.b64decode(lines[4], validate=True)
        except binascii.Error as error:
            raise ValueError("no sealing key") from error
        if len(raw) != _MLKEM_SEED + 32:
            raise ValueError("wrong length")
        return cls(raw[:_MLKEM_SEED], raw[_MLKEM_SEED:])


def sealing_public_key(raw: bytes) -> MLKEM768X25519PublicKey:
    """A sealing key from its 1216 public bytes.

    Raises:
        MalformedError: wrong length, no valid ML-KEM key, or an X25519 point of small order.
    """
    if len(raw) != SEALING_PUBLIC:
        raise MalformedError(f"A sealing key has {SEALING_PUBLIC} bytes, not {len(raw)}.")
    try:
        mlkem = MLKEM768PublicKey.from_public_bytes(raw[:MLKEM_PUBLIC])
        mlkem.encapsulate()  # The modulus check of FIPS 203 section 7.2 runs here in some backends.
        x25519 = X25519PublicKey.from_public_bytes(raw[MLKEM_PUBLIC:])
        # A point of small order gives the all-zero secret with any private key, which pyca refuses.
        X25519PrivateKey.from_private_bytes(bytes([1] * 32)).exchange(x25519)
    except ValueError as error:
        raise MalformedError("A sealing key is not a valid MLKEM768-X25519 key.") from error
    return MLKEM768X25519PublicKey(mlkem, x25519)


def check_identity_key(raw: bytes) -> None:
    """Refuse an Ed25519 public key that cannot bind its owner.

    Raises:
        MalformedError: wrong length, no point of the curve, or of small order.
    """
    if len(raw) != 32 or (raw[:31] + bytes([raw[31] & 0x7F])) in _SMALL_ORDER:
        raise MalformedError("An identity key is not a usable Ed25519 key.")
    try:
        Ed25519PublicKey.from_public_bytes(raw)
    except ValueError as error:
        raise MalformedError("An identity key is not a usable Ed25519 key.") from error


def _sealing_statement(name: str, sealing: bytes) -> bytes:
    return signing_input(labels.SEALING_KEY, len(name).to_bytes(8) + name.encode() + sealing)


def sign_sealing_key(identity: Ed25519PrivateKey, name: str, sealing: bytes) -> bytes:
    """The identity key's signature (64 bytes) on the member's sealing key."""
    return identity.sign(_sealing_statement(name, sealing))


def verify_sealing_key(identity: bytes, name: str, sealing: bytes, signature: bytes) -> None:
    """Check that a sealing key was signed by its member's identity key.

    Raises:
        VerificationError: it was not: somebody else put it there.
    """
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, _sealing_statement(name, sealing))
    except (InvalidSignature, ValueError) as error:
        raise VerificationError(f"The sealing key of {name} is not signed by its identity key.") from error


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one end of a TLS connection holds: root and own certificate, and its key; all PEM."""

    root: bytes
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MemberKeys:
    """The three private keys of a silo or querier."""

    tls: ec.EllipticCurvePrivateKey = field(repr=False)
    identity: Ed25519PrivateKey = field(repr=False)
    sealing: SealingKey = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        """Fresh keys from the operating system's entropy."""
        return cls(ec.generate_private_key(ec.SECP256R1()), Ed25519PrivateKey.generate(), SealingKey.generate())

    @property
    def identity_public(self) -> bytes:
        """Ed25519 public key, 32 bytes."""
        return self.identity.public_key().public_bytes_raw()

    def save(self, directory: Path) -> None:
        """Write the three key files (0600) into an existing directory.

        Raises:
            InputError: one exists already, or cannot be written.
        """
        private_write(directory / "tls.key", private_pem(self.tls))
        private_write(directory / "identity.key", private_pem(self.identity))
        private_write(directory / "sealing.key", self.sealing.to_text())

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the three key files.

        Raises:
            InputError: one is missing or damaged.
            NotAuthorisedError: other users may read one.
        """
        return cls(
            load_tls_key(directory / "tls.key"),
            load_signing_key(directory / "identity.key"),
            _load(directory / "sealing.key", SealingKey.from_text),
        )


def private_pem(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    """PKCS #8 PEM without encryption: file permissions protect it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load_tls_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a P-256 key file; errors as `MemberKeys.load`."""

    def parse(data: bytes) -> ec.EllipticCurvePrivateKey:
        key = load_pem_private_key(data, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ValueError("not P-256")
        return key

    return _load(path, parse)


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read an Ed25519 key file; errors as `MemberKeys.load`."""

    def parse(data: bytes) -> Ed25519PrivateKey:
        key = load_pem_private_key(data, None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("not Ed25519")
        return key

    return _load(path, parse)


def _load(path: Path, parse: Callable[[bytes], K]) -> K:
    data = read_private(path)
    try:
        return parse(data)
    except (ValueError, TypeError, IndexError):
        # Not chained: a parser's message might quote the file, which holds a secret.
        raise InputError(
            f"{path} is not a key that feddrm wrote, or is damaged.", remedy="Restore it from a backup."
        ) from None
