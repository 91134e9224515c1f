"""R5 and R6 at the coordinator: collect openings, reconstruct, remove the masks, publish the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secagg.bodies import Consistency, Keys, Publish, Shares, Unmask
from secagg.checks import Fault, Roll, Signed, dealt_by
from secagg.collecting import Collecting, Outgoing, ServerContext
from secagg.dealing import expected_hash, opens, reconstruct
from secagg.errors import Failed, WireError
from secagg.exhibits import Conflict, WrongOpening, WrongSecret, encode_exhibit
from secagg.hashing import blob_hash
from secagg.keys import KeyPair, sign
from secagg.pairing import Streams
from secagg.shamir import lagrange_at_zero
from secagg.vector import Segments, in_range, view_sum
from secagg.wire import COORDINATOR, Frame, Step


@dataclass(frozen=True, slots=True)
class Tally:
    """The masked total of U3, and whose masks are in it. `keys` and `shares` are R1 of U1 and R2 of U2, in order;
    `masked` names U3 with the hashes of its vectors."""

    session: bytes
    keys: dict[str, Signed[Keys]]
    shares: dict[str, Signed[Shares]]
    masked: Roll
    agreement: bytes
    segments: Segments = field(repr=False)

    @property
    def u3(self) -> tuple[str, ...]:
        """The survivors, in roster order."""
        return tuple(name for name, _ in self.masked)


@dataclass(frozen=True, slots=True)
class Published:
    """R6 with the sum attached. `opened` names dropouts whose mask keys were opened; `sum` is the hash of its bytes.

    `words32` int32[n] and `words64` int64[m] are the sum in place, read-only, without the tags, which only silos check.
    """

    frame: Frame
    survivors: tuple[str, ...]
    opened: tuple[str, ...]
    sum: bytes
    words32: NDArray[np.int32] = field(repr=False)
    words64: NDArray[np.int64] = field(repr=False)


class CollectingUnmask(Collecting[Unmask]):
    """R5. A frame with any bad share is not counted, and its sender blamed by its own signature."""

    __slots__ = ("_signatures", "_tally")
    step = Step.UNMASK

    def __init__(
        self, context: ServerContext, tally: Tally, signatures: dict[str, Signed[Consistency]], outgoing: Outgoing
    ) -> None:
        super().__init__(context, tally.session, tuple(signatures), outgoing)
        self._tally = tally
        self._signatures = signatures

    @property
    def needed(self) -> int:
        """t shares give every secret."""
        return self._context.announcement.threshold

    def _decode(self, body: bytes) -> Unmask:
        return Unmask.decode(body)

    def _check(self, signed: Signed[Unmask], attachment: bytes, _digest: bytes, /) -> None:
        if attachment:
            raise Fault("an attachment where none belongs", by_sender=False)
        tally, body = self._tally, signed.body
        if body.agreement != tally.agreement:
            agreed = self._signatures[body.sender].frame
            evidence = encode_exhibit(Conflict(agreed, signed.frame, self._context.roll))
            raise Fault("unmasked other survivors than it agreed on", by_sender=True, evidence=evidence)
        if len(body.openings) != len(tally.shares):
            evidence = self._wrong_opening(signed.frame, signed.frame)
            raise Fault("opened shares of another set than U2", by_sender=True, evidence=evidence)
        position = tuple(tally.keys).index(body.sender)
        survivors = set(tally.u3)
        for (owner, dealt), opening in zip(tally.shares.items(), body.openings, strict=True):
            label, expected = expected_hash(dealt.body.dealt[position], mask_key=owner not in survivors)
            if not opens(expected, label, tally.session, owner, body.sender, opening):
                evidence = self._wrong_opening(signed.frame, dealt.frame)
                raise Fault(f"opened another share than {owner} dealt to it", by_sender=True, evidence=evidence)

    def _wrong_opening(self, unmask: Frame, shares: Frame) -> bytes:
        dealt = dealt_by(signed.frame for signed in self._tally.shares.values())
        return encode_exhibit(WrongOpening(unmask, shares, self._context.roll, dealt, self._tally.masked))

    def close(self) -> Published:
        """Reconstruct what t members opened, remove the masks, and sign the sum.

        Raises:
            Failed: not ready, or a silo dealt shares that do not give the secret it committed to. It is blamed, with
                evidence, and the round is lost: the shares are all as dealt, and looking for t others that
                happen to fit would only let it deal so again.
        """
        found = self._close()
        tally, announcement = self._tally, self._context.announcement
        dropped = tuple(name for name in tally.shares if name not in set(tally.u3))
        self._remove_masks(list(found.values())[: self.needed])
        total = tally.segments.take()
        words32, words64, _ = view_sum(total, announcement.words32, announcement.words64)
        if not in_range(announcement, len(tally.u3), words32, words64):
            raise Failed(frozenset(), "a silo masked a vector outside the agreed range")
        digest = blob_hash(total)
        signatures = tuple((name, signed.frame.signature) for name, signed in self._signatures.items())
        body = Publish(tally.session, tally.agreement, digest, tally.u3, signatures)
        frame = sign(Step.PUBLISH, COORDINATOR, body.encode(), self._context.signer, total)
        return Published(frame, tally.u3, dropped, digest, words32, words64)

    def _remove_masks(self, opened: Sequence[Signed[Unmask]]) -> None:
        """Subtract b streams of U3 and cancel the pair streams between U3 and who dropped out."""
        tally = self._tally
        order = tuple(tally.keys)
        weights = lagrange_at_zero([order.index(signed.body.sender) + 1 for signed in opened])
        survivors = set(tally.u3)
        streams = Streams()
        bad: dict[str, bytes] = {}
        for index, owner in enumerate(tally.shares):
            openings = [(signed.body.sender, signed.body.openings[index]) for signed in opened]
            keys, dropped = tally.keys[owner], owner not in survivors
            try:
                shares = [opening.share for _, opening in openings]
                secret = reconstruct(keys.body, weights, shares, mask_key=dropped)
            except WireError:
                dealt = tally.shares[owner].frame
                proof = WrongSecret(keys.frame, dealt, self._context.roll, dropped, tuple(openings))
                bad[owner] = encode_exhibit(proof)
                continue
            if dropped:
                self._remove_pairs(streams, owner, secret)
            else:
                streams.self_mask(tally.session, owner, secret, add=False)
        if bad:
            raise Failed(frozenset(bad), "shares that do not give the secret that was committed to", bad)
        streams.apply(tally.segments)

    def _remove_pairs(self, streams: Streams, owner: str, private: bytes) -> None:
        tally = self._tally
        pair = KeyPair.from_private(private)
        order = tuple(tally.shares)
        for survivor in tally.u3:
            secret = pair.agree(tally.keys[survivor].body.mask)
            # The survivor added the stream if it comes first in the roster, and subtracted it otherwise.
            if order.index(survivor) < order.index(owner):
                streams.pair_mask(tally.session, survivor, owner, secret, add=False)
            else:
                streams.pair_mask(tally.session, owner, survivor, secret, add=True)
