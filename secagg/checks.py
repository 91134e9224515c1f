"""What silo and coordinator alike compute from signed frames: sid, transcript, agreement, and how frames are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from secagg import labels
from secagg.bodies import Consistency, Keys, Masked, Shares, Unmask
from secagg.errors import WireError
from secagg.keys import check_public, digest, framed, signature_valid
from secagg.wire import Frame, Step


class Body(Protocol):
    """A signed body that names its author."""

    @property
    def sender(self) -> str:
        """The silo that signed."""


B = TypeVar("B", Keys, Shares, Masked, Consistency, Unmask)


@dataclass(frozen=True, slots=True)
class Signed(Generic[B]):
    """A frame whose signature was verified, without its attachment, and its body."""

    frame: Frame
    body: B


class Fault(Exception):  # noqa: N818  turned into a verdict by whoever reads the frame
    """Why a frame does not count. `by_sender`: the sender signed the fault itself, so the frame is evidence."""

    def __init__(self, reason: str, *, by_sender: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.by_sender = by_sender


def read(
    frame: Frame, step: Step, members: Mapping[str, bytes], binding: bytes, decode: Callable[[bytes], B]
) -> Signed[B]:
    """Verify a frame as received, then parse it.

    Args:
        members: names and keys that may send this step.
        binding: the sid, or the hash of the R0 body for R1.

    Raises:
        Fault: wrong step, sender, signature, form or session.
    """
    if frame.step != step:
        raise Fault(f"step {frame.step} where {step.name} belongs", by_sender=False)
    if frame.sender not in members:
        raise Fault(f"{step.name} from {frame.sender or 'the coordinator'}, which is not a member", by_sender=False)
    if not signature_valid(step, frame.body, frame.signature, members[frame.sender]):
        raise Fault(f"{step.name} of {frame.sender} without a valid signature", by_sender=False)
    try:
        body = decode(frame.body)
    except WireError as error:
        raise Fault(f"signed a malformed {step.name}: {error}", by_sender=True) from error
    if body.sender != frame.sender:
        raise Fault(f"signed a {step.name} in the name of {body.sender}", by_sender=True)
    bound_to = body.announcement if isinstance(body, Keys) else body.session
    if bound_to != binding:
        raise Fault(f"{step.name} of {frame.sender} belongs to another session", by_sender=False)
    return Signed(frame.without_attachment(), body)


def check_keys(body: Keys) -> None:
    """Refuse an R1 whose public keys make secrets that anybody knows, or that are one key for two uses.

    Raises:
        Fault: low order, or transport key equal to mask key.
    """
    try:
        check_public(body.transport)
        check_public(body.mask)
    except WireError as error:
        raise Fault(f"signed {error}", by_sender=True) from error
    if body.transport == body.mask:
        raise Fault("signed one key for transport and masks", by_sender=True)


def session_id(announce_body: bytes, keys: Iterable[Frame]) -> bytes:
    """The sid: SHA-256 over R0's body and every R1's body and signature, in roster order."""
    parts = [part for frame in keys for part in (frame.body, frame.signature)]
    return digest(labels.SESSION, announce_body, *parts)


def seed_commitment(announcement: bytes, silo: str, seed: bytes) -> bytes:
    """H(b_u) of R1: b_u has 256 bits of entropy, so the hash hides it."""
    return digest(labels.SEED_COMMITMENT, announcement, silo.encode("ascii"), seed)


def tag_commitment(session: bytes, silo: str, secret: bytes) -> bytes:
    """H(g_u) of R2: every recipient got the same g_u."""
    return digest(labels.TAG_COMMITMENT, session, silo.encode("ascii"), secret)


def share_hash(label: bytes, session: bytes, owner: str, holder: str, share: bytes, salt: bytes) -> bytes:
    """The salted hash of one share (`label` tells b from s) by which a bad one is found and blamed at R5."""
    return digest(label, session, owner.encode("ascii"), holder.encode("ascii"), salt, share)


def transport_context(session: bytes, sender: str, recipient: str) -> bytes:
    """The associated data of an R2 ciphertext."""
    return framed(labels.TRANSPORT_AAD, session, sender.encode("ascii"), recipient.encode("ascii"))


def ciphertext_hash(ciphertext: bytes) -> bytes:
    """By which R2's signed body binds a ciphertext."""
    return hashlib.sha256(ciphertext).digest()


def transcript(session: bytes, shares: Iterable[Frame]) -> bytes:
    """Names U2 and the exact R2 bodies of its members, in roster order; R3 signs it."""
    return digest(labels.TRANSCRIPT, session, *(frame.body for frame in shares))


def agreement(
    session: bytes, u1: Sequence[str], u2: Sequence[str], masked: Sequence[Masked], shares_transcript: bytes
) -> bytes:
    """What R4 signs: sid, U1, U2 with its R2 bodies, U3 and every H(y_v), v in U3, in roster order."""
    return digest(
        labels.AGREEMENT,
        session,
        framed(*(name.encode("ascii") for name in u1)),
        framed(*(name.encode("ascii") for name in u2)),
        shares_transcript,
        framed(*(part for body in masked for part in (body.sender.encode("ascii"), body.vector))),
    )
