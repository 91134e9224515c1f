"""Key pairs, key derivation, hashes and signatures of a session.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), Ed25519 (RFC 8032). Every derivation is bound to protocol version and use by
its label, and to session, silos and segment by its info, so that no two streams of any session share a key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base, crypto_sign_open
from nacl.exceptions import BadSignatureError
from nacl.exceptions import RuntimeError as SodiumError

from secagg import labels
from secagg.errors import MisuseError, WireError
from secagg.wire import SIGNATURE_SIZE, Frame, Step

Entropy = Callable[[int], bytes]
KEY_SIZE: Final = 32

_PRIME: Final = 2**255 - 19
# Every u with 8 * (u, .) = 0 on Curve25519 or its twist: 0 and infinity, 1 and -1, and the two of order 8, which solve
# (u^2 - 1)^2 = 4u(u^2 + 486662u + 1).
_LOW_ORDER: Final = frozenset(
    {
        0,
        1,
        _PRIME - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)
_BAD_KEY: Final = "an X25519 key that is malformed or of low order"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An X25519 pair. The private bytes are what Shamir shares split."""

    private: bytes = field(repr=False)
    public: bytes

    @classmethod
    def from_private(cls, private: bytes) -> KeyPair:
        """The pair of 32 private bytes."""
        # libsodium reads 32 bytes, whatever it is given; so in all that follows.
        if len(private) != KEY_SIZE:
            raise MisuseError(f"an X25519 key has {KEY_SIZE} bytes, not {len(private)}")
        return cls(private, crypto_scalarmult_base(private))

    def agree(self, public: bytes) -> bytes:
        """The raw shared secret (32 bytes; only ever input to `derive`).

        Raises:
            WireError: `public` is malformed or of low order, so the secret would be known to anybody.
        """
        if len(public) != KEY_SIZE:
            raise WireError(_BAD_KEY)
        try:
            return crypto_scalarmult(self.private, public)
        except SodiumError as error:
            raise WireError(_BAD_KEY) from error


def check_public(public: bytes) -> None:
    """Refuse a key that is not 32 bytes, not the canonical encoding of its point, or of low order (RFC 7748 section 6).

    No honest key is any of these. Canonical, so that two different byte strings are two different keys. By comparison
    and not by an exchange, since each silo checks every key of every pair.

    Raises:
        WireError: it is one.
    """
    value = int.from_bytes(public, "little")
    if len(public) != KEY_SIZE or value >= _PRIME or value in _LOW_ORDER:
        raise WireError(_BAD_KEY)


def draw(entropy: Entropy, size: int) -> bytes:
    """`size` bytes of entropy.

    Raises:
        MisuseError: the source returned another number of bytes.
    """
    value = entropy(size)
    if len(value) != size:
        raise MisuseError(f"the entropy source returned {len(value)} bytes, not {size}")
    return value


def framed(*parts: bytes) -> bytes:
    """The parts, each after its 8-byte length: different lists never give the same bytes."""
    pieces: list[bytes] = []
    for part in parts:
        pieces.append(len(part).to_bytes(8))
        pieces.append(part)
    return b"".join(pieces)


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 over label and length-prefixed parts (32 bytes)."""
    return hashlib.sha256(framed(label, *parts)).digest()


def derive(secret: bytes, label: bytes, session: bytes, *context: bytes) -> bytes:
    """HKDF-SHA256 with the sid as salt; info is label, sid and context, each length-prefixed. 32 bytes.

    One block of output, so RFC 5869 is two HMACs: half the time of the library's object, hundreds of times a session.
    """
    extracted = hmac.digest(session, secret, "sha256")
    return hmac.digest(extracted, framed(label, session, *context) + b"\x01", "sha256")


def sign(step: Step, sender: str, body: bytes, signer: Ed25519PrivateKey, attachment: bytes = b"") -> Frame:
    """A frame of `step` with the signature over the step's label and `body`."""
    return Frame(step, sender, body, signer.sign(framed(labels.SIGN[step], body)), attachment)


def signature_valid(step: Step, body: bytes, signature: bytes, key: bytes) -> bool:
    """Whether `key` (32 raw bytes, Ed25519) signed `body` as a body of `step`.

    By libsodium, in half the time of OpenSSL, and verifying is most of what a small vector costs. It refuses keys and
    points of low order too, under which one signature fits any message.
    """
    if len(key) != KEY_SIZE or len(signature) != SIGNATURE_SIZE:
        return False
    try:
        crypto_sign_open(signature + framed(labels.SIGN[step], body), key)
    except BadSignatureError:
        return False
    return True
