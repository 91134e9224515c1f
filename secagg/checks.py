"""What silo and coordinator alike compute from signed frames: sid, transcript, agreement, and how frames are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from secagg import labels
from secagg.bodies import Consistency, Keys, Masked, Shares, Unmask
from secagg.errors import WireError
from secagg.hashing import blob_hash
from secagg.keys import check_public, digest, framed, signature_valid
from secagg.wire import HASH_SIZE, Frame, Step

# Members in roster order, each with a hash.
Roll = tuple[tuple[str, bytes], ...]


B = TypeVar("B", Keys, Shares, Masked, Consistency, Unmask)


@dataclass(frozen=True, slots=True)
class Signed(Generic[B]):
    """A frame whose signature was verified, without its attachment, and its body."""

    frame: Frame
    body: B


class Fault(Exception):  # noqa: N818  turned into a verdict by whoever reads the frame
    """Why a frame does not count. `by_sender`: the sender signed the fault itself.

    `evidence` is what a third party needs to see that. None: the frame alone is enough (secagg.exhibits.WrongFrame).
    """

    def __init__(self, reason: str, *, by_sender: bool, evidence: bytes | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.by_sender = by_sender
        self.evidence = evidence


def read(
    frame: Frame,
    step: Step,
    members: Mapping[str, bytes],
    binding: bytes,
    decode: Callable[[bytes], B],
    sent: Frame | None = None,
) -> Signed[B]:
    """Verify a frame as received, then parse it.

    Args:
        members: names and keys that may send this step.
        binding: the sid, or the hash of the R0 body for R1.
        sent: what the reader itself signed for this step and need not verify: another frame in its name is verified.

    Raises:
        Fault: wrong step, sender, signature, form or session.
    """
    if frame.step != step:
        raise Fault(f"step {frame.step} where {step.name} belongs", by_sender=False)
    if frame.sender not in members:
        raise Fault(f"{step.name} from {frame.sender or 'the coordinator'}, which is not a member", by_sender=False)
    own = sent is not None and sent.says_the_same(frame)
    if not own and not signature_valid(step, frame.body, frame.signature, members[frame.sender]):
        raise Fault(f"{step.name} of {frame.sender} without a valid signature", by_sender=False)
    # Every body begins with what it is bound to. Before parsing: a malformed body of another session, relayed here, is
    # the relay's fault.
    if frame.body[:HASH_SIZE] != binding:
        raise Fault(f"{step.name} of {frame.sender} belongs to another session", by_sender=False)
    try:
        body = decode(frame.body)
    except WireError as error:
        raise Fault(f"signed a malformed {step.name}: {error}", by_sender=True) from error
    if body.sender != frame.sender:
        raise Fault(f"signed a {step.name} in the name of {body.sender}", by_sender=True)
    return Signed(frame.without_attachment(), body)


def check_keys(body: Keys, cohort: Sequence[str]) -> None:
    """Refuse an R1 whose public keys make secrets that anybody knows, or that are one key for two uses.

    Raises:
        Fault: another number of transport keys than the sender has peers, a key that `check_public` refuses, or two
            equal keys.
    """
    if len(body.transport) != len(cohort) - 1:
        raise Fault(f"signed {len(body.transport)} transport keys in a cohort of {len(cohort)}", by_sender=True)
    keys = (*body.transport, body.mask)
    try:
        for key in keys:
            check_public(key)
    except WireError as error:
        raise Fault(f"signed {error}", by_sender=True) from error
    if len(set(keys)) != len(keys):
        raise Fault("signed one key for two uses", by_sender=True)


def roll_of(keys: Iterable[Frame]) -> Roll:
    """U1 by name, each with the hash of its R1 (body and signature), from the frames in roster order.

    Everything that is bound to a session binds this and not the frames, so that evidence about one silo need not carry
    everybody's keys.
    """
    return tuple((frame.sender, digest(labels.KEYS_LEAF, frame.body, frame.signature)) for frame in keys)


def session_id(announced: bytes, roll: Roll) -> bytes:
    """The sid: SHA-256 over the hash of R0's body, and name and R1 hash of every member of U1, in roster order."""
    return digest(labels.SESSION, announced, *_flat(roll))


def dealt_by(shares: Iterable[Frame]) -> Roll:
    """U2 by name, each with the hash of its R2 body, from the frames in roster order."""
    return tuple((frame.sender, digest(labels.SHARES_LEAF, frame.body)) for frame in shares)


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
    return blob_hash(ciphertext)


def transcript(session: bytes, dealt: Roll) -> bytes:
    """Names U2 and the exact R2 bodies of its members (`dealt_by`); R3 signs it."""
    return digest(labels.TRANSCRIPT, session, *_flat(dealt))


def agreement(session: bytes, u1: Sequence[str], u2: Sequence[str], masked: Roll, shares_transcript: bytes) -> bytes:
    """What R4 signs: sid, U1, U2 with its R2 bodies, U3 with every H(y_v), in roster order."""
    return digest(
        labels.AGREEMENT,
        session,
        framed(*(name.encode("ascii") for name in u1)),
        framed(*(name.encode("ascii") for name in u2)),
        shares_transcript,
        framed(*_flat(masked)),
    )


def _flat(roll: Roll) -> tuple[bytes, ...]:
    return tuple(part for name, value in roll for part in (name.encode("ascii"), value))
