"""A silo's half of a session, R4 to R6: agree on survivors, open shares under that one agreement, verify the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secagg.bodies import Consistency, Masked, Publish, Unmask
from secagg.checks import agreement
from secagg.dealing import Held
from secagg.errors import ProtocolViolation, WireError
from secagg.exhibits import loose
from secagg.keys import sign, signature_valid
from secagg.states import RequestState, read_request, require_own, require_quorum
from secagg.tags import tags
from secagg.vector import in_range, view_sum
from secagg.wire import COORDINATOR, Frame, Step


@dataclass(frozen=True, slots=True)
class MaskedData:
    """What a silo keeps once it has masked: everybody's shares and G, and no mask key any more."""

    session: bytes
    u1: tuple[str, ...]
    u2: tuple[str, ...]
    transcript: bytes
    held: dict[str, Held] = field(repr=False)
    group: bytes = field(repr=False)
    sent: Frame


@dataclass(frozen=True, slots=True)
class _Agreed:
    masked: MaskedData
    u3: tuple[str, ...]
    agreement: bytes
    sent: Frame


@dataclass(frozen=True, slots=True)
class _Unmasked:
    session: bytes
    u3: tuple[str, ...]
    agreement: bytes
    signatures: frozenset[tuple[str, bytes]]
    group: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class VerifiedSum:
    """The sum of the survivors' vectors, verified by all tags.

    `words32` is int32[n] and `words64` int64[m], read-only, in the published bytes; `sum` is their hash.
    """

    words32: NDArray[np.int32]
    words64: NDArray[np.int64]
    survivors: tuple[str, ...]
    sum: bytes
    session: bytes


class AwaitingConsistency(RequestState[MaskedData, tuple["AwaitingUnmask", Frame]]):
    """Sent R3; waits for the signed R3 of all survivors."""

    __slots__ = ()

    def receive(self, frames: Sequence[Frame]) -> tuple[AwaitingUnmask, Frame]:
        """All R3 of U3, without the vectors. U1 and U2 are this silo's own; U3 is who signed an R3.

        Returns:
            The next state, and R4: this silo's one signature on sid, U1, U2, U3 and all hashes.

        Raises:
            ProtocolViolation: a check of R3 failed.
        """
        return self._receive(frames)

    def _respond(self, data: MaskedData, frames: Sequence[Frame]) -> tuple[AwaitingUnmask, Frame]:
        context = self._context
        found = read_request(context, frames, Step.MASKED, data.u2, data.session, Masked.decode, data.sent)
        for name, signed in found.items():
            if signed.body.transcript != data.transcript:
                evidence = loose([data.sent, signed.frame])
                raise ProtocolViolation(COORDINATOR, f"{name} was shown other shares than this silo", evidence)
        require_own(found, context, data.sent)
        require_quorum(found, context, Step.MASKED)
        masked = tuple((name, signed.body.vector) for name, signed in found.items())
        value = agreement(data.session, data.u1, data.u2, masked, data.transcript)
        body = Consistency(data.session, context.me, value)
        frame = sign(Step.CONSISTENCY, context.me, body.encode(), context.signer)
        return AwaitingUnmask(context, _Agreed(data, tuple(found), value, frame)), frame


