"""Every label under which this package signs, derives or hashes. A test checks that no two of any package collide.

A label names protocol version and use, so that bytes made for one purpose never verify, or derive a key, for another.
"""

from __future__ import annotations

from typing import Final

from secagg.wire import Step

SIGN: Final[dict[Step, bytes]] = {
    Step.ANNOUNCE: b"feddrm/1 secagg announce",
    Step.KEYS: b"feddrm/1 secagg keys",
    Step.SHARES: b"feddrm/1 secagg shares",
    Step.MASKED: b"feddrm/1 secagg masked input",
    Step.CONSISTENCY: b"feddrm/1 secagg consistency",
    Step.UNMASK: b"feddrm/1 secagg unmask",
    Step.PUBLISH: b"feddrm/1 secagg publish",
    Step.ABORT: b"feddrm/1 secagg abort",
}

SESSION: Final = b"feddrm/1 secagg session id"
KEYS_LEAF: Final = b"feddrm/1 secagg keys leaf"
TRANSCRIPT: Final = b"feddrm/1 secagg shares transcript"
SHARES_LEAF: Final = b"feddrm/1 secagg shares leaf"
AGREEMENT: Final = b"feddrm/1 secagg agreement"
SEED_COMMITMENT: Final = b"feddrm/1 secagg self mask seed commitment"
TAG_COMMITMENT: Final = b"feddrm/1 secagg tag secret commitment"
SELF_SHARE: Final = b"feddrm/1 secagg self mask seed share"
KEY_SHARE: Final = b"feddrm/1 secagg mask key share"
TRANSPORT_KEY: Final = b"feddrm/1 secagg transport key"
TRANSPORT_AAD: Final = b"feddrm/1 secagg transport associated data"
PAIR_MASK: Final = b"feddrm/1 secagg pair mask"
SELF_MASK: Final = b"feddrm/1 secagg self mask"
TAG_SECRET: Final = b"feddrm/1 secagg tag secret"
TAG_WEIGHTS: Final = b"feddrm/1 secagg tag weights"
TAG_OFFSET: Final = b"feddrm/1 secagg tag offset"

EVIDENCE: Final = b"feddrm/1 secagg evidence"

SEGMENT32: Final = b"u32"
SEGMENT64: Final = b"u64"
