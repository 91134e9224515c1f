"""R0 at a silo: which announcements it enters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.errors import MisuseError, ProtocolViolation, UnsoundError, WireError
from secagg.exhibits import loose
from secagg.keys import signature_valid
from secagg.session import Announcement
from secagg.states import Context
from secagg.wire import COORDINATOR, Frame, Step


def enter(
    announce: Frame, *, server_key: bytes, members: Mapping[str, bytes], me: str, signer: Ed25519PrivateKey
) -> Context:
    """Check R0; arguments as secagg.client.join.

    Raises:
        ProtocolViolation: the announcement is unsigned, malformed, unsound, or names silos that the roster does not.
        MisuseError: this silo's own arguments do not fit together.
    """
    if announce.step != Step.ANNOUNCE or announce.sender != COORDINATOR or announce.attachment:
        raise ProtocolViolation(COORDINATOR, "this is not an announcement")
    if not signature_valid(Step.ANNOUNCE, announce.body, announce.signature, server_key):
        raise ProtocolViolation(COORDINATOR, "an announcement without a valid signature of the round key")
    evidence = loose([announce])
    try:
        announcement = Announcement.decode(announce.body)
    except (WireError, UnsoundError) as error:
        raise ProtocolViolation(COORDINATOR, f"an announcement that is refused: {error}", evidence) from error
    if not set(announcement.cohort) <= set(members):
        raise ProtocolViolation(COORDINATOR, "a cohort with silos that are not in the roster", evidence)
    if me not in announcement.cohort:
        raise ProtocolViolation(COORDINATOR, "a cohort without this silo", evidence)
    keys = {name: members[name] for name in announcement.cohort}
    if len(set(keys.values())) != len(keys):
        raise MisuseError("two silos of the roster share one identity key")
    if signer.public_key().public_bytes_raw() != keys[me]:
        raise MisuseError(f"the identity key is not the roster's for {me}")
    announced = hashlib.sha256(announce.body).digest()
    return Context(announcement, announce.body, announced, keys, server_key, me, signer)
