"""What travels at enrolment: a member's request, the operator's kit, and the trust anchor both meet at.

A kit cannot vouch for itself: whoever joins types the federation's fingerprint, which came by another way than the kit.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import Field

from feddrm.contract import labels
from feddrm.contract.authority import (
    Address,
    certificate_hash,
    check_leaf,
    check_root,
    check_validity,
    key_bytes,
    parse_certificate,
)
from feddrm.contract.documents import Hash, Pem, canonical, parse_body
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.files import load_document
from feddrm.contract.fingerprint import fingerprint, normalise_fingerprint
from feddrm.contract.identity import MemberKeys, Role, Subject, check_identity_key
from feddrm.contract.names import Document, Name
from feddrm.contract.request import only_signer
from feddrm.contract.roster import Roster, verify_roster
from feddrm.contract.signed import Signed, sign

COMMANDS: Final = {Role.SILO: "feddrm-silo", Role.QUERIER: "feddrm-query"}
RENEWAL = "Ask the operator for a new kit: the old request can be enrolled again."


class FederationRoot(Document):
    """The trust anchor (the file federation.root): what auditors get, and what a fingerprint stands for.

    Attributes:
        operator: Ed25519 public key of the operator, which signs rosters and plans.
        root: the certificate authority's certificate, PEM.
    """

    federation: Name
    operator: Hash
    root: Pem

    def certificate(self) -> x509.Certificate:
        """The root certificate.

        Raises:
            MalformedError, VerificationError: it is none.
        """
        certificate = parse_certificate(self.root.encode(), what="The federation's root")
        check_root(certificate, what="The federation's root")
        return certificate

    @property
    def fingerprint(self) -> str:
        """What the operator tells members by telephone or on paper."""
        der = self.certificate().public_bytes(Encoding.DER)
        return fingerprint(labels.FINGERPRINT, der, self.operator, self.federation.encode())

    def to_text(self) -> bytes:
        """The TOML text of a federation.root file."""
        return (
            "# The trust anchor of a federation. Public, but compare its fingerprint before you rely on it:\n"
            f"# {self.fingerprint}\n"
            f'federation = "{self.federation}"\noperator = "{self.operator.hex()}"\nroot = """\n{self.root}"""\n'
        ).encode()


def load_federation_root(path: Path) -> FederationRoot:
    """Read a federation.root file.

    Raises:
        InputError: missing or malformed; names file, key and remedy.
    """
    anchor = load_document(path, FederationRoot)
    try:
        anchor.certificate()
        check_identity_key(anchor.operator)
    except (MalformedError, VerificationError) as error:
        raise InputError(f"{path}: {error.message}") from error
    return anchor


class KitBody(Document):
    """The signed body of a kit. `roster` is the text form of the signed roster."""

    format: Literal["feddrm kit 1"]
    federation: Name
    address: Annotated[str, Field(max_length=300)]
    operator: Hash
    root: Pem
    certificate: Pem
    roster: Annotated[str, Field(max_length=4 << 20)]


@dataclass(frozen=True, slots=True)
class Kit:
    """A verified kit: everything in it is consistent and signed by its own operator key. Whether that operator is the
    right one only the fingerprint tells."""

    anchor: FederationRoot
    address: Address
    subject: Subject
    certificate: x509.Certificate
    certificate_pem: bytes
    roster: Roster
    signed_roster: Signed


def make_kit(
    operator: Ed25519PrivateKey, anchor: FederationRoot, address: Address, certificate_pem: bytes, roster: Signed
) -> Signed:
    """Sign a kit as the operator."""
    body = KitBody(
        format="feddrm kit 1",
        federation=anchor.federation,
        address=str(address),
        operator=anchor.operator,
        root=anchor.root,
        certificate=certificate_pem.decode(),
        roster=roster.to_json(),
    )
    return sign(operator, labels.KIT, canonical(body))


def verify_kit(signed: Signed, expected_fingerprint: str) -> Kit:
    """Verify a kit against the out-of-band fingerprint, then everything inside it.

    Raises:
        InputError: the fingerprint is none.
        VerificationError: another federation's kit, or changed on its way.
        MalformedError: not a kit.
    """
    expected = normalise_fingerprint(expected_fingerprint)
    key = only_signer(signed, labels.KIT, "The kit")
    body = parse_body(signed.body, KitBody, what="The kit")
    if body.operator != key:
        raise VerificationError("The kit is not signed by the operator key that it names.")
    anchor = FederationRoot(federation=body.federation, operator=body.operator, root=body.root)
    if not hmac.compare_digest(anchor.fingerprint, expected):
        # The kit's own fingerprint is not shown: whoever saw it would be tempted to type it in.
        raise VerificationError(
            "The kit is not of the federation whose fingerprint you gave.",
            remedy="Do not use this kit; call the operator, compare the fingerprint, and ask for the kit again.",
        )
    return _open(body, anchor)


def reopen_kit(signed: Signed, anchor: FederationRoot) -> Kit:
    """Verify a kit that was joined before, against the stored trust anchor.

    Raises:
        VerificationError: the kit is not this federation's, or was changed.
        MalformedError: not a kit.
    """
    if only_signer(signed, labels.KIT, "The kit") != anchor.operator:
        raise VerificationError("The kit is not signed by this federation's operator.")
    body = parse_body(signed.body, KitBody, what="The kit")
    if (body.federation, body.operator, body.root) != (anchor.federation, anchor.operator, anchor.root):
        raise VerificationError("The kit does not belong to this federation.")
    return _open(body, anchor)


def _open(body: KitBody, anchor: FederationRoot) -> Kit:
    check_identity_key(anchor.operator)
    root = anchor.certificate()
    certificate = parse_certificate(body.certificate.encode(), what="The kit's certificate")
    subject = check_leaf(certificate, root, what="The kit's certificate")
    if subject.federation != anchor.federation:
        raise VerificationError(f"The kit's certificate is of federation {subject.federation}.")
    signed_roster = Signed.from_json(body.roster)
    roster = verify_roster(signed_roster, federation=anchor.federation, operator=anchor.operator)
    try:
        address = Address.parse(body.address)
    except InputError as error:
        raise MalformedError(f"The kit is malformed: {error.message}") from error
    return Kit(
        anchor=anchor,
        address=address,
        subject=subject,
        certificate=certificate,
        certificate_pem=body.certificate.encode(),
        roster=roster,
        signed_roster=signed_roster,
    )


def check_own(kit: Kit, role: Role, keys: MemberKeys) -> None:
    """Check that a kit was made for the holder of these keys, in this role; its age is another matter.

    Raises:
        InputError: it is for a member of the other role, which was mistaken for this one.
        VerificationError: it is somebody else's, or the roster lists other keys under this name.
    """
    subject = kit.subject
    if subject.role is not role:
        message = f"This kit is for a {subject.role.value}, not for a {role.value}."
        if subject.role in COMMANDS:
            raise InputError(message, remedy=f"Use it with {COMMANDS[subject.role]}.")
        raise VerificationError(message)
    if key_bytes(kit.certificate) != keys.tls.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    ):
        raise VerificationError(
            f"This kit was made for other keys (its name is {subject.name}).",
            remedy="Use the kit that answers this directory's own request.",
        )
    member = kit.roster.find(subject.name, role.value)
    if member.identity != keys.identity_public or member.sealing != keys.sealing.public():
        raise VerificationError(
            f"The kit's roster lists other keys for {subject.name} than this directory holds.",
            remedy="Do not join; somebody replaced a key on the way. Call the operator.",
        )
    if member.certificate != certificate_hash(kit.certificate):
        raise VerificationError(f"The kit's roster lists another certificate for {subject.name}.")


def check_current(kit: Kit, now_ms: int) -> None:
    """Check that a kit's certificate and roster are valid now.

    Raises:
        VerificationError: one is expired or from the future.
    """
    check_validity(kit.certificate, now_ms, what=f"The certificate of {kit.subject.name}", remedy=RENEWAL)
    kit.roster.check_current(now_ms)
