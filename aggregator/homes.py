"""The operator's and the server's directories: two hands that must not be one (design section 4).

    operator/  ca.key ca.pem operator.key tls.key tls.pem federation.root federation.toml roster.signed
    server/    tls.key tls.pem round.key federation.root server.toml roster.signed

The operator's directory moves offline or to the operator's own machine; with it one could start jobs and add members.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from pydantic import Field

from feddrm.contract.authority import Address, Authority, check_leaf, check_validity, key_bytes, parse_certificate
from feddrm.contract.errors import InputError, MalformedError, NotAuthorisedError, VerificationError
from feddrm.contract.files import (
    MAXIMUM_KEY,
    atomic_write,
    load_document,
    read_bounded,
)
from feddrm.contract.identity import Credentials, Role, load_signing_key, load_tls_key, private_pem
from feddrm.contract.kit import FederationRoot, load_federation_root
from feddrm.contract.locks import exclusive
from feddrm.contract.names import Document, Name
from feddrm.contract.roster import Roster, verify_roster
from feddrm.contract.signed import Signed

ROOT_FILE: Final = "federation.root"
ROSTER_FILE: Final = "roster.signed"
FEDERATION_FILE: Final = "federation.toml"
SERVER_FILE: Final = "server.toml"
LOCK_FILE: Final = "roster.lock"


class FederationFile(Document):
    """operator/federation.toml."""

    federation: Name
    address: Annotated[str, Field(max_length=300)]


class ServerFile(Document):
    """server/server.toml. `listen` is where the server binds; `address` is how silos reach it."""

    federation: Name
    address: Annotated[str, Field(max_length=300)]
    listen: Annotated[str, Field(max_length=300)]


@dataclass(frozen=True, slots=True)
class OperatorHome:
    """The operator's directory, verified."""

    directory: Path
    anchor: FederationRoot
    address: Address
    authority: Authority = field(repr=False)
    key: Ed25519PrivateKey = field(repr=False)
    certificate: x509.Certificate
    tls: Credentials = field(repr=False)
    signed_roster: Signed = field(repr=False)
    roster: Roster = field(repr=False)

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self.anchor.federation

    def check_current(self, now_ms: int) -> None:
        """Refuse to connect with an expired certificate.

        Raises:
            VerificationError: it is expired or from the future.
        """
        check_validity(self.certificate, now_ms, what="The operator's certificate", remedy=_RENEW)


@dataclass(frozen=True, slots=True)
class ServerHome:
    """The coordinator's directory, verified. `listen` and `address` are HOST:PORT."""

    directory: Path
    anchor: FederationRoot
    address: Address
    listen: Address
    certificate: x509.Certificate
    tls: Credentials = field(repr=False)
    round_key: Ed25519PrivateKey = field(repr=False)
    signed_roster: Signed = field(repr=False)
    roster: Roster = field(repr=False)

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self.anchor.federation

    def check_current(self, now_ms: int) -> None:
        """Refuse to serve with an expired certificate or roster.

        Raises:
            VerificationError: one is expired or from the future.
        """
        check_validity(self.certificate, now_ms, what="The coordinator's certificate", remedy=_RENEW)
        self.roster.check_current(now_ms)


_RENEW: Final = "Run: feddrm-aggregator roster renew --operator DIR --server DIR"


def load_operator_home(directory: Path) -> OperatorHome:
    """Read and verify the operator's directory.

    Raises:
        InputError: no such directory, or a file is missing or damaged.
        NotAuthorisedError: other users may read a key.
        VerificationError: the files do not belong together.
    """
    anchor = _anchor(directory, "an operator's", FEDERATION_FILE)
    config = load_document(directory / FEDERATION_FILE, FederationFile)
    key = load_signing_key(directory / "operator.key")
    root_key = load_tls_key(directory / "ca.key")
    root = anchor.certificate()
    if key.public_key().public_bytes_raw() != anchor.operator:
        raise VerificationError(f"{directory / 'operator.key'} is not the key of this federation's operator.")
    if root_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != key_bytes(root):
        raise VerificationError(f"{directory / 'ca.key'} does not belong to this federation's root certificate.")
    certificate, tls = _tls(directory, anchor, Role.OPERATOR)
    signed, roster = _roster(directory, anchor)
    return OperatorHome(
        directory=directory,
        anchor=anchor,
        address=Address.parse(config.address),
        authority=Authority(root, root_key),
        key=key,
        certificate=certificate,
        tls=tls,
        signed_roster=signed,
        roster=roster,
    )


