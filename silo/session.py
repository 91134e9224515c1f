"""One session of secure aggregation from R1 on, driven by the coordinator's requests (design 6, R2 to R6).

The protocol itself is secagg.client; this file adds what a silo owes beyond it: peers' ledger proofs, durable marks
before a masked input or an unmasking share leaves, identical answers to identical requests, and a signed abort for
everything unexpected. A session lives in this process's memory only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from feddrm.contract.messages import SMALL_VECTOR, Publish, SiloFrame, StepFrames
from privacy.errors import LedgerFault, UnaskedFault
from secagg.aborts import abort_frame
from secagg.bodies import Masked
from secagg.checks import Roll
from secagg.client import (
    AwaitingConsistency,
    AwaitingKeys,
    AwaitingShares,
    AwaitingSum,
    AwaitingUnmask,
    VerifiedSum,
)
from secagg.errors import ProtocolViolation, SecaggError
from secagg.evidence import find_conflict
from secagg.session import Announcement
from secagg.wire import COORDINATOR, Frame, Step
from silo.accusations import Accusations
from silo.boundary import INTERNAL
from silo.context import Context, Work
from silo.effects import Effect, FetchSum, Int64s, Log, Send, Upload
from silo.witnessing import Witnessing

Waiting = AwaitingKeys | AwaitingShares | AwaitingConsistency | AwaitingUnmask | AwaitingSum

_EXPECTS: Final[dict[type, Step]] = {
    AwaitingKeys: Step.KEYS,
    AwaitingShares: Step.SHARES,
    AwaitingConsistency: Step.MASKED,
    AwaitingUnmask: Step.CONSISTENCY,
    AwaitingSum: Step.PUBLISH,
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was answered, and the answer for a repeat."""

    frames: tuple[Frame, ...]
    answer: tuple[Effect, ...] = field(repr=False)


