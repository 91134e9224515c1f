"""Commitments that only the hospital can open, to whom it chooses.

An unsalted hash of a few noisy integers is found by trying them all (0.6 s, design section 7): HMAC-SHA256 under a
local 256-bit key that never leaves the hospital.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from privacy import labels

KEY_BYTES = 32
NONCE_BYTES = 32


def commit_update(key: bytes, plan: bytes, stage: int, round: int, update: bytes) -> bytes:  # noqa: A002
    """Commit to the bytes of one round's quantised update: 32 bytes.

    Raises:
        ValueError: wrong key length.
    """
    place = stage.to_bytes(8) + round.to_bytes(8)
    return _commit(key, labels.UPDATE_COMMITMENT, plan, place, update)


def commit_dataset(key: bytes, data: bytes, nonce: bytes) -> bytes:
    """Commit to the bytes of a data set: 32 bytes. The length of `data` does not show.

    Args:
        key: the hospital's commitment key (32 bytes).
        data: the records, or a hash of them.
        nonce: 32 fresh random bytes, or two readings of the same data would show that nothing had changed. Whoever
            is to open the commitment one day keeps them.

    Raises:
        ValueError: wrong length of key or nonce.
    """
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    return _commit(key, labels.DATASET_COMMITMENT, nonce, data)


def _commit(key: bytes, label: bytes, *parts: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a commitment key has {KEY_BYTES} bytes, not {len(key)}")
    mac = hmac.new(key, digestmod=sha256)
    for part in (label, *parts):
        mac.update(len(part).to_bytes(8))
        mac.update(part)
    return mac.digest()
