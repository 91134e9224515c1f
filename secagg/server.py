"""The coordinator's half of a session. One type a state, no socket, no clock, no secret of its own but the round key.

Left to the caller: deadlines (it decides when to `close` a step that is `ready`), carrying `outgoing` to the members,
and aborts (secagg.aborts). What is checked here only serves to blame early; no silo relies on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.bodies import Consistency, Keys, Masked, Shares
from secagg.checks import (
    Fault,
    Signed,
    agreement,
    check_keys,
    ciphertext_hash,
    dealt_by,
    roll_of,
    session_id,
    transcript,
)
from secagg.collecting import Collecting, Outgoing, ServerContext
from secagg.dealing import CIPHERTEXT_SIZE
from secagg.errors import Failed, MisuseError, Rejected
from secagg.keys import sign
from secagg.opening import CollectingUnmask, Published, Tally
from secagg.session import Announcement
from secagg.vector import Segments
from secagg.wire import COORDINATOR, MAXIMUM_PROOF, Frame, Step

__all__ = [
    "CollectingConsistency",
    "CollectingKeys",
    "CollectingMasked",
    "CollectingShares",
    "CollectingUnmask",
    "Failed",
    "Published",
    "Rejected",
    "open_session",
]


def open_session(
    announcement: Announcement, signer: Ed25519PrivateKey, members: Mapping[str, bytes]
) -> tuple[CollectingKeys, Frame]:
    """Announce a session.

    Args:
        signer: the round key.
        members: Ed25519 keys of the roster's silos.

    Returns:
        The first state, and R0 for every member of the cohort.

    Raises:
        MisuseError: the cohort names a silo that is not in `members`.
    """
    if not set(announcement.cohort) <= set(members):
        raise MisuseError("a cohort with silos that are not in the roster")
    frame = sign(Step.ANNOUNCE, COORDINATOR, announcement.encode(), signer)
    announced = hashlib.sha256(frame.body).digest()
    keys = {name: members[name] for name in announcement.cohort}
    context = ServerContext(announcement, frame, announced, keys, signer)
    outgoing = dict.fromkeys(announcement.cohort, (frame,))
    return CollectingKeys(context, announced, announcement.cohort, outgoing), frame


class CollectingKeys(Collecting[Keys]):
    """R1."""

    __slots__ = ("_proofs",)
    step = Step.KEYS

    def __init__(self, context: ServerContext, session: bytes, expected: tuple[str, ...], outgoing: Outgoing) -> None:
        super().__init__(context, session, expected, outgoing)
        self._proofs: dict[str, bytes] = {}

    def _decode(self, body: bytes) -> Keys:
        return Keys.decode(body)

    def _check(self, signed: Signed[Keys], attachment: bytes, digest: bytes, /) -> None:
        check_keys(signed.body, self._context.announcement.cohort)
        if len(attachment) > MAXIMUM_PROOF or digest != signed.body.proof:
            raise Fault("a ledger proof other than was signed", by_sender=False)
        self._proofs[signed.frame.sender] = attachment

    def close(self) -> CollectingShares:
        """Fix U1 and the sid; every member gets all R1 with their ledger proofs."""
        found = self._close()
        context = replace(self._context, roll=roll_of(signed.frame for signed in found.values()))
        session = session_id(context.announced, context.roll)
        frames = tuple(_with(signed.frame, self._proofs[name]) for name, signed in found.items())
        return CollectingShares(context, session, found, dict.fromkeys(found, frames))


class CollectingShares(Collecting[Shares]):
    """R2."""

    __slots__ = ("_ciphertexts", "_keys")
    step = Step.SHARES

    def __init__(
        self, context: ServerContext, session: bytes, keys: dict[str, Signed[Keys]], outgoing: Outgoing
    ) -> None:
        super().__init__(context, session, tuple(keys), outgoing)
        self._keys = keys
        self._ciphertexts: dict[str, dict[str, bytes]] = {}

    def _decode(self, body: bytes) -> Shares:
        return Shares.decode(body)

    def _check(self, signed: Signed[Shares], attachment: bytes, _digest: bytes, /) -> None:
        if len(signed.body.dealt) != len(self.expected):
            raise Fault("dealt shares to another set than U1", by_sender=True)
        if len(attachment) != CIPHERTEXT_SIZE * (len(self.expected) - 1):
            raise Fault("share ciphertexts of the wrong length", by_sender=False)
        ciphertexts: dict[str, bytes] = {}
        at = 0
        for recipient, entry in zip(self.expected, signed.body.dealt, strict=True):
            size = 0 if recipient == signed.frame.sender else CIPHERTEXT_SIZE
            ciphertexts[recipient] = attachment[at : at + size]
            at += size
            if ciphertext_hash(ciphertexts[recipient]) != entry.ciphertext:
                raise Fault("share ciphertexts other than were signed", by_sender=False)
        self._ciphertexts[signed.frame.sender] = ciphertexts

    def close(self) -> CollectingMasked:
        """Fix U2; every member gets all R2, each with the one ciphertext that is for it."""
        found = self._close()
        outgoing = {
            recipient: tuple(
                _with(signed.frame, self._ciphertexts[owner][recipient]) for owner, signed in found.items()
            )
            for recipient in found
        }
        return CollectingMasked(self._context, self.session, self._keys, found, outgoing)


class CollectingMasked(Collecting[Masked]):
    """R3. Vectors are added up as they come; the coordinator never holds two."""

    __slots__ = ("_keys", "_segments", "_shares", "_transcript")
    step = Step.MASKED

    def __init__(
        self,
        context: ServerContext,
        session: bytes,
        keys: dict[str, Signed[Keys]],
        shares: dict[str, Signed[Shares]],
        outgoing: Outgoing,
    ) -> None:
        super().__init__(context, session, tuple(shares), outgoing)
        self._keys = keys
        self._shares = shares
        self._transcript = transcript(session, dealt_by(signed.frame for signed in shares.values()))
        self._segments = Segments(context.announcement.words32, context.announcement.words64)

    def _decode(self, body: bytes) -> Masked:
        return Masked.decode(body)

    def _check(self, signed: Signed[Masked], attachment: bytes, digest: bytes, /) -> None:
        if signed.body.transcript != self._transcript:
            # No evidence: nobody else knows what was relayed, so it might as well be the coordinator that lies.
            raise Fault("masked under other shares than were relayed", by_sender=True, evidence=b"")
        if len(attachment) != self._context.announcement.vector_size or digest != signed.body.vector:
            raise Fault("a masked vector other than was signed", by_sender=False)
        self._segments.add(attachment)

    def close(self) -> CollectingConsistency:
        """Fix U3; its members get all its R3, without the vectors."""
        found = self._close()
        masked = tuple((name, signed.body.vector) for name, signed in found.items())
        value = agreement(self.session, tuple(self._keys), tuple(self._shares), masked, self._transcript)
        tally = Tally(self.session, self._keys, self._shares, masked, value, self._segments)
        frames = tuple(signed.frame for signed in found.values())
        return CollectingConsistency(self._context, tally, dict.fromkeys(found, frames))


class CollectingConsistency(Collecting[Consistency]):
    """R4."""

    __slots__ = ("_tally",)
    step = Step.CONSISTENCY

    def __init__(self, context: ServerContext, tally: Tally, outgoing: Outgoing) -> None:
        super().__init__(context, tally.session, tally.u3, outgoing)
        self._tally = tally

    @property
    def needed(self) -> int:
        """t: any t members of U3 suffice; who vanishes after R3 stays in the sum."""
        return self._context.announcement.threshold

    def _decode(self, body: bytes) -> Consistency:
        return Consistency.decode(body)

    def _check(self, signed: Signed[Consistency], attachment: bytes, _digest: bytes, /) -> None:
        if attachment:
            raise Fault("an attachment where none belongs", by_sender=False)
        if signed.body.agreement != self._tally.agreement:
            raise Fault("agreed on other survivors than were relayed", by_sender=True, evidence=b"")

    def close(self) -> CollectingUnmask:
        """Every signer gets all signatures."""
        found = self._close()
        frames = tuple(signed.frame for signed in found.values())
        return CollectingUnmask(self._context, self._tally, found, dict.fromkeys(found, frames))


def _with(frame: Frame, attachment: bytes) -> Frame:
    return Frame(frame.step, frame.sender, frame.body, frame.signature, attachment)
