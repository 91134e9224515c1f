"""Aborts: a silo's signed last word on a session, and the certificate that makes masking the same vector again safe.

At least |U1| - t + c + 1 members state that they released no R5 share of the announcement and never will. At least
|U1| - t + 1 of them are honest, so fewer than t can ever release shares, and neither mask of anybody can be opened. A
statement covers every session of its announcement, since an honest silo enters an announcement once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.bodies import MAXIMUM_REASON, NO_SESSION, Abort
from secagg.errors import MisuseError, ProtocolViolation, Rejected, WireError
from secagg.hashing import blob_hash
from secagg.keys import sign, signature_valid
from secagg.session import Announcement
from secagg.wire import COORDINATOR, MAXIMUM_EVIDENCE, Frame, Step


def abort_frame(
    *,
    announcement: bytes,
    me: str,
    signer: Ed25519PrivateKey,
    released: bool,
    reason: str,
    session: bytes = NO_SESSION,
    blamed: str = COORDINATOR,
    evidence: bytes = b"",
) -> Frame:
    """Sign an ABORT outside a state machine, for a session whose secrets are gone (after a restart).

    The caller answers for `released`: false only when it knows *durably* that it entered the announcement, released no
    UNMASK frame in it, and can never enter it again.

    Args:
        announcement: SHA-256 of the R0 body.
        evidence: travels as the attachment; left out, and said so, beyond MAXIMUM_EVIDENCE bytes.
    """
    if len(evidence) > MAXIMUM_EVIDENCE:
        # Aborting must not fail: whoever can make evidence too large would silence those who refuse it.
        evidence, reason = b"", f"{reason} [evidence of {len(evidence)} bytes left out]"
    clipped = reason.encode()[:MAXIMUM_REASON].decode(errors="ignore")
    body = Abort(announcement, session, me, released, blamed, clipped, blob_hash(evidence))
    return sign(Step.ABORT, me, body.encode(), signer, evidence)


def read_abort(frame: Frame, members: Mapping[str, bytes]) -> Abort:
    """Verify an ABORT frame and read it. Its announcement and session are the caller's to compare.

    Raises:
        Rejected: not a member's, no valid signature, malformed, or another attachment than the signed one.
    """
    abort = read_statement(frame, members)
    if len(frame.attachment) > MAXIMUM_EVIDENCE or blob_hash(frame.attachment) != abort.evidence:
        raise Rejected(frame.sender, "an abort with other evidence than was signed")
    return abort


def read_statement(frame: Frame, members: Mapping[str, bytes]) -> Abort:
    """As `read_abort`, for an ABORT whose evidence is not at hand: what it states stands without."""
    if frame.step != Step.ABORT or frame.sender not in members:
        raise Rejected(frame.sender, "this is not an abort of a member")
    if not signature_valid(Step.ABORT, frame.body, frame.signature, members[frame.sender]):
        raise Rejected(frame.sender, "an abort without a valid signature")
    try:
        abort = Abort.decode(frame.body)
    except WireError as error:
        raise Rejected(frame.sender, f"a malformed abort: {error}") from error
    if abort.sender != frame.sender:
        raise Rejected(frame.sender, "an abort in another silo's name")
    return abort


def abort_certificate_valid(
    frames: Iterable[Frame],
    *,
    announce_body: bytes,
    members: Mapping[str, bytes],
    u1: Sequence[str] | None = None,
) -> frozenset[str]:
    """The signers of a valid abort certificate.

    Frames that prove nothing about this announcement (another's, released, forged, of non-members, a second of the same
    silo) are not counted.

    Args:
        announce_body: R0 of the dead session, as the silo itself received and verified it.
        members: Ed25519 keys of the roster's silos.
        u1: the members of the dead session, where the caller knows them durably. Without it the whole announced cohort
            counts as U1, which asks for more signers, never fewer.

    Raises:
        ProtocolViolation: fewer than |U1| - t + c + 1 distinct signers in U1; the coordinator's fault.
        WireError, UnsoundError: `announce_body` is no announcement.
        MisuseError: `u1` is no subset of the cohort, or too small to have been a session.
    """
    announcement = Announcement.decode(announce_body)
    everybody = announcement.cohort if u1 is None else tuple(u1)
    if not set(everybody) <= set(announcement.cohort) or len(set(everybody)) != len(everybody):
        raise MisuseError("U1 must be a subset of the announced cohort")
    if len(everybody) < announcement.quorum:
        raise MisuseError("U1 is smaller than a session can be")
    keys = {name: members[name] for name in everybody if name in members}
    announced = hashlib.sha256(announce_body).digest()
    signers = set()
    for frame in frames:
        try:
            abort = read_abort(frame, keys)
        except Rejected:
            continue
        if abort.announcement == announced and not abort.released:
            signers.add(abort.sender)
    needed = len(everybody) - announcement.threshold + announcement.colluders + 1
    if len(signers) < needed:
        raise ProtocolViolation(
            COORDINATOR, f"an abort certificate of {len(signers)} signers where {needed} are needed"
        )
    return frozenset(signers)
