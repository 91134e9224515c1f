"""A body, its signatures, and the one way to make and check them.

The body is opaque bytes. `verify` runs over the bytes as received and *before* anybody parses them; nothing is ever
re-serialised to be verified. Ed25519 (RFC 8032) over: len(label) || label || len(body) || body, lengths as 8-byte
big-endian integers, so that no two (label, body) pairs share signed bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.bindings import crypto_sign_BYTES, crypto_sign_open, crypto_sign_PUBLICKEYBYTES
from nacl.exceptions import BadSignatureError

from feddrm.contract.errors import MalformedError, VerificationError

MAXIMUM_BODY: Final = 8 << 20
MAXIMUM_SIGNATURES: Final = 128
_REMEMBERED_BYTES: Final = 4 << 10


@dataclass(frozen=True, slots=True)
class Signature:
    """An Ed25519 public key (32 bytes) and its signature (64 bytes)."""

    key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        if len(self.key) != 32 or len(self.signature) != 64:
            raise MalformedError("A signature needs a key of 32 bytes and a signature of 64.")


@dataclass(frozen=True, slots=True)
class Signed:
    """Bytes with signatures. Holding one says nothing about its validity: call `verify`."""

    body: bytes
    signatures: tuple[Signature, ...]

    def __post_init__(self) -> None:
        if len(self.body) > MAXIMUM_BODY:
            raise MalformedError(f"A signed body of {len(self.body)} bytes exceeds the limit of {MAXIMUM_BODY}.")
        if len(self.signatures) > MAXIMUM_SIGNATURES:
            raise MalformedError(f"{len(self.signatures)} signatures exceed the limit of {MAXIMUM_SIGNATURES}.")

    def to_json(self) -> str:
        """The text form that files and ledgers use."""
        return json.dumps(
            {
                "body": base64.b64encode(self.body).decode(),
                "signatures": [
                    {"key": s.key.hex(), "signature": base64.b64encode(s.signature).decode()} for s in self.signatures
                ],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Signed:
        """Parse the text form.

        Raises:
            MalformedError: not of that form.
        """
        try:
            raw = json.loads(text)
            if set(raw) != {"body", "signatures"}:
                raise MalformedError("A signed document has exactly the keys body and signatures.")
            return cls(
                base64.b64decode(raw["body"], validate=True),
                tuple(
                    Signature(bytes.fromhex(s["key"]), base64.b64decode(s["signature"], validate=True))
                    for s in raw["signatures"]
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
            raise MalformedError("This is not a signed feddrm document.") from error


def signing_input(label: bytes, body: bytes) -> bytes:
    """The bytes that are signed for `body` under `label`."""
    return b"".join((len(label).to_bytes(8), label, len(body).to_bytes(8), body))


def sign(key: Ed25519PrivateKey, label: bytes, body: bytes) -> Signed:
    """Sign `body` under `label` with one key."""
    signature = key.sign(signing_input(label, body))
    return Signed(body, (Signature(key.public_key().public_bytes_raw(), signature),))


def signers(signed: Signed, label: bytes) -> frozenset[bytes]:
    """The public keys whose signatures over the body verify under `label`; others are ignored."""
    message = signing_input(label, signed.body)
    check = _remembered if len(message) <= _REMEMBERED_BYTES else _signed_by
    return frozenset(s.key for s in signed.signatures if check(s.key, s.signature, message))


def _signed_by(key: bytes, signature: bytes, message: bytes) -> bool:
    # By libsodium, in less than half the time of OpenSSL: a silo verifies t acks in every round. What it refuses beyond
    # (keys and points of low order, under which one signature fits any message) no signer makes.
    if len(signature) != crypto_sign_BYTES or len(key) != crypto_sign_PUBLICKEYBYTES:
        return False
    try:
        crypto_sign_open(signature + message, key)
    except BadSignatureError:
        return False
    return True


# Acks come as a round's outcome and once more with the next announcement; the answer depends on these bytes alone.
_remembered: Final = lru_cache(maxsize=256)(_signed_by)


def verify(signed: Signed, label: bytes, key: bytes, *, what: str) -> bytes:
    """Return the body if `key` signed it under `label`.

    Args:
        what: names the document in the error, such as "The roster".

    Raises:
        VerificationError: no valid signature of that key.
    """
    if key not in signers(signed, label):
        raise VerificationError(f"{what} is not signed by the expected key.")
    return signed.body
