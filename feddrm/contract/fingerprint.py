"""Fingerprints that people read to each other, of 160 bits: no two documents can be made to share one."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from feddrm.contract import labels
from feddrm.contract.errors import InputError

_GROUPS: Final = 8


def fingerprint(label: bytes, *parts: bytes) -> str:
    """160 bits of SHA-256 over length-prefixed parts, as eight groups of four base32 characters."""
    digest = hashlib.sha256(label)
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    text = base64.b32encode(digest.digest()[:20]).decode()
    return "-".join(text[4 * i : 4 * i + 4] for i in range(_GROUPS))


def member_fingerprint(role: str, name: str, identity: bytes) -> str:
    """What a member reads to the operator at enrolment, and to every other member that approves a roster with it.

    It can be recomputed from a request and from a roster alike, so nobody has to believe the operator. The identity key
    signs the request with the TLS key in it, and vouches for the sealing key: neither can be exchanged without it.

    Args:
        identity: Ed25519 public key, 32 bytes.
    """
    return fingerprint(labels.MEMBER_FINGERPRINT, role.encode(), name.encode(), identity)


def normalise_fingerprint(text: str) -> str:
    """A fingerprint as people type it (any case, spaces or no hyphens) in the form that `fingerprint` prints.

    Raises:
        InputError: it has not the length or alphabet of one.
    """
    plain = "".join(text.split()).replace("-", "").upper()
    if len(plain) != 4 * _GROUPS or set(plain) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"):
        raise InputError(
            f"A fingerprint has {_GROUPS} groups of four letters or digits 2 to 7.",
            remedy="Copy the whole fingerprint that the operator gave you by another way than the kit.",
        )
    return "-".join(plain[4 * i : 4 * i + 4] for i in range(_GROUPS))
