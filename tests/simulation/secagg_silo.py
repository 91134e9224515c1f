"""A silo of the simulated world. It does what the caller of secagg must do: write down what must be durable before it
sends, enter an announcement once, mask the same vector again only with an abort certificate.

The state machines are the real ones and answer every request themselves, repeats included. A *liar* signs that it
released nothing, and goes on; or it has a trick (secagg_tricks).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from secagg_coordinator import Message
from secagg_tricks import accusation, another_keys, before_dealing, changed

from secagg.client import abort_certificate_valid, abort_frame, join
from secagg.errors import MisuseError, ProtocolViolation
from secagg.session import Announcement
from secagg.wire import COORDINATOR, Frame, Step

if TYPE_CHECKING:
    from secagg_world import World

Frames = tuple[Frame, ...]
# The step that a request carries, and the step that answers it.
NEXT = {
    Step.ANNOUNCE: Step.KEYS,
    Step.KEYS: Step.SHARES,
    Step.SHARES: Step.MASKED,
    Step.MASKED: Step.CONSISTENCY,
    Step.CONSISTENCY: Step.UNMASK,
}


@dataclass
class Entered:
    """What a silo writes about an announcement before it sends."""

    body: bytes
    masked: bool = False
    released: bool = False
    u1: tuple[str, ...] | None = None


@dataclass
class Disk:
    """Survives a restart. `place` is the highest (round, attempt) that was entered."""

    place: tuple[int, int] = (0, 0)
    entered: dict[bytes, Entered] = field(default_factory=dict)


@dataclass
class Memory:
    """One session in a silo's process: the state that answers each step, and what it was shown."""

    states: dict[Step, Any]
    latest: Any
    sent: dict[Step, tuple[Any, Frame]] = field(default_factory=dict)
    sets: dict[Step, tuple[str, ...]] = field(default_factory=dict)
    relayed: Frames = ()
    dead: bool = False


