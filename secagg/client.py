"""A silo's half of a session, R0 to R3; secagg.unmasking continues it. One type a state, no socket, no clock.

Left to the caller: comparing the announcement with the signed plan, (stage, round, attempt) that only rises, the abort
certificate of the attempt before, checking ledger proofs, and making durable what must be durable *before* a frame is
sent (design section 6, "Spent rounds and retries"). Secrets live in these objects only: never store one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from secagg.aborts import abort_certificate_valid, abort_frame, read_abort
from secagg.bodies import Keys, Masked, Shares
from secagg.checks import Fault, check_keys, ciphertext_hash, seed_commitment, session_id, transcript
from secagg.dealing import Held, deal, receive_deal
from secagg.errors import MisuseError, ProtocolViolation, UnsoundError, WireError
from secagg.keys import KEY_SIZE, Entropy, KeyPair, draw, sign, signature_valid
from secagg.pairing import own_streams
from secagg.session import TAGS, WORD64_BOUND, Announcement
from secagg.states import Context, RequestState, State, read_request, require_own, require_quorum
from secagg.tags import group_secret, tags
from secagg.unmasking import AwaitingConsistency, AwaitingSum, AwaitingUnmask, MaskedData, VerifiedSum
from secagg.vector import Segments, signed_input
from secagg.wire import COORDINATOR, MAXIMUM_PROOF, Frame, Step, encode_frames

__all__ = [
    "AwaitingConsistency",
    "AwaitingKeys",
    "AwaitingShares",
    "AwaitingSum",
    "AwaitingUnmask",
    "KeysReceived",
    "ProtocolViolation",
    "ReadyToMask",
    "VerifiedSum",
    "abort_certificate_valid",
    "abort_frame",
    "join",
    "read_abort",
]


@dataclass(frozen=True, slots=True)
class _Joined:
    transport: KeyPair
    mask: KeyPair
    seed: bytes = field(repr=False)
    sent: Frame
    entropy: Entropy = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Keyed:
    joined: _Joined
    session: bytes
    u1: tuple[str, ...]
    transport_secrets: dict[str, bytes] = field(repr=False)
    mask_secrets: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Dealt:
    keyed: _Keyed
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


def join(
    announce: Frame,
    *,
    server_key: bytes,
    members: Mapping[str, bytes],
    me: str,
    signer: Ed25519PrivateKey,
    entropy: Entropy,
    ledger_proof: bytes,
) -> tuple[AwaitingKeys, Frame]:
    """Enter an announced session with fresh keys. The caller has compared the announcement with the plan before.

    Args:
        announce: R0.
        server_key: the round key of the pinned roster (Ed25519, 32 bytes).
        members: Ed25519 keys of the silos of the pinned roster.
        signer: the identity key of `me`.
        entropy: a cryptographic source; secrets of the session come from it now and at `share`.
        ledger_proof: opaque, at most MAXIMUM_PROOF bytes; every member gets it.

    Returns:
        The next state, and R1.

    Raises:
        ProtocolViolation: the announcement is unsigned, malformed, unsound, or names silos that the roster does not.
        MisuseError: this silo's own arguments do not fit together.
    """
    if announce.step != Step.ANNOUNCE or announce.sender != COORDINATOR or announce.attachment:
        raise ProtocolViolation(COORDINATOR, "this is not an announcement")
    if not signature_valid(Step.ANNOUNCE, announce.body, announce.signature, server_key):
        raise ProtocolViolation(COORDINATOR, "an announcement without a valid signature of the round key")
    evidence = encode_frames([announce])
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
    if len(ledger_proof) > MAXIMUM_PROOF:
        raise MisuseError(f"a ledger proof of {len(ledger_proof)} bytes exceeds the limit of {MAXIMUM_PROOF}")
    announced = hashlib.sha256(announce.body).digest()
    context = Context(announcement, announce.body, announced, keys, server_key, me, signer)
    transport = KeyPair.from_private(draw(entropy, KEY_SIZE))
    mask = KeyPair.from_private(draw(entropy, KEY_SIZE))
    seed = draw(entropy, KEY_SIZE)
    proof = hashlib.sha256(ledger_proof).digest()
    body = Keys(announced, me, transport.public, mask.public, seed_commitment(announced, me, seed), proof)
    frame = sign(Step.KEYS, me, body.encode(), signer, ledger_proof)
    return AwaitingKeys(context, _Joined(transport, mask, seed, frame, entropy)), frame


class AwaitingKeys(RequestState[_Joined, "KeysReceived"]):
    """Sent R1; waits for everybody's."""

    __slots__ = ()

    def receive(self, frames: Sequence[Frame]) -> KeysReceived:
        """All R1 of U1, each with its ledger proof attached.

        Raises:
            ProtocolViolation: a check of R1 failed.
        """
        return self._receive(frames)

    def _respond(self, data: _Joined, frames: Sequence[Frame]) -> KeysReceived:
        context = self._context
        found = read_request(context, frames, Step.KEYS, context.announcement.cohort, context.announced, Keys.decode)
        proofs = {frame.sender: frame.attachment for frame in frames}
        transport_secrets: dict[str, bytes] = {}
        mask_secrets: dict[str, bytes] = {}
        for name, signed in found.items():
            if len(proofs[name]) > MAXIMUM_PROOF or hashlib.sha256(proofs[name]).digest() != signed.body.proof:
                raise ProtocolViolation(COORDINATOR, f"a ledger proof other than {name} signed")
            try:
                check_keys(signed.body)
            except Fault as fault:
                raise ProtocolViolation(name, fault.reason, encode_frames([signed.frame])) from fault
            if name != context.me:
                transport_secrets[name] = data.transport.agree(signed.body.transport)
                mask_secrets[name] = data.mask.agree(signed.body.mask)
        require_own(found, context, data.sent)
        require_quorum(found, context, Step.KEYS)
        u1 = tuple(found)
        sid = session_id(context.announce_body, (signed.frame for signed in found.values()))
        context.life.session = sid
        return KeysReceived(context, _Keyed(data, sid, u1, transport_secrets, mask_secrets), proofs)


