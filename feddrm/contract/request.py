"""What a member asks to be enrolled with, and the proof that it holds the keys (design section 4)."""

from __future__ import annotations

from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from feddrm.contract import labels
from feddrm.contract.documents import Base64, Hash, Pem, canonical, parse_body
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.identity import (
    MemberKeys,
    Role,
    check_identity_key,
    sealing_public_key,
    sign_sealing_key,
    verify_sealing_key,
)
from feddrm.contract.names import Document, Name
from feddrm.contract.roster import RESERVED_NAMES
from feddrm.contract.signed import Signed, sign, signers


class Request(Document):
    """What a member asks to be enrolled with. `csr` is a PKCS #10 request, PEM, of which only the key is used."""

    format: Literal["feddrm request 1"]
    name: Name
    role: Literal["silo", "querier"]
    identity: Hash
    sealing: Base64
    sealing_signature: Base64
    csr: Pem

    def public_key(self) -> ec.EllipticCurvePublicKey:
        """The TLS key, after the proof that the requester holds it and that it belongs to this identity.

        Raises:
            VerificationError: a proof fails.
            MalformedError: no P-256 request.
        """
        try:
            csr = x509.load_pem_x509_csr(self.csr.encode())
            key = csr.public_key()
            if not csr.is_signature_valid:
                raise VerificationError(f"The request of {self.name} does not prove that it holds its TLS key.")
        except (ValueError, InvalidSignature) as error:
            raise MalformedError(f"The request of {self.name} holds no valid certificate request.") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise MalformedError(f"The TLS key of {self.name} is not of the curve P-256.")
        # The TLS key signed for this very identity: nobody can enrol with a request copied from another member.
        if csr.subject != _csr_subject(self.name, self.identity):
            raise VerificationError(f"The certificate request of {self.name} was made for another identity.")
        return key


def _csr_subject(name: str, identity: bytes) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.SERIAL_NUMBER, identity.hex())]
    )


def make_request(name: str, role: Role, keys: MemberKeys) -> Signed:
    """Make a request with proof of possession: the CSR is signed by the TLS key, the whole by the identity key.

    A sealing key can sign nothing; the identity key vouches for it. Who lists a sealing key that is not his own only
    makes himself unable to read what is sealed to him.

    Raises:
        InputError: the name is reserved or the role cannot be enrolled.
    """
    if name in RESERVED_NAMES:
        raise InputError(f"The name {name} is reserved.", remedy="Choose another name.")
    identity = keys.identity_public
    sealing = keys.sealing.public()
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_csr_subject(name, identity))
        .sign(keys.tls, hashes.SHA256())
    )
    request = Request.model_validate(
        {
            "format": "feddrm request 1",
            "name": name,
            "role": role.value,
            "identity": identity,
            "sealing": sealing,
            "sealing_signature": sign_sealing_key(keys.identity, name, sealing),
            "csr": csr.public_bytes(Encoding.PEM).decode(),
        }
    )
    return sign(keys.identity, labels.REQUEST, canonical(request))


def only_signer(signed: Signed, label: bytes, what: str) -> bytes:
    """The one key that signed a self-signed document; the caller compares it with the key inside the body."""
    keys = signers(signed, label)
    if len(signed.signatures) != 1 or len(keys) != 1:
        raise VerificationError(f"{what} does not carry exactly one valid signature; it was changed or damaged.")
    return next(iter(keys))


def verify_request(signed: Signed) -> Request:
    """Verify a request and every proof in it.

    Raises:
        VerificationError: a signature or proof fails.
        MalformedError: not a request, or an unusable key.
    """
    key = only_signer(signed, labels.REQUEST, "The request")
    request = parse_body(signed.body, Request, what="The request")
    if request.identity != key:
        raise VerificationError(f"The request of {request.name} is not signed by the identity key that it names.")
    if request.name in RESERVED_NAMES:
        raise VerificationError(f"The name {request.name} is reserved.")
    check_identity_key(request.identity)
    sealing_public_key(request.sealing)
    verify_sealing_key(request.identity, request.name, request.sealing, request.sealing_signature)
    request.public_key()
    return request
