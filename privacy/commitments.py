"""Commitments that only the hospital can open, to whom it chooses, and one at a time.

An unsalted hash of a few noisy integers is found by trying them all (0.6 s, design section 7): HMAC-SHA256, each under
a key of its own that is derived from a local 256-bit key, which never leaves the hospital. Whoever is given one derived
key and the bytes can check that one commitment, and learns nothing about any other.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from privacy import fields, labels
from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import MalformedError

KEY_BYTES = 32
NONCE_BYTES = 32
FORMAT: Final = "feddrm opening 1"
MAXIMUM_OPENING: Final = 4096


def commit_update(key: bytes, plan: bytes, stage: int, round: int, update: bytes) -> bytes:  # noqa: A002
    """Commit to the bytes of one round's quantised update: 32 bytes.

    Raises:
        ValueError: wrong key length.
    """
    return commitment_of(update_key(key, plan, stage, round), sha256(update).digest())


def commit_dataset(key: bytes, data: bytes, nonce: bytes) -> bytes:
    """Commit to a data set: 32 bytes.

    Args:
        key: the hospital's commitment key (32 bytes).
        data: SHA-256 of the records (32 bytes).
        nonce: 32 fresh random bytes, or two readings of the same data would show that nothing had changed. Whoever
            is to open the commitment one day keeps them.

    Raises:
        ValueError: wrong length of key, nonce or data.
    """
    return commitment_of(dataset_key(key, nonce), data)


def update_key(key: bytes, plan: bytes, stage: int, round: int) -> bytes:  # noqa: A002
    """The key that opens the commitment to one round's update, and no other (32 bytes)."""
    return _mac(key, labels.UPDATE_COMMITMENT, plan, stage.to_bytes(8) + round.to_bytes(8))


def dataset_key(key: bytes, nonce: bytes) -> bytes:
    """The key that opens the commitment to one reading of the records, and no other (32 bytes).

    Raises:
        ValueError: wrong length of key or nonce.
    """
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    return _mac(key, labels.DATASET_COMMITMENT, nonce)


def commitment_of(opening_key: bytes, digest: bytes) -> bytes:
    """The commitment that a derived key and a SHA-256 (32 bytes) give. Key and digest have one length each, so that
    two openings of one commitment are a collision of SHA-256."""
    if len(digest) != sha256().digest_size:
        raise ValueError("what is committed to is a SHA-256")
    return _mac(opening_key, digest)


@dataclass(frozen=True, slots=True)
class Opening:
    """What an auditor is given to check one leaf: confidential, as the digest can be searched by who knows the key.

    Args:
        origin: the log.
        leaf: number of the DATASET or COMMIT leaf.
        key: derived key of that one commitment (32 bytes).
        digest: SHA-256 of the records or of the update's bytes.
    """

    origin: str
    leaf: int
    key: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    def encode(self) -> bytes:
        """As canonical JSON."""
        values = {"format": FORMAT, "origin": self.origin, "leaf": self.leaf}
        return canonical_json({**values, "key": self.key.hex(), "digest": self.digest.hex()})

    def opens(self, commitment: bytes) -> bool:
        """Whether this is what a commitment was made of."""
        return hmac.compare_digest(commitment_of(self.key, self.digest), commitment)


def parse_opening(text: bytes) -> Opening:
    """Read an opening; verify nothing.

    Raises:
        MalformedError: it is none.
    """
    if len(text) > MAXIMUM_OPENING:
        raise MalformedError(f"an opening of {len(text)} bytes exceeds the limit of {MAXIMUM_OPENING}")
    values: Any = parse_canonical(text)
    readers: dict[str, Callable[[object], Any]] = {
        "origin": fields.origin,
        "leaf": fields.count,
        "key": fields.digest,
        "digest": fields.digest,
    }
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT or set(values) != set(readers):
        raise MalformedError(f"this is not a {FORMAT}")
    return Opening(**{name: read(values[name]) for name, read in readers.items()})


def _mac(key: bytes, *parts: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a commitment key has {KEY_BYTES} bytes, not {len(key)}")
    mac = hmac.new(key, digestmod=sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8))
        mac.update(part)
    return mac.digest()
