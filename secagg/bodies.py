"""What the signed bodies of R1 to R6 and of an abort say, one type each, with its only encoding.

`announcement` is the SHA-256 of the R0 body, `session` the sid; each body names its sender, so that a signature is
bound to session, step (by the label) and author. Attachments are bound by plain BLAKE3 (secagg.hashing), so that a
blob store can use the same name for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from secagg.errors import WireError
from secagg.wire import HASH_SIZE, MAXIMUM_SILOS, SIGNATURE_SIZE, Reader, Writer, check_name

SHARE_SIZE: Final = 66
SALT_SIZE: Final = 32
MAXIMUM_REASON: Final = 1024
NO_SESSION: Final = bytes(HASH_SIZE)


@dataclass(frozen=True, slots=True)
class Keys:
    """R1: one transport key c_uv for each other member of the announced cohort, in its order, and the mask key s_u (all
    X25519), commitment to b_u, hash of the ledger proof (the attachment)."""

    announcement: bytes
    sender: str
    transport: tuple[bytes, ...]
    mask: bytes
    seed: bytes
    proof: bytes

    def encode(self) -> bytes:
        """The bytes to sign."""
        writer = Writer().fixed(self.announcement, HASH_SIZE).name(self.sender).uint(len(self.transport), 2)
        for value in (*self.transport, self.mask, self.seed, self.proof):
            writer.fixed(value, HASH_SIZE)
        return writer.done()

    @classmethod
    def decode(cls, body: bytes) -> Keys:
        """Read signed bytes. Raises WireError."""
        reader = Reader(body)
        announcement, sender = reader.fixed(HASH_SIZE), reader.name()
        transport = tuple(key for (key,) in reader.rows(_count(reader), HASH_SIZE))
        mask, seed, proof = (reader.fixed(HASH_SIZE) for _ in range(3))
        reader.end()
        return cls(announcement, sender, transport, mask, seed, proof)

    def transport_for(self, peer: str, cohort: Sequence[str]) -> bytes:
        """The key that the sender made for `peer`, another member of the cohort, once check_keys has passed."""
        return self.transport[[name for name in cohort if name != self.sender].index(peer)]


@dataclass(frozen=True, slots=True)
class Dealt:
    """What one recipient must find: hash of its ciphertext, salted hashes of the shares of b_u and of s_u."""

    ciphertext: bytes
    seed_share: bytes
    key_share: bytes


@dataclass(frozen=True, slots=True)
class Shares:
    """R2: commitment to g_u, and what was dealt to each member of U1, in roster order, the sender included."""

    session: bytes
    sender: str
    tag_secret: bytes
    dealt: tuple[Dealt, ...]

    def encode(self) -> bytes:
        """The bytes to sign."""
        writer = Writer().fixed(self.session, HASH_SIZE).name(self.sender).fixed(self.tag_secret, HASH_SIZE)
        writer.uint(len(self.dealt), 2)
        for entry in self.dealt:
            for value in (entry.ciphertext, entry.seed_share, entry.key_share):
                writer.fixed(value, HASH_SIZE)
        return writer.done()

    @classmethod
    def decode(cls, body: bytes) -> Shares:
        """Read signed bytes. Raises WireError."""
        reader = Reader(body)
        session, sender, tag_secret = reader.fixed(HASH_SIZE), reader.name(), reader.fixed(HASH_SIZE)
        dealt = tuple(Dealt(*row) for row in reader.rows(_count(reader), HASH_SIZE, HASH_SIZE, HASH_SIZE))
        reader.end()
        return cls(session, sender, tag_secret, dealt)


@dataclass(frozen=True, slots=True)
class Masked:
    """R3: the R2 bodies that the sender masked under (`transcript`), and the hash of the masked vector."""

    session: bytes
    sender: str
    transcript: bytes
    vector: bytes

    def encode(self) -> bytes:
        """The bytes to sign."""
        writer = Writer().fixed(self.session, HASH_SIZE).name(self.sender)
        return writer.fixed(self.transcript, HASH_SIZE).fixed(self.vector, HASH_SIZE).done()

    @classmethod
    def decode(cls, body: bytes) -> Masked:
        """Read signed bytes. Raises WireError."""
        reader = Reader(body)
        value = cls(reader.fixed(HASH_SIZE), reader.name(), reader.fixed(HASH_SIZE), reader.fixed(HASH_SIZE))
        reader.end()
        return value


@dataclass(frozen=True, slots=True)
class Consistency:
    """R4: the one value that the sender will unmask under (secagg.checks.agreement)."""

    session: bytes
    sender: str
    agreement: bytes

    def encode(self) -> bytes:
        """The bytes to sign."""
        return Writer().fixed(self.session, HASH_SIZE).name(self.sender).fixed(self.agreement, HASH_SIZE).done()

    @classmethod
    def decode(cls, body: bytes) -> Consistency:
        """Read signed bytes. Raises WireError."""
        reader = Reader(body)
        value = cls(reader.fixed(HASH_SIZE), reader.name(), reader.fixed(HASH_SIZE))
        reader.end()
        return value


@dataclass(frozen=True, slots=True)
class Opening:
    """A Shamir share (66 bytes) and the salt of its hash."""

    share: bytes = field(repr=False)
    salt: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unmask:
    """R5: one opening for each member of U2 in roster order: of b_v for v in U3, of s_v for the others.

    The kind follows from the agreement and is not in the bytes, so a frame cannot carry both of one peer.
    """

    session: bytes
    sender: str
    agreement: bytes
    openings: tuple[Opening, ...]

    def encode(self) -> bytes:
        """The bytes to sign."""
        writer = Writer().fixed(self.session, HASH_SIZE).name(self.sender).fixed(self.agreement, HASH_SIZE)
        writer.uint(len(self.openings), 2)
        for opening in self.openings:
            writer.fixed(opening.share, SHARE_SIZE).fixed(opening.salt, SALT_SIZE)
        return writer.done()

    @classmethod
    def decode(cls, body: bytes) -> Unmask:
        """Read signed bytes. Raises WireError."""
        reader = Reader(body)
        session, sender, agreement = reader.fixed(HASH_SIZE), reader.name(), reader.fixed(HASH_SIZE)
        count = _count(reader)
        openings = tuple(Opening(share, salt) for share, salt in reader.rows(count, SHARE_SIZE, SALT_SIZE))
        reader.end()
        return cls(session, sender, agreement, openings)


@dataclass(frozen=True, slots=True)
class Publish:
    """R6: the hash of the sum's bytes (the attachment), U3, the value agreed on, and the R4 signatures on it, by signer
    in roster order."""

    session: bytes
    agreement: bytes
    sum: bytes
    survivors: tuple[str, ...]
    signatures: tuple[tuple[str, bytes], ...]

    def encode(self) -> bytes:
        """The bytes to sign."""
        writer = Writer()
        for value in (self.session, self.agreement, self.sum):
            writer.fixed(value, HASH_SIZE)
        writer.names(self.survivors).names([name for name, _ in self.signatures])
        for _, signature in self.signatures:
            writer.fixed(signature, SIGNATURE_SIZE)
        return writer.done()

    @classmethod
    def decode(cls, body: bytes) -> Publish:
        """Read signed bytes. Raises WireError; signers are distinct."""
        reader = Reader(body)
        session, agreement, total = (reader.fixed(HASH_SIZE) for _ in range(3))
        survivors, signers = reader.names(), reader.names()
        signatures = tuple((name, reader.fixed(SIGNATURE_SIZE)) for name in signers)
        reader.end()
        return cls(session, agreement, total, survivors, signatures)


@dataclass(frozen=True, slots=True)
class Abort:
    """The sender's last word on an announcement.

    `released` false states: in no session of this announcement did I release an R5 share, and I never will. `session`
    is the sid it was in, or 32 zero bytes before there was one. `blamed` is a silo's name, or empty for the
    coordinator or nobody. `evidence` is the hash of the attachment.
    """

    announcement: bytes
    session: bytes
    sender: str
    released: bool
    blamed: str
    reason: str
    evidence: bytes

    def encode(self) -> bytes:
        """The bytes to sign."""
        writer = Writer().fixed(self.announcement, HASH_SIZE).fixed(self.session, HASH_SIZE).name(self.sender)
        writer.uint(self.released, 1).blob(self.blamed.encode()).text(self.reason)
        return writer.fixed(self.evidence, HASH_SIZE).done()

    @classmethod
    def decode(cls, body: bytes) -> Abort:
        """Read signed bytes. Raises WireError."""
        reader = Reader(body)
        announcement, session, sender = reader.fixed(HASH_SIZE), reader.fixed(HASH_SIZE), reader.name()
        released = reader.truth()
        blamed = reader.text(32)
        if blamed:
            check_name(blamed)
        reason, evidence = reader.text(MAXIMUM_REASON), reader.fixed(HASH_SIZE)
        reader.end()
        return cls(announcement, session, sender, released, blamed, reason, evidence)


def _count(reader: Reader) -> int:
    count = reader.uint(2)
    if count > MAXIMUM_SILOS:
        raise WireError(f"{count} entries exceed the limit of {MAXIMUM_SILOS}")
    return count