def load_server_home(directory: Path) -> ServerHome:
    """Read and verify the server's directory; errors as `load_operator_home`."""
    anchor = _anchor(directory, "a server's", SERVER_FILE)
    config = load_document(directory / SERVER_FILE, ServerFile)
    if config.federation != anchor.federation:
        raise InputError(f"{directory / SERVER_FILE}: federation must be {anchor.federation}, as in {ROOT_FILE}.")
    round_key = load_signing_key(directory / "round.key")
    certificate, tls = _tls(directory, anchor, Role.COORDINATOR)
    signed, roster = _roster(directory, anchor)
    if roster.round_key != round_key.public_key().public_bytes_raw():
        raise VerificationError(f"{directory / 'round.key'} is not the round key that the roster names.")
    return ServerHome(
        directory=directory,
        anchor=anchor,
        address=_address(directory, "address", config.address),
        listen=_address(directory, "listen", config.listen),
        certificate=certificate,
        tls=tls,
        round_key=round_key,
        signed_roster=signed,
        roster=roster,
    )


def install_roster(directory: Path, signed: Signed, now_ms: int) -> Roster:
    """Make a newer roster the server's, durably; the same one again changes nothing.

    Raises:
        VerificationError: forged, expired, of another round key, or not newer.
        MalformedError: not a roster.
    """
    with exclusive(directory / LOCK_FILE, what="Another command"):
        home = load_server_home(directory)
        roster = verify_roster(signed, federation=home.federation, operator=home.anchor.operator)
        if signed.body == home.signed_roster.body:
            return roster
        roster.check_current(now_ms)
        if roster.version <= home.roster.version:
            raise VerificationError(
                f"Roster version {roster.version} is not newer than the server's version {home.roster.version}."
            )
        if roster.round_key != home.roster.round_key:
            raise VerificationError("The roster names another round key than this server holds.")
        atomic_write(directory / ROSTER_FILE, signed.to_json().encode())
    return roster


def refuse_operator_key(directory: Path) -> None:
    """Refuse to serve where the operator's private keys can be read: the server's host must not be able to start jobs.

    Looks at every file in the server's directory, in an operator/ inside it and in one beside it, whatever its name.

    Raises:
        InputError: it is not a server's directory.
        NotAuthorisedError: one holds the operator's or the root's private key.
    """
    anchor = _anchor(directory, "a server's", SERVER_FILE)
    root = key_bytes(anchor.certificate())
    directory = directory.resolve()
    for place in (directory, directory / "operator", directory.parent / "operator"):
        for path in _readable_files(place):
            if _is_operator_key(path, anchor.operator, root):
                raise NotAuthorisedError(
                    f"{path} is the operator's private key; a server that can read it could start jobs by itself.",
                    remedy=f"Move {path.parent} to the operator's own machine, or offline.",
                )


def _readable_files(place: Path) -> list[Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_file())
    except OSError:
        return []  # Not there, or not for this user's eyes: as it should be.


def _is_operator_key(path: Path, operator: bytes, root: bytes) -> bool:
    try:
        data = read_bounded(path, limit=MAXIMUM_KEY)
        if b"PRIVATE KEY-----" not in data:
            return False
        public = load_pem_private_key(data, None).public_key()
    except (InputError, ValueError, TypeError):
        return False
    form = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    # Of Ed25519's SubjectPublicKeyInfo the last 32 bytes are the key (RFC 8410 section 4).
    return form == root or form[-32:] == operator


def check_server_directory(directory: Path) -> None:
    """Refuse a directory that is not a server's at all.

    Raises:
        InputError: it is not.
    """
    _anchor(directory, "a server's", SERVER_FILE)


def _anchor(directory: Path, whose: str, settings: str) -> FederationRoot:
    if not (directory / ROOT_FILE).is_file() or not (directory / settings).is_file():
        raise InputError(
            f"{directory} is not {whose} directory.",
            remedy="Make one with: feddrm-aggregator init DIR --name FEDERATION --address HOST:PORT",
        )
    return load_federation_root(directory / ROOT_FILE)


def _tls(directory: Path, anchor: FederationRoot, role: Role) -> tuple[x509.Certificate, Credentials]:
    path = directory / "tls.pem"
    data, key = read_bounded(path), load_tls_key(directory / "tls.key")
    try:
        certificate = parse_certificate(data, what=str(path))
    except MalformedError as error:
        raise InputError(error.message) from error
    subject = check_leaf(certificate, anchor.certificate(), what=str(path))
    if subject.role is not role or subject.federation != anchor.federation:
        raise VerificationError(f"{path} is not the certificate of this federation's {role.value}.")
    if key_bytes(certificate) != key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
        raise VerificationError(f"{path} does not belong to {directory / 'tls.key'}.")
    return certificate, Credentials(anchor.root.encode(), data, private_pem(key))


def _roster(directory: Path, anchor: FederationRoot) -> tuple[Signed, Roster]:
    path = directory / ROSTER_FILE
    try:
        signed = Signed.from_json(read_bounded(path))
    except MalformedError as error:
        raise InputError(f"{path} is damaged.", remedy="Restore it from the operator's directory.") from error
    return signed, verify_roster(signed, federation=anchor.federation, operator=anchor.operator)


def _address(directory: Path, key: str, text: str) -> Address:
    try:
        return Address.parse(text)
    except InputError as error:
        raise InputError(f"{directory / SERVER_FILE}: {key}: {error.message}") from error
