"""R2: dealing shares of b_u and s_u, and opening what others dealt; R5: putting a secret together again.

A plaintext is b-share, salt, s-share, salt, g_u: always 228 bytes, sealed with ChaCha20-Poly1305 (RFC 8439) under a key
of its own for each direction of each session, which is why the nonce may be zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from secagg import labels
from secagg.bodies import SALT_SIZE, SHARE_SIZE, Dealt, Keys, Opening, Shares
from secagg.checks import ciphertext_hash, seed_commitment, share_hash, tag_commitment, transport_context
from secagg.errors import WireError
from secagg.keys import Entropy, KeyPair, derive, draw
from secagg.shamir import combine, parse, split
from secagg.wire import Reader

TAG_SECRET_SIZE: Final = 32
CIPHERTEXT_SIZE: Final = 2 * (SHARE_SIZE + SALT_SIZE) + TAG_SECRET_SIZE + 16
_NONCE: Final = bytes(12)


@dataclass(frozen=True, slots=True)
class Held:
    """What this silo holds of one owner: a share of b and a share of s (at most one is ever opened), and g."""

    seed: Opening = field(repr=False)
    key: Opening = field(repr=False)
    tag_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Deal:
    """A finished R2: the body, the ciphertexts for the other members of U1 in order, and what the dealer keeps."""

    body: Shares
    ciphertexts: tuple[bytes, ...] = field(repr=False)
    own: Held = field(repr=False)


def _cipher(secret: bytes, session: bytes, sender: str, recipient: str) -> ChaCha20Poly1305:
    names = (sender.encode("ascii"), recipient.encode("ascii"))
    return ChaCha20Poly1305(derive(secret, labels.TRANSPORT_KEY, session, *names))


def deal(
    *,
    session: bytes,
    me: str,
    u1: Sequence[str],
    threshold: int,
    seed: bytes,
    mask_key: bytes,
    transport_secrets: dict[str, bytes],
    entropy: Entropy,
) -> Deal:
    """Share b_u (`seed`) and s_u (`mask_key`) among U1 with two independent polynomials."""
    seed_shares = split(seed, threshold, len(u1), entropy)
    key_shares = split(mask_key, threshold, len(u1), entropy)
    tag_secret = draw(entropy, TAG_SECRET_SIZE)
    dealt: list[Dealt] = []
    ciphertexts: list[bytes] = []
    kept: list[Held] = []
    for silo, seed_share, key_share in zip(u1, seed_shares, key_shares, strict=True):
        held = Held(
            Opening(seed_share, draw(entropy, SALT_SIZE)), Opening(key_share, draw(entropy, SALT_SIZE)), tag_secret
        )
        if silo == me:
            kept.append(held)
            ciphertext = b""
        else:
            plaintext = b"".join((held.seed.share, held.seed.salt, held.key.share, held.key.salt, tag_secret))
            cipher = _cipher(transport_secrets[silo], session, me, silo)
            ciphertext = cipher.encrypt(_NONCE, plaintext, transport_context(session, me, silo))
            ciphertexts.append(ciphertext)
        dealt.append(
            Dealt(
                ciphertext_hash(ciphertext),
                share_hash(labels.SELF_SHARE, session, me, silo, held.seed.share, held.seed.salt),
                share_hash(labels.KEY_SHARE, session, me, silo, held.key.share, held.key.salt),
            )
        )
    body = Shares(session, me, tag_commitment(session, me, tag_secret), tuple(dealt))
    return Deal(body, tuple(ciphertexts), kept[0])


def receive_deal(body: Shares, entry: Dealt, ciphertext: bytes, *, me: str, secret: bytes) -> Held:
    """Open what `body.sender` dealt to this silo and check it against what it signed.

    Args:
        entry: this silo's entry in the body, whose ciphertext hash the caller has compared.
        secret: the raw X25519 secret of this pair's transport keys.

    Raises:
        WireError: failed AEAD, wrong length, or contents that differ from the signed hashes; the sender's fault.
    """
    session, sender = body.session, body.sender
    if len(ciphertext) != CIPHERTEXT_SIZE:
        raise WireError("a share ciphertext of the wrong length")
    cipher = _cipher(secret, session, sender, me)
    try:
        plaintext = cipher.decrypt(_NONCE, ciphertext, transport_context(session, sender, me))
    except InvalidTag as error:
        raise WireError("a share ciphertext that does not open") from error
    reader = Reader(plaintext)
    seed = Opening(reader.fixed(SHARE_SIZE), reader.fixed(SALT_SIZE))
    key = Opening(reader.fixed(SHARE_SIZE), reader.fixed(SALT_SIZE))
    tag_secret = reader.fixed(TAG_SECRET_SIZE)
    if not opens(entry.seed_share, labels.SELF_SHARE, session, sender, me, seed):
        raise WireError("a share of the self mask seed that differs from its signed hash")
    if not opens(entry.key_share, labels.KEY_SHARE, session, sender, me, key):
        raise WireError("a share of the mask key that differs from its signed hash")
    if tag_commitment(session, sender, tag_secret) != body.tag_secret:
        raise WireError("a tag secret that differs from its signed hash")
    return Held(seed, key, tag_secret)


def expected_hash(entry: Dealt, *, mask_key: bool) -> tuple[bytes, bytes]:
    """Label and salted hash of the dealt share of s (`mask_key`) or of b."""
    return (labels.KEY_SHARE, entry.key_share) if mask_key else (labels.SELF_SHARE, entry.seed_share)


def reconstruct(keys: Keys, weights: Sequence[int], shares: Sequence[bytes], *, mask_key: bool) -> bytes:
    """The owner's s (`mask_key`) or b (32 bytes) from t shares, as its R1 committed to it.

    Raises:
        WireError: the shares belong to no common polynomial, or give another secret; the owner's fault where every
            share is what its R2 says.
    """
    secret = combine(weights, shares)
    if mask_key:
        if KeyPair.from_private(secret).public != keys.mask:
            raise WireError("shares of a mask key that differs from its public key")
    elif seed_commitment(keys.announcement, keys.sender, secret) != keys.seed:
        raise WireError("shares of a seed that differs from its commitment")
    return secret


def opens(expected: bytes, label: bytes, session: bytes, owner: str, holder: str, opening: Opening) -> bool:
    """Whether an opening is a field element and the one that the owner signed the hash of."""
    try:
        parse(opening.share)
    except WireError:
        return False
    return share_hash(label, session, owner, holder, opening.share, opening.salt) == expected
