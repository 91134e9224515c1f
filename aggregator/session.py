"""One attempt at one secure sum: drives secagg.server through its steps (design sections 5 and 6).

Pure: frames and time come in as arguments, what to send is left in `outbox`. The session closes a step as soon as every
member whose answer can still come has answered, at the latest at the step's deadline; it ends as Summed or Broken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from feddrm.contract.messages import AbortRequest, Announce, CoordinatorEvent, StepFrames
from privacy.errors import LedgerFault
from privacy.witness import check_answer
from secagg import server
from secagg.aborts import read_abort
from secagg.bodies import Abort
from secagg.checks import roll_of
from secagg.errors import Failed, Rejected
from secagg.evidence import find_conflict
from secagg.session import Announcement
from secagg.wire import Frame, Step

_Collecting = (
    server.CollectingKeys
    | server.CollectingShares
    | server.CollectingMasked
    | server.CollectingConsistency
    | server.CollectingUnmask
)
_STEP_OF: Mapping[type[object], Step] = {
    server.CollectingKeys: Step.KEYS,
    server.CollectingShares: Step.SHARES,
    server.CollectingMasked: Step.MASKED,
    server.CollectingConsistency: Step.CONSISTENCY,
    server.CollectingUnmask: Step.UNMASK,
}


@dataclass(frozen=True, slots=True)
class Summed:
    """The session produced a sum."""

    published: server.Published


@dataclass(frozen=True, slots=True)
class Broken:
    """The session cannot produce a sum. `masked` says whether a member may have sent a masked input."""

    reason: str
    masked: bool


@dataclass(slots=True)
class Session:
    """One attempt. `boots` holds the agent process of each member when it was announced to, `keys` its identity key.

    `outbox` is the last thing sent to each member, which a member that reconnects gets again. `gone` holds those that
    are not waited for, and why: another boot (its keys are gone), an abort, an offence. `evidence` is what came with
    offences and accusations and was not kept yet, each after the silo that it is about or from. `shown` holds the sizes
    of the ledger heads that went to the peers in this round: a retry comes before they say that they hold them.
    """

    announcement: Announcement
    frame: Frame
    state: _Collecting
    keys: Mapping[str, bytes]
    boots: dict[str, bytes]
    deadline_ms: int
    step_ms: int
    outbox: dict[str, CoordinatorEvent]
    gone: dict[str, str] = field(default_factory=dict)
    offenders: dict[str, str] = field(default_factory=dict)
    aborts: dict[str, Frame] = field(default_factory=dict)
    said: dict[str, Abort] = field(default_factory=dict)
    evidence: list[tuple[str, bytes | Frame]] = field(default_factory=list)
    punished: set[str] = field(default_factory=set)
    counted: dict[tuple[int, str], Frame] = field(default_factory=dict)
    keyed: frozenset[str] = frozenset()
    unmasked: set[str] = field(default_factory=set)
    shown: dict[str, set[int]] = field(default_factory=dict)

    @property
    def step(self) -> Step:
        """The step whose frames are collected."""
        return _STEP_OF[type(self.state)]

    @property
    def masked(self) -> bool:
        """Whether a member may have sent a masked input, so that a retry needs an abort certificate."""
        return self.step >= Step.MASKED

    @property
    def start(self) -> bytes:
        """SHA-256 of the R0 body: the session's name before there is a sid."""
        return hashlib.sha256(self.frame.body).digest()

    def expects(self, silo: str) -> bool:
        """Whether the current step lacks this silo's frame."""
        return silo in self.state.missing and silo not in self.gone

    def waiting(self) -> tuple[str, ...]:
        """Who is waited for, in cohort order."""
        return tuple(name for name in self.announcement.cohort if self.expects(name))

    def awaited(self, connected: Collection[str]) -> set[str]:
        """Whose frame keeps the step open, whoever else's comes first."""
        return self._pending(connected, ready=True)

    def _pending(self, connected: Collection[str], *, ready: bool) -> set[str]:
        pending = {name for name in self.state.missing if name not in self.gone}
        if ready and self.step == Step.UNMASK:
            # Any t shares will do, and who vanished after R4 stays in the sum: no reason to wait for it.
            pending &= set(connected)
        return pending

    def concerns(self, frame: Frame) -> bool:
        """Whether a frame is of this session's current step: every silo's body starts with the session it belongs to
        (secagg.bodies)."""
        return frame.step == self.step and frame.body[: len(self.state.session)] == self.state.session

    def receive(self, silo: str, frame: Frame) -> str:
        """Take a frame of the current step; returns a sentence for the journal when it is not counted.

        A frame of a step that is over, or of a session that is over, is an honest race and is dropped in silence,
        unless it contradicts the one that was counted.
        """
        if frame.sender != silo:
            return self._offend(silo, f"sent a frame in the name of {frame.sender or 'the coordinator'}")
        if silo in self.gone or silo not in self.announcement.cohort:
            return ""
        if not self.concerns(frame):
            return self._late(silo, frame)
        if frame.step == Step.KEYS and silo in self.state.missing and (fault := self._unanswered(silo, frame)):
            return self._offend(silo, fault)
        try:
            self.state.receive(frame)
        except Rejected as error:
            return self._offend(silo, error.reason, error.evidence)
        self.counted.setdefault((frame.step, silo), frame.without_attachment())
        if frame.step == Step.UNMASK:
            self.unmasked.add(silo)
        return ""

    def _unanswered(self, silo: str, frame: Frame) -> str:
        """What is wrong with the ledger proof of an R1: its peers blame nobody for what it was not asked to prove."""
        sent = self.outbox[silo]
        origin = f"feddrm/{self.announcement.federation}/{silo}"
        try:
            size = check_answer(
                frame.attachment,
                origin=origin,
                key=self.keys[silo],
                asked=sent.witnessed if isinstance(sent, Announce) else (),
            )
        except LedgerFault as fault:
            return str(fault)
        self.shown.setdefault(silo, set()).add(size)
        return ""

    def _late(self, silo: str, frame: Frame) -> str:
        counted = self.counted.get((frame.step, silo))
        if counted is None or counted.body == frame.body:
            return ""
        keys = [self.counted[Step.KEYS, name] for name in self.members]
        roll = () if frame.step == Step.KEYS else roll_of(keys)
        found = find_conflict(
            [counted], [frame.without_attachment()], roll=roll, announce_body=self.frame.body, members=self.keys
        )
        return "" if found is None else self._offend(silo, f"signed two different {Step(frame.step).name}", found[1])

    def receive_abort(self, silo: str, frame: Frame, key: bytes) -> Abort | None:
        """Take a member's signed abort of this announcement; None for one that is not valid or not about it."""
        if silo not in self.announcement.cohort:
            return None
        try:
            abort = read_abort(frame, {silo: key})
        except Rejected:
            return None
        if abort.announcement != self.start:
            return None
        if frame.attachment and silo not in self.aborts:
            self.evidence.append((silo, frame))
        self.aborts[silo], self.said[silo] = frame, abort
        self.lose(silo, abort.reason)
        return abort

    def lose(self, silo: str, why: str) -> None:
        """Stop waiting for a member."""
        if silo in self.announcement.cohort:
            self.gone.setdefault(silo, why)

    def advance(self, now_ms: int, connected: Collection[str]) -> tuple[tuple[str, ...], Summed | Broken | None]:
        """Close every step that can be closed.

        Args:
            now_ms: the time.
            connected: silos whose control stream is open.

        Returns:
            Members to send the outbox to, and the end of the session if this is it.
        """
        sent: dict[str, None] = {}
        while True:
            if self._pending(connected, ready=self.state.ready) and now_ms < self.deadline_ms:
                return tuple(sent), None
            if not self.state.ready:
                absent = ", ".join(sorted(self.state.missing))
                return tuple(sent), Broken(f"{self.step.name.lower()}: no quorum without {absent}", self.masked)
            try:
                following = self._close(now_ms)
            except Failed as error:
                for name in sorted(error.blamed):
                    self._offend(name, error.reason, error.evidence.get(name, b""))
                return tuple(sent), Broken(f"{self.step.name.lower()}: {error.reason}", self.masked)
            if isinstance(following, server.Published):
                return (), Summed(following)
            sent = dict.fromkeys(self.outbox)

    def _close(self, now_ms: int) -> server.Published | None:
        closed, name = self.step, self.state.session
        following = self.state.close()
        if isinstance(following, server.Published):
            return following
        self.state = following
        if closed == Step.KEYS:
            self.keyed = frozenset(following.outgoing)
        self.deadline_ms = now_ms + self.step_ms
        self.outbox = {
            silo: StepFrames(name, int(closed), tuple(frames)) for silo, frames in sorted(following.outgoing.items())
        }
        return None

    def request_abort(self, reason: str) -> dict[str, CoordinatorEvent]:
        """What asks every member of U1 for its signed abort."""
        return {name: AbortRequest(self.start, reason) for name in self.members}

    @property
    def members(self) -> tuple[str, ...]:
        """U1, in cohort order; empty before R1 is closed."""
        return tuple(name for name in self.announcement.cohort if name in self.keyed)

    def _offend(self, silo: str, why: str, evidence: bytes = b"") -> str:
        if evidence and silo not in self.offenders:
            self.evidence.append((silo, evidence))
        self.offenders.setdefault(silo, why)
        self.lose(silo, why)
        return f"{silo} {why}"