class Silo:
    """An honest silo, or one that lies: in aborts, or as its trick says."""

    def __init__(self, world: World, name: str, *, liar: bool, trick: str) -> None:
        self.world, self.name, self.liar, self.trick = world, name, liar, trick
        self.signer = world.identity[name]
        self.disk = Disk()
        self.remembers_u1 = world.random.random() < 0.7
        self.sessions: dict[bytes, Memory] = {}

    def crash(self) -> None:
        """Memory is lost."""
        for memory in self.sessions.values():
            self.world.outcomes[f"silo crashed before {max(memory.states).name}"] += not memory.dead
        self.sessions = {}

    def handle(self, message: Message) -> Frame | None:
        """The answer to a message; None when it is refused or ignored, or when the process dies before it answers."""
        if message.step == Step.ABORT:
            frame = self.abort(message.announced)
        elif message.step == Step.ANNOUNCE:
            frame = self.enter(message)
        else:
            memory = self.sessions.get(message.announced)
            frame = None if memory is None else self.step(message, memory)
        if frame is not None and self.world.cut():
            # Written, and the power went before the frame left.
            self.crash()
            return None
        if frame is not None:
            self.left(message, frame)
        return frame

    def left(self, message: Message, frame: Frame) -> None:
        """Tell the oracle what is out of the house."""
        if frame.step == Step.ABORT and not self.liar:
            self.world.oracle.left_abort(frame)
        memory = self.sessions.get(message.announced)
        if memory is None:
            return
        oracle = self.world.oracle
        if frame.step == Step.SHARES:
            oracle.left_shares(frame)
        elif frame.step == Step.MASKED:
            oracle.left_masked(self.world.session_of(frame), self.name)
        elif frame.step == Step.UNMASK and not self.liar:
            announcement = Announcement.decode(self.world.bodies[message.announced])
            u1, u2, u3 = (memory.sets[step] for step in (Step.KEYS, Step.SHARES, Step.MASKED))
            oracle.left_unmask(announcement, u1, u2, u3, frame)

    def enter(self, message: Message) -> Frame | None:
        announce = message.frames[0]
        announcement = Announcement.decode(announce.body)
        memory = self.sessions.get(message.announced)
        if memory is not None:
            return memory.sent[Step.KEYS][1]
        place = (announcement.round, announcement.attempt)
        if message.announced in self.disk.entered or (not self.liar and place <= self.disk.place):
            return None
        if not self.liar:
            if not self.certified(announcement.round, message.certificate):
                self.world.outcomes["no certificate"] += 1
                return None
            self.sessions = {}
        self.disk.place = max(place, self.disk.place)
        self.disk.entered[message.announced] = Entered(announce.body)
        state, frame = join(
            announce,
            server_key=self.world.server_key,
            members=self.world.members,
            me=self.name,
            signer=self.signer,
            entropy=self.world.random.randbytes,
            ledger_proof=b"proof of " + self.name.encode(),
        )
        self.sessions[message.announced] = Memory({Step.KEYS: state}, state, {Step.KEYS: (None, frame)})
        self.world.send(another_keys(self, frame))
        return frame

    def certified(self, number: int, certificate: Frames) -> bool:
        """Whether every earlier session in which this round's vector was masked is provably dead."""
        for entered in self.disk.entered.values():
            if not entered.masked or Announcement.decode(entered.body).round != number:
                continue
            u1 = entered.u1 if self.remembers_u1 else None
            try:
                abort_certificate_valid(certificate, announce_body=entered.body, members=self.world.members, u1=u1)
            except ProtocolViolation:
                return False
        return True

    def step(self, message: Message, memory: Memory) -> Frame | None:
        state = memory.states.get(message.step)
        if state is None:
            return None
        try:
            return self.answer(message, memory, state)
        except ProtocolViolation as violation:
            memory.dead = True
            if self.liar:
                # Its own machine sees that something else was sent in its name.
                return None
            if violation.peer == COORDINATOR:
                # Nothing but a coordinator that runs twice makes an honest silo refuse, if no silo lies.
                assert self.world.weather.hostile, "an honest coordinator was refused"
            else:
                self.world.judged(violation.evidence, message.announced, violation, blamed=violation.peer)
            self.world.outcomes["refused"] += 1
            frame: Frame = state.abort(violation.reason, violation.peer, violation.evidence)
            return frame
        except MisuseError:
            if not memory.dead:
                raise
            return None

    def answer(self, message: Message, memory: Memory, state: Any) -> Frame | None:
        entered = self.disk.entered[message.announced]
        if message.step == Step.PUBLISH:
            verified = state.receive(message.frames[0])
            self.world.accepted(self.name, message.announced, verified)
            return None
        following = NEXT[message.step]
        entered.released |= following == Step.UNMASK
        result = state.receive(message.frames)
        earlier = memory.sent.get(following)
        if earlier is not None:
            assert result is earlier[0], "a repeat is answered anew"
            return earlier[1]
        if message.step == Step.KEYS:
            entered.u1, memory.relayed = result.members, message.frames
            before_dealing(self, result)
            memory.latest, frame = result.share()
        elif message.step == Step.SHARES:
            entered.masked = True
            memory.latest, frame = result.mask(*self.world.words(self.name, message.announced))
        else:
            memory.latest, frame = result
        frame = changed(self, frame, entered.u1 or ())
        memory.sets[message.step] = tuple(
            name for name in self.world.names if name in {item.sender for item in message.frames}
        )
        memory.sent[following] = (result, frame)
        memory.states[Step.PUBLISH if following == Step.UNMASK else following] = memory.latest
        answer: Frame = frame
        return answer

    def abort(self, announced: bytes) -> Frame | None:
        entered = self.disk.entered.get(announced)
        if entered is None:
            return None
        memory = self.sessions.get(announced)
        if memory is not None and not self.liar:
            memory.dead = True
            frame: Frame = memory.latest.abort("asked to")
            return frame
        accused = accusation(self, announced)
        if accused is not None:
            return accused
        released = entered.released and not self.liar
        return abort_frame(
            announcement=announced, me=self.name, signer=self.signer, released=released, reason="restarted"
        )
