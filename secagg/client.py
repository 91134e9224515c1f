"""A silo's half of a session, R0 and R1; secagg.masking and secagg.unmasking continue it. One type a state, no socket,
no clock.

Left to the caller: comparing the announcement with the signed plan, (stage, round, attempt) that only rises, the abort
certificate of the attempt before, checking ledger proofs, and making durable what must be durable *before* a frame is
sent (design section 6, "Spent rounds and retries"). Secrets live in these objects only: never store one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.aborts import abort_certificate_valid, abort_frame, read_abort
from secagg.bodies import Keys
from secagg.checks import Fault, check_keys, roll_of, seed_commitment, session_id
from secagg.dealing import deal
from secagg.entering import enter
from secagg.errors import MisuseError, ProtocolViolation
from secagg.hashing import blob_hash
from secagg.keys import KEY_SIZE, Entropy, KeyPair, draw, sign
from secagg.masking import AwaitingShares, DealtData, JoinedData, KeyedData, ReadyToMask
from secagg.states import Context, RequestState, State, blame, read_request, require_own, require_quorum
from secagg.unmasking import AwaitingConsistency, AwaitingSum, AwaitingUnmask, VerifiedSum
from secagg.wire import COORDINATOR, MAXIMUM_PROOF, Frame, Step

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
        ProtocolViolation, MisuseError: as secagg.entering.enter.
    """
    context = enter(announce, server_key=server_key, members=members, me=me, signer=signer)
    if len(ledger_proof) > MAXIMUM_PROOF:
        raise MisuseError(f"a ledger proof of {len(ledger_proof)} bytes exceeds the limit of {MAXIMUM_PROOF}")
    peers = [name for name in context.announcement.cohort if name != me]
    transport = {peer: KeyPair.from_private(draw(entropy, KEY_SIZE)) for peer in peers}
    mask = KeyPair.from_private(draw(entropy, KEY_SIZE))
    seed = draw(entropy, KEY_SIZE)
    body = Keys(
        context.announced,
        me,
        tuple(transport[peer].public for peer in peers),
        mask.public,
        seed_commitment(context.announced, me, seed),
        blob_hash(ledger_proof),
    )
    frame = sign(Step.KEYS, me, body.encode(), signer, ledger_proof)
    return AwaitingKeys(context, JoinedData(transport, mask, seed, frame, entropy)), frame


class AwaitingKeys(RequestState[JoinedData, "KeysReceived"]):
    """Sent R1; waits for everybody's."""

    __slots__ = ()

    def receive(self, frames: Sequence[Frame]) -> KeysReceived:
        """All R1 of U1, each with its ledger proof attached.

        Raises:
            ProtocolViolation: a check of R1 failed.
        """
        return self._receive(frames)

    def _respond(self, data: JoinedData, frames: Sequence[Frame]) -> KeysReceived:
        context = self._context
        found = read_request(
            context, frames, Step.KEYS, context.announcement.cohort, context.announced, Keys.decode, data.sent
        )
        proofs = {frame.sender: frame.attachment for frame in frames}
        transport_secrets: dict[str, bytes] = {}
        mask_secrets: dict[str, bytes] = {}
        for name, signed in found.items():
            if len(proofs[name]) > MAXIMUM_PROOF or blob_hash(proofs[name]) != signed.body.proof:
                raise ProtocolViolation(COORDINATOR, f"a ledger proof other than {name} signed")
            try:
                check_keys(signed.body, context.announcement.cohort)
            except Fault as fault:
                raise blame(context, signed.frame, fault) from fault
            if name != context.me:
                theirs = signed.body.transport_for(context.me, context.announcement.cohort)
                transport_secrets[name] = data.transport[name].agree(theirs)
                mask_secrets[name] = data.mask.agree(signed.body.mask)
        require_own(found, context, data.sent)
        require_quorum(found, context, Step.KEYS)
        keys = {name: signed.frame for name, signed in found.items()}
        context.life.roll = roll_of(keys.values())
        sid = context.life.session = session_id(context.announced, context.life.roll)
        return KeysReceived(context, KeyedData(data, sid, keys, transport_secrets, mask_secrets), proofs)


class KeysReceived(State[KeyedData]):
    """Knows U1 and sid. `ledger_proofs` are the caller's to check before it goes on. `roll` names U1 in evidence."""

    __slots__ = ("ledger_proofs", "members", "roll", "session")

    def __init__(self, context: Context, data: KeyedData, ledger_proofs: Mapping[str, bytes]) -> None:
        super().__init__(context, data)
        self.session = data.session
        self.members = data.u1
        self.roll = context.life.roll
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
        return AwaitingShares(context, DealtData(keyed, dealt.own, frame)), frame
