"""Abort certificates: when enough members have signed that they released no share (design section 6)."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.session import Session
from secagg.aborts import abort_certificate_valid
from secagg.errors import ProtocolViolation
from secagg.wire import Frame


def certificate(session: Session, keys: Mapping[str, bytes], *, last_chance: bool) -> tuple[Frame, ...]:
    """The abort certificate of a broken session in cohort order, or nothing while it cannot be made.

    A silo that restarted no longer knows U1 and takes the announced cohort for it, which asks for more signers. So a
    certificate that everybody accepts is waited for, and one that only those accept who know U1 is made at the end.

    Args:
        keys: identity keys of the cohort.
        last_chance: no more aborts will come.
    """
    frames = tuple(session.aborts[name] for name in session.members if name in session.aborts)
    for u1 in (None, session.members) if last_chance else (None,):
        try:
            signers = abort_certificate_valid(frames, announce_body=session.frame.body, members=keys, u1=u1)
        except ProtocolViolation:
            continue
        return tuple(frame for frame in frames if frame.sender in signers)
    return ()
