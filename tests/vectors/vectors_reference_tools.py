"""The hashes, derivations, streams and encodings of the second implementation; nothing of this project."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

P = 2**521 - 1
TAGS = 2
PRIME = 2**56 - 5
SIGNED = {
    "ANNOUNCE": "announce",
    "KEYS": "keys",
    "SHARES": "shares",
    "MASKED": "masked input",
    "CONSISTENCY": "consistency",
    "UNMASK": "unmask",
    "PUBLISH": "publish",
    "ABORT": "abort",
}

Json = dict[str, Any]


def label(text: str) -> bytes:
    return b"feddrm/1 secagg " + text.encode()


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def blake(data: bytes) -> bytes:
    return blake3(data).digest()


def digest(text: str, *parts: bytes) -> bytes:
    return sha(framed(label(text), *parts))


def derive(secret: bytes, text: str, session: bytes, *context: bytes) -> bytes:
    """HKDF-SHA256 for 32 bytes, which is one block: RFC 5869 section 2."""
    extracted = hmac.new(session, secret, hashlib.sha256).digest()
    return hmac.new(extracted, framed(label(text), session, *context) + b"\x01", hashlib.sha256).digest()


def keystream(key: bytes, count: int, kind: str) -> Any:
    size = count * int(kind[-1])
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(15) + b"\x02")).encryptor()
    return np.frombuffer(cipher.update(bytes(size)), dtype=kind)


def agree(private: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def name(text: str) -> bytes:
    return len(text).to_bytes(1, "big") + text.encode()


def names(texts: Sequence[str]) -> bytes:
    return len(texts).to_bytes(2, "big") + b"".join(name(text) for text in texts)


def uint(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def xof(text: str, size: int) -> bytes:
    return hashlib.shake_256(b"feddrm secagg vectors 1/" + text.encode()).digest(size)


def entropy(label_: str) -> Callable[[int], bytes]:
    stream = xof(label_, 1 << 14)
    at = 0

    def draw(size: int) -> bytes:
        nonlocal at
        at += size
        return stream[at - size : at]

    return draw


def shamir(secret: bytes, threshold: int, count: int, draw: Callable[[int], bytes]) -> list[bytes]:
    """The first coefficient drawn is that of the highest power."""
    drawn = [int.from_bytes(draw(66), "big") % 2**521 for _ in range(threshold - 1)]
    powers = [int.from_bytes(secret, "big"), *drawn[::-1]]
    return [uint(sum(c * x**k for k, c in enumerate(powers)) % P, 66) for x in range(1, count + 1)]