class Session:
    """A session that this silo joined.

    Args:
        announcement: of R0, checked.
        opened: SHA-256 of the R0 body.
        waiting: the protocol's first state.
        keys: this silo's R1, the answer to a repeated announcement.
        q: int64[n], what to mask: the 32-bit entries, then the 64-bit ones.
    """

    def __init__(
        self,
        context: Context,
        witnessing: Witnessing,
        work: Work,
        announcement: Announcement,
        opened: bytes,
        waiting: AwaitingKeys,
        keys: Frame,
        q: Int64s,
    ) -> None:
        self.announcement = announcement
        self.opened = opened
        self._keys = keys
        self._context = context
        self._witnessing = witnessing
        self._work = work
        self._waiting: Waiting | None = waiting
        self._q = q
        self._sid = b""
        self._members: tuple[str, ...] = ()
        self._roll: Roll = ()
        self._answered: dict[Step, Request] = {}
        self._masked: Frame | None = None
        self._publish: Publish | None = None
        self._last_word: Frame | None = None

    @property
    def over(self) -> bool:
        """Whether this silo said its last word in it."""
        return self._waiting is None

    def named(self, session: bytes) -> bool:
        """Whether `session` is this one's sid, or the hash of its announcement."""
        return session == self.opened or (bool(self._sid) and session == self._sid)

    def joined(self) -> list[Effect]:
        """The answer to the announcement again, or the last word if it was said."""
        return [Send(SiloFrame(self._last_word or self._keys))]

    def request(self, event: StepFrames) -> list[Effect]:
        """Answer the frames of a step with this silo's frame of the next; a repeat with the same answer."""
        step = Step(event.step)
        before = self._answered.get(step)
        if before is not None:
            if before.frames == _ordered(event.frames):
                return list(before.answer)
            return self._two_requests(step, before.frames, _ordered(event.frames))
        if self._waiting is None:
            return []
        due = _EXPECTS[type(self._waiting)]
        if due != step or step == Step.PUBLISH:
            return [Log(f"A request of step {step.name} came while {due.name} is due; ignored.")]
        try:
            answer = self._advance(event.frames)
        except ProtocolViolation as violation:
            return self.abort(violation.reason, violation.peer, violation.evidence)
        except LedgerBlame as blame:
            return self.abort(blame.reason, blame.peer, blame.evidence)
        self._answered[step] = Request(_ordered(event.frames), tuple(answer))
        return answer

    def uploaded(self, blob: bytes) -> list[Effect]:
        """The masked vector has arrived, or is small enough to travel along: send its signed frame."""
        if self._masked is None or self._waiting is None or Masked.decode(self._masked.body).vector != blob:
            return []
        small = len(self._masked.attachment) <= SMALL_VECTOR
        return [Send(SiloFrame(self._masked if small else self._masked.without_attachment()))]

    def publish(self, event: Publish) -> list[Effect]:
        """Fetch the published sum, unless it came along: then it is up to the caller to hand it to `fetched`."""
        if not isinstance(self._waiting, AwaitingSum):
            return []
        if self._publish not in (None, event):
            return self.abort("two different published sums")
        self._publish = event
        if event.frame.attachment:
            return []
        return [FetchSum(event.sum, self.announcement.vector_size)]

    def wants(self, blob: bytes) -> bool:
        """Whether this session waits for these bytes."""
        return self._publish is not None and self._publish.sum == blob and isinstance(self._waiting, AwaitingSum)

    def fetched(self, data: bytes) -> tuple[VerifiedSum | None, list[Effect]]:
        """Verify a published sum by its tags; on success the session is over."""
        if not isinstance(self._waiting, AwaitingSum) or self._publish is None:
            return None, []
        frame = self._publish.frame
        complete = Frame(frame.step, frame.sender, frame.body, frame.signature, data)
        try:
            verified = self._waiting.receive(complete)
        except ProtocolViolation as violation:
            return None, self.abort(violation.reason, violation.peer, violation.evidence)
        self._waiting = None
        return verified, []

    def abort(self, reason: str, blamed: str = COORDINATOR, evidence: bytes = b"") -> list[Effect]:
        """Say the last word; asked again, the same one."""
        if self._waiting is not None:
            self._last_word = self._waiting.abort(reason, blamed, evidence)
            self._waiting = None
            self._witnessing.keep()
            if self._last_word.attachment:
                Accusations(self._context).keep(self.announcement, self._last_word, blamed)
        if self._last_word is None:
            return []
        return [
            Log(f"Left a session: {reason}{f' (blamed: {blamed})' if blamed else ''}.", warning=bool(blamed)),
            Send(SiloFrame(self._last_word)),
        ]

    def collapse(self) -> list[Effect]:
        """After an internal error, in which the protocol's state may have been used up: the last word all the same."""
        try:
            return self.abort(INTERNAL)
        except SecaggError:
            a = self.announcement
            durable = self._context.state.session(self.opened)
            released = isinstance(self._waiting, AwaitingSum) or durable is None or durable.released
            self._waiting = None
            self._witnessing.keep()
            self._last_word = abort_frame(
                announcement=self.opened,
                me=self._context.me,
                signer=self._context.signer,
                released=released,
                reason=INTERNAL,
            )
            return [
                Log(f"Left attempt {a.attempt} of round {a.round}: {INTERNAL}.", warning=True),
                Send(SiloFrame(self._last_word)),
            ]

    def _advance(self, frames: tuple[Frame, ...]) -> list[Effect]:
        match self._waiting:
            case AwaitingKeys():
                return self._share(self._waiting, frames)
            case AwaitingShares():
                return self._mask(self._waiting, frames)
            case AwaitingConsistency():
                self._waiting, consistency = self._waiting.receive(frames)
                return [Send(SiloFrame(consistency))]
            case AwaitingUnmask():
                self._waiting, unmask = self._waiting.receive(frames)
                a = self.announcement
                self._context.state.mark(a.plan, a.stage, a.round, a.attempt, "released")
                return [Send(SiloFrame(unmask))]
            case _:
                return []

    def _share(self, waiting: AwaitingKeys, frames: tuple[Frame, ...]) -> list[Effect]:
        received = waiting.receive(frames)
        self._sid = received.session
        self._members = received.members
        self._roll = received.roll
        self._witness({peer: received.ledger_proofs[peer] for peer in received.members if peer != self._context.me})
        self._waiting, shares = received.share()
        return [Send(SiloFrame(shares))]

    def _witness(self, proofs: Mapping[str, bytes]) -> None:
        """Check the peers' ledgers.

        What was seen of them is written with the spent mark (`_mask`), before R3, by which this silo first gives
        something for what they prove: R2 holds shares of keys that were made for this session and hide nothing yet. Or
        it is written when the session ends before (`abort`).
        """
        found: tuple[str, LedgerFault | UnaskedFault] | None = None
        for peer, proof in proofs.items():
            try:
                self._witnessing.witness(self._work, peer, proof, self.announcement)
            except (LedgerFault, UnaskedFault) as fault:
                found = (peer, fault)
                break
        if found is not None:
            peer, reason = found
            if isinstance(reason, UnaskedFault):
                # An honest coordinator lets no R1 pass that does not answer what it asked.
                raise LedgerBlame(COORDINATOR, str(reason), b"") from reason
            raise LedgerBlame(peer, str(reason), reason.evidence) from reason

    def _mask(self, waiting: AwaitingShares, frames: tuple[Frame, ...]) -> list[Effect]:
        ready = waiting.receive(frames)
        a = self.announcement
        with self._context.state.transaction():
            self._context.state.spend(a.plan, a.stage, a.round, a.attempt, self._members)
            self._witnessing.keep()
        self._waiting, self._masked = ready.mask(self._q[: a.words32], self._q[a.words32 :])
        data = self._masked.attachment
        return [Upload(Masked.decode(self._masked.body).vector, self.announcement.round, data)]

    def _two_requests(self, step: Step, first: tuple[Frame, ...], second: tuple[Frame, ...]) -> list[Effect]:
        """Answering both would be the attack. A silo that signed two frames is to blame, or else the coordinator."""
        found = find_conflict(
            first,
            second,
            roll=self._roll,
            announce_body=self.announcement.encode(),
            members=self._context.identities(self.announcement.cohort),
        )
        if found is not None:
            return self.abort(f"signed two different messages of step {step.name}", *found)
        return self.abort(f"two different requests for step {step.name}")


class LedgerBlame(Exception):  # noqa: N818 - a verdict on a peer
    """A peer's ledger proof does not hold; the peer is excluded, the federation goes on (design 7). `peer` is empty
    where the coordinator is to blame."""

    def __init__(self, peer: str, reason: str, evidence: bytes) -> None:
        super().__init__(reason)
        self.peer = peer
        self.reason = reason
        self.evidence = evidence


def _ordered(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return tuple(sorted(frames, key=lambda frame: (frame.sender, frame.body)))