class AwaitingUnmask(RequestState[_Agreed, tuple["AwaitingSum", Frame]]):
    """Signed R4; waits for t signatures over the very same value."""

    __slots__ = ()

    def receive(self, frames: Sequence[Frame]) -> tuple[AwaitingSum, Frame]:
        """R4 of at least t members of U3.

        Returns:
            The next state, and R5: for each member of U2 a share of b if it survived, of s if it dropped out. From
            here on this silo's abort says that it released shares.

        Raises:
            ProtocolViolation: a check of R4 failed; nothing was released.
        """
        return self._receive(frames)

    def _respond(self, data: _Agreed, frames: Sequence[Frame]) -> tuple[AwaitingSum, Frame]:
        context, masked = self._context, data.masked
        found = read_request(context, frames, Step.CONSISTENCY, data.u3, masked.session, Consistency.decode, data.sent)
        for name, signed in found.items():
            if signed.body.agreement != data.agreement:
                evidence = loose([signed.frame])
                raise ProtocolViolation(COORDINATOR, f"{name} agreed on other survivors than this silo", evidence)
        if len(found) < context.announcement.threshold:
            raise ProtocolViolation(
                COORDINATOR, f"{len(found)} signers of one agreement where {context.announcement.threshold} are needed"
            )
        survivors = set(data.u3)
        openings = tuple(masked.held[name].seed if name in survivors else masked.held[name].key for name in masked.u2)
        context.life.released = True
        body = Unmask(masked.session, context.me, data.agreement, openings)
        frame = sign(Step.UNMASK, context.me, body.encode(), context.signer)
        signatures = frozenset((name, signed.frame.signature) for name, signed in found.items())
        unmasked = _Unmasked(masked.session, data.u3, data.agreement, signatures, masked.group)
        return AwaitingSum(context, unmasked), frame


class AwaitingSum(RequestState[_Unmasked, VerifiedSum]):
    """Released shares; waits for the sum."""

    __slots__ = ()

    def receive(self, publish: Frame) -> VerifiedSum:
        """R6, with the sum's bytes attached. Nothing is applied that this did not return.

        Raises:
            ProtocolViolation: the sum is not that of the survivors that this silo agreed on; the coordinator's fault
                (or that of a silo whose vector does not carry its tags: the tags cannot tell).
        """
        return self._receive((publish,))

    def _respond(self, data: _Unmasked, frames: Sequence[Frame]) -> VerifiedSum:
        context, announcement, publish = self._context, self._context.announcement, frames[0]
        if publish.step != Step.PUBLISH or publish.sender != COORDINATOR:
            raise ProtocolViolation(COORDINATOR, "this is not a published sum")
        if not signature_valid(Step.PUBLISH, publish.body, publish.signature, context.server_key):
            raise ProtocolViolation(COORDINATOR, "a published sum without a valid signature of the round key")
        evidence = loose([publish.without_attachment()])
        try:
            body = Publish.decode(publish.body)
            words32, words64, published = view_sum(publish.attachment, announcement.words32, announcement.words64)
        except WireError as error:
            raise ProtocolViolation(COORDINATOR, f"a malformed sum: {error}", evidence) from error
        if (body.session, body.agreement, body.survivors) != (data.session, data.agreement, data.u3):
            raise ProtocolViolation(COORDINATOR, "a sum of other survivors or another session", evidence)
        self._check_signers(data, body, evidence)
        if self._digests[0] != body.sum:
            raise ProtocolViolation(COORDINATOR, "other bytes than the signed sum", evidence)
        if not in_range(announcement, len(data.u3), words32, words64):
            raise ProtocolViolation(COORDINATOR, "a sum outside the range of its summands", evidence)
        expected = tags(data.group, data.session, words32, words64, data.u3)
        if not np.array_equal(expected, published):
            raise ProtocolViolation(COORDINATOR, "a sum that its tags do not verify", evidence)
        return VerifiedSum(words32, words64, data.u3, body.sum, data.session)

    def _check_signers(self, data: _Unmasked, body: Publish, evidence: bytes) -> None:
        context, survivors = self._context, set(data.u3)
        valid = {
            name
            for name, signature in body.signatures
            if name in survivors
            # What verified at R4, over the very same bytes, is not verified again.
            and (
                (name, signature) in data.signatures
                or signature_valid(
                    Step.CONSISTENCY,
                    Consistency(data.session, name, data.agreement).encode(),
                    signature,
                    context.keys[name],
                )
            )
        }
        if len(valid) < context.announcement.threshold:
            raise ProtocolViolation(COORDINATOR, "a sum without t signatures of its survivors", evidence)