class KeysReceived(State[_Keyed]):
    """Knows U1 and the sid. `ledger_proofs` are the caller's to check before it goes on."""

    __slots__ = ("ledger_proofs", "members", "session")

    def __init__(self, context: Context, data: _Keyed, ledger_proofs: Mapping[str, bytes]) -> None:
        super().__init__(context, data)
        self.session = data.session
        self.members = data.u1
        self.ledger_proofs = ledger_proofs

    def share(self) -> tuple[AwaitingShares, Frame]:
        """Deal shares of this silo's two secrets to U1, once.

        Returns:
            The next state, and R2 with the ciphertexts for the other members attached, in order.
        """
        keyed, context = self._take(), self._context
        dealt = deal(
            session=keyed.session,
            me=context.me,
            u1=keyed.u1,
            threshold=context.announcement.threshold,
            seed=keyed.joined.seed,
            mask_key=keyed.joined.mask.private,
            transport_secrets=keyed.transport_secrets,
            entropy=keyed.joined.entropy,
        )
        frame = sign(Step.SHARES, context.me, dealt.body.encode(), context.signer, b"".join(dealt.ciphertexts))
        return AwaitingShares(context, _Dealt(keyed, dealt.own, frame)), frame


class AwaitingShares(RequestState[_Dealt, "ReadyToMask"]):
    """Sent R2; waits for what the others dealt to it."""

    __slots__ = ()

    def receive(self, frames: Sequence[Frame]) -> ReadyToMask:
        """All R2 of U2, each with the one ciphertext for this silo attached (its own with none).

        Raises:
            ProtocolViolation: a check of R2 failed. A ciphertext that does not open is a complaint that only this
                silo's signature backs; the frame goes with it.
        """
        return self._receive(frames)

    def _respond(self, data: _Dealt, frames: Sequence[Frame]) -> ReadyToMask:
        context, keyed = self._context, data.keyed
        found = read_request(context, frames, Step.SHARES, keyed.u1, keyed.session, Shares.decode)
        attachments = {frame.sender: frame.attachment for frame in frames}
        position = keyed.u1.index(context.me)
        held: dict[str, Held] = {}
        for name, signed in found.items():
            if len(signed.body.dealt) != len(keyed.u1):
                raise ProtocolViolation(name, "dealt shares to another set than U1", encode_frames([signed.frame]))
            if name == context.me:
                held[name] = data.own
                continue
            entry = signed.body.dealt[position]
            if ciphertext_hash(attachments[name]) != entry.ciphertext:
                raise ProtocolViolation(COORDINATOR, f"a share ciphertext other than {name} signed")
            try:
                held[name] = receive_deal(
                    signed.body, entry, attachments[name], me=context.me, secret=keyed.transport_secrets[name]
                )
            except WireError as error:
                raise ProtocolViolation(name, f"dealt {error}", encode_frames([signed.frame])) from error
        require_own(found, context, data.sent)
        require_quorum(found, context, Step.SHARES)
        u2 = tuple(found)
        seen = transcript(keyed.session, (signed.frame for signed in found.values()))
        group = group_secret(keyed.session, seen, [held[name].tag_secret for name in u2])
        secrets = {name: keyed.mask_secrets[name] for name in u2 if name != context.me}
        ready = _Ready(keyed.session, keyed.u1, u2, seen, keyed.joined.seed, secrets, held, group)
        return ReadyToMask(context, ready)


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
            words32: int64[n], or uint32[n] in two's complement; |q| at most the announced value bound.
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
        segments = Segments(announcement.words32, announcement.words64)
        np.copyto(segments.words32, small, casting="unsafe")
        np.copyto(segments.words64[:-TAGS], large, casting="unsafe")
        segments.words64[-TAGS:] = tags(data.group, data.session, *segments.signed(), (context.me,))
        own_streams(data.session, context.me, data.u2, data.seed, data.mask_secrets).apply(segments)
        vector = segments.take()
        body = Masked(data.session, context.me, data.transcript, hashlib.sha256(vector).digest())
        frame = sign(Step.MASKED, context.me, body.encode(), context.signer, vector)
        masked = MaskedData(
            data.session, data.u1, data.u2, data.transcript, data.held, data.group, frame.without_attachment()
        )
        return AwaitingConsistency(context, masked), frame
