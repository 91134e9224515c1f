"""A silo's half of a session, R2 to R3: open what was dealt, complain of what does not open, mask the vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.bodies import Masked, Shares
from secagg.checks import Fault, Signed, ciphertext_hash, dealt_by, transcript
from secagg.dealing import Held, receive_deal
from secagg.errors import ProtocolViolation, WireError
from secagg.exhibits import MAXIMUM_CIPHERTEXT, Complaint, encode_exhibit
from secagg.hashing import blob_hash
from secagg.keys import Entropy, KeyPair, sign
from secagg.pairing import own_streams
from secagg.session import WORD64_BOUND
from secagg.states import Context, RequestState, State, blame, read_request, require_own, require_quorum
from secagg.tags import group_secret, tags
from secagg.unmasking import AwaitingConsistency, MaskedData
from secagg.vector import Segments, signed_input
from secagg.wire import COORDINATOR, Frame, Step


@dataclass(frozen=True, slots=True)
class JoinedData:
    """What a silo made for R1 (a transport key for each other member of the cohort, s_u, b_u), and entropy for R2."""

    transport: dict[str, KeyPair]
    mask: KeyPair
    seed: bytes = field(repr=False)
    sent: Frame
    entropy: Entropy = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyedData:
    """After R1: its frames by member of U1, in roster order, and the raw X25519 secrets with each other member."""

    joined: JoinedData
    session: bytes
    keys: dict[str, Frame]
    transport_secrets: dict[str, bytes] = field(repr=False)
    mask_secrets: dict[str, bytes] = field(repr=False)

    @property
    def u1(self) -> tuple[str, ...]:
        """Who sent R1, in roster order."""
        return tuple(self.keys)


@dataclass(frozen=True, slots=True)
class DealtData:
    """After R2 was sent: what this silo dealt to itself. The last state that holds transport keys."""

    keyed: KeyedData
    own: Held = field(repr=False)
    sent: Frame


@dataclass(frozen=True, slots=True)
class _Ready:
    session: bytes
    u1: tuple[str, ...]
    u2: tuple[str, ...]
    transcript: bytes
    seed: bytes = field(repr=False)
    mask_secrets: dict[str, bytes] = field(repr=False)
    held: dict[str, Held] = field(repr=False)
    group: bytes = field(repr=False)


class AwaitingShares(RequestState[DealtData, "ReadyToMask"]):
    """Sent R2; waits for what the others dealt to it."""

    __slots__ = ()

    def receive(self, frames: Sequence[Frame]) -> ReadyToMask:
        """All R2 of U2, each with the one ciphertext for this silo attached (its own with none).

        Raises:
            ProtocolViolation: a check of R2 failed. Where a ciphertext is the signed one and does not open, or not to
                what was signed, the evidence reveals this silo's transport key for the dealer: it opens what the two
                sent each other and nothing else, in a session that is now over for this silo.
        """
        return self._receive(frames)

    def _respond(self, data: DealtData, frames: Sequence[Frame]) -> ReadyToMask:
        context, keyed = self._context, data.keyed
        found = read_request(context, frames, Step.SHARES, keyed.u1, keyed.session, Shares.decode, data.sent)
        attachments = {frame.sender: frame.attachment for frame in frames}
        position = keyed.u1.index(context.me)
        held: dict[str, Held] = {}
        for name, signed in found.items():
            if len(signed.body.dealt) != len(keyed.u1):
                raise blame(context, signed.frame, Fault("dealt shares to another set than U1", by_sender=True))
            if name == context.me:
                held[name] = data.own
                continue
            entry = signed.body.dealt[position]
            ciphertext = attachments[name]
            # One too long for evidence would let its dealer escape; no honest coordinator relays it.
            if len(ciphertext) > MAXIMUM_CIPHERTEXT or ciphertext_hash(ciphertext) != entry.ciphertext:
                raise ProtocolViolation(
                    COORDINATOR, f"a share ciphertext other than {name} signed, or too long for one"
                )
            secret = keyed.transport_secrets[name]
            try:
                held[name] = receive_deal(signed.body, entry, ciphertext, me=context.me, secret=secret)
            except WireError as error:
                complaint = self._complaint(keyed, signed, ciphertext)
                raise ProtocolViolation(name, f"dealt {error}", complaint) from error
        require_own(found, context, data.sent)
        require_quorum(found, context, Step.SHARES)
        u2 = tuple(found)
        seen = transcript(keyed.session, dealt_by(signed.frame for signed in found.values()))
        group = group_secret(keyed.session, seen, [held[name].tag_secret for name in u2])
        secrets = {name: keyed.mask_secrets[name] for name in u2 if name != context.me}
        ready = _Ready(keyed.session, keyed.u1, u2, seen, keyed.joined.seed, secrets, held, group)
        return ReadyToMask(context, ready)

    def _complaint(self, keyed: KeyedData, shares: Signed[Shares], ciphertext: bytes) -> bytes:
        context, dealer = self._context, shares.frame.sender
        keys, private = keyed.keys, keyed.joined.transport[dealer].private
        roll = context.life.roll
        return encode_exhibit(Complaint(keys[dealer], keys[context.me], shares.frame, roll, ciphertext, private))


class ReadyToMask(State[_Ready]):
    """Knows U2 and everybody's mask keys. Sending what `mask` returns *spends* the round: make that durable first."""

    __slots__ = ("members", "session")

    def __init__(self, context: Context, data: _Ready) -> None:
        super().__init__(context, data)
        self.session = data.session
        self.members = data.u2

    def mask(
        self, words32: NDArray[np.integer[Any]], words64: NDArray[np.integer[Any]]
    ) -> tuple[AwaitingConsistency, Frame]:
        """Mask this silo's vector, once.

        Args:
            words32: int32[n] or int64[n], or uint32[n] in two's complement; |q| at most the announced value bound.
            words64: int64[m], or uint64[m] in two's complement; |q| at most WORD64_BOUND.

        Returns:
            The next state, and R3 with the masked vector attached (secagg.vector).

        Raises:
            MisuseError: the arrays do not have the announced form; the state is not used up by it.
        """
        context, announcement = self._context, self._context.announcement
        small = signed_input(words32, announcement.words32, announcement.value_bound, 32)
        large = signed_input(words64, announcement.words64, WORD64_BOUND, 64)
        data = self._take()
        segments = Segments.of(small, large)
        streams = own_streams(data.session, context.me, data.u2, data.seed, data.mask_secrets)
        segments.tags[:] = tags(data.group, data.session, small, large, (context.me,))
        streams.apply(segments)
        vector = segments.take()
        body = Masked(data.session, context.me, data.transcript, blob_hash(vector))
        frame = sign(Step.MASKED, context.me, body.encode(), context.signer, vector)
        masked = MaskedData(
            data.session, data.u1, data.u2, data.transcript, data.held, data.group, frame.without_attachment()
        )
        return AwaitingConsistency(context, masked), frame
