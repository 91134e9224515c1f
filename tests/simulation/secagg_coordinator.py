"""The coordinator of the simulated world: it keeps what it announced and nothing else, and closes, asks again, gives up
and retries by dice. A *forked* coordinator runs twice from one past, like a machine restored from a snapshot."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from secagg_tricks import denied

from secagg.client import abort_certificate_valid
from secagg.errors import Failed, ProtocolViolation, Rejected
from secagg.server import Published, open_session
from secagg.session import Announcement
from secagg.wire import Frame, Step

if TYPE_CHECKING:
    from secagg_world import World

Frames = tuple[Frame, ...]
ATTEMPTS = 5


@dataclass(frozen=True)
class Message:
    """From the coordinator to a silo."""

    to: str
    step: Step
    announced: bytes
    frames: Frames = ()
    certificate: Frames = ()


class Run:
    """One process of the coordinator in one session, which can be forked at any point of its past."""

    def __init__(self, world: World, announcement: Announcement, log: list[Frame | None]) -> None:
        self.world, self.announcement = world, announcement
        self.log: list[Frame | None] = []
        self.published: Published | None = None
        self.failed = False
        self.asked = 0
        self.state: Any
        self.state, self.announce = open_session(announcement, world.round_key, world.members)
        self.announced = hashlib.sha256(self.announce.body).digest()
        for item in log:
            self.close() if item is None else self.receive(item)

    def fork(self) -> Run:
        """The same process once more, from some earlier moment."""
        return Run(self.world, self.announcement, self.log[: self.world.random.randint(0, len(self.log))])

    def receive(self, frame: Frame) -> None:
        if self.published is not None or frame.step != self.state.step:
            return
        try:
            self.state.receive(frame)
        except Rejected as error:
            # One that runs twice may take its other half's doings for a silo's.
            sure = error.evidence and not self.world.weather.hostile
            self.world.judged(error.evidence, self.announced, error, blamed=frame.sender if sure else "")
            return
        self.log.append(frame)
        self.asked = 0

    def close(self) -> None:
        self.asked = 0
        try:
            result = self.state.close()
        except Failed as failure:
            self.failed = True
            for name, evidence in failure.evidence.items():
                self.world.judged(evidence, self.announced, failure, blamed=name)
            return
        self.log.append(None)
        if isinstance(result, Published):
            self.published = result
        else:
            self.state = result

    def denials(self, abort: Frame) -> list[bytes]:
        """What its sender released here, beside its abort."""
        unmasked = [frame for frame in self.log if frame and frame.step == Step.UNMASK and frame.sender == abort.sender]
        return [denied(frame, abort, self.state._context.roll) for frame in unmasked if self.published is None]

    def requests(self) -> list[Message]:
        """What is due to everybody whose answer is missing."""
        if self.published is not None:
            frames = (self.published.frame,)
            return [Message(name, Step.PUBLISH, self.announced, frames) for name in self.published.survivors]
        step = Step(self.state.step - 1)
        certificate = self.world.coordinator.certificate if step == Step.ANNOUNCE else ()
        return [
            Message(name, step, self.announced, self.state.outgoing[name], certificate)
            for name in self.state.expected
            if name in self.state.missing
        ]


class Coordinator:
    """Rounds, attempts, certificates. `runs` are its processes that still live; honest ones have one at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.round = self.attempt = 0
        self.runs: list[Run] = []
        self.announced: list[bytes] = []
        self.aborts: dict[bytes, dict[str, Frame]] = {}
        self.certificate: Frames = ()
        self.aborting = False
        self.published = False

    @property
    def over(self) -> bool:
        return self.published or self.attempt > ATTEMPTS

    def next_round(self) -> None:
        self.round += 1
        self.attempt, self.announced, self.aborts = 0, [], {}
        self.certificate, self.aborting, self.published = (), False, False
        self.start()

    def start(self) -> None:
        world = self.world
        self.attempt += 1
        self.aborting = False
        quorum, names = world.announcement.quorum, world.names
        trusted = tuple(name for name in names if name not in world.convicted)
        if len(trusted) >= quorum and not world.weather.hostile:
            names = trusted
        fewer = world.random.random() < 0.4 and world.weather.stops
        count = world.random.randint(quorum, len(names)) if fewer else len(names)
        chosen = set(world.random.sample(names, count))
        cohort = tuple(name for name in names if name in chosen)
        nonce = world.random.randbytes(32)
        run = Run(
            world,
            replace(world.announcement, round=self.round, attempt=self.attempt, cohort=cohort, nonce=nonce),
            [],
        )
        self.runs.append(run)
        self.announced.append(run.announced)
        world.bodies[run.announced] = run.announce.body
        self.send(run)

    def send(self, run: Run) -> None:
        for message in run.requests():
            self.world.send(message)

    def receive(self, frame: Frame) -> None:
        if frame.step == Step.ABORT:
            announced = self.world.announced_of(frame)
            self.world.judged(frame, announced)
            for run in self.runs:
                for evidence in run.denials(frame) if run.announced == announced else ():
                    self.world.judged(evidence, announced)
            self.aborts.setdefault(announced, {}).setdefault(frame.sender, frame)
            return
        for run in list(self.runs):
            # One that failed may have ended the others.
            if run not in self.runs:
                continue
            run.receive(frame)
            if run.published is None and not run.state.missing and self.world.random.random() < 0.9:
                self.close(run)

    def close(self, run: Run) -> None:
        run.close()
        if run.failed:
            self.runs.remove(run)
            self.stop()
            return
        if run.published is not None:
            self.world.oracle.left_sum(run.announcement, run.published)
            self.published |= run.announcement.round == self.round
        latest = run.announced == self.announced[-1] and not self.aborting and not self.over
        if latest and run.state.step == Step.UNMASK and self.world.random.random() < self.world.weather.betray:
            self.betray(run)
        else:
            self.send(run)

    def deadline(self) -> None:
        """Time passes: steps that are ready are closed, others are asked again or given up."""
        random = self.world.random
        if self.aborting and not self.over:
            self.conclude()
        for run in list(self.runs):
            # One that was given up may have ended the others.
            if run.published is not None or run not in self.runs:
                continue
            run.asked += 1
            if run.state.ready and run.asked > self.world.weather.patience:
                self.close(run)
            elif self.world.weather.stops and not self.aborting and random.random() < 0.4:
                self.stop()
            else:
                self.send(run)

    def resend(self) -> None:
        for run in self.runs:
            self.send(run)

    def fork(self) -> None:
        if self.runs and len(self.runs) < 4:
            self.runs.append(self.world.random.choice(self.runs).fork())

    def crash(self) -> None:
        """The process dies; what is durable is what was announced. A machine that runs twice keeps the other, and dies
        mostly when two sums could come of it: after R3."""
        late = [run for run in self.runs if run.published is None and run.state.step >= Step.CONSISTENCY]
        if self.world.weather.hostile and not late and self.world.random.random() < 0.8:
            return
        for run in self.runs:
            self.world.outcomes[f"coordinator crashed at {run.state.step.name}"] += run.published is None
        self.stop()

    def stop(self) -> None:
        if self.over:
            return
        self.aborting = True
        self.runs = [run for run in self.runs if self.world.weather.hostile and self.world.random.random() < 0.7][-3:]
        for name in self.witnesses():
            self.world.send(Message(name, Step.ABORT, self.announced[-1]))

    def betray(self, run: Run) -> None:
        """The attack on certificates: have this sum opened, by those who are not asked to abort, and another one."""
        self.aborting = True
        witnesses = self.witnesses()
        patient = self.world.random.random() < 0.5
        for message in run.requests():
            if patient or message.to not in witnesses or message.to in self.world.oracle.liars:
                self.world.send(message)
        for name in self.world.names if patient else witnesses:
            self.world.send(Message(name, Step.ABORT, run.announced))

    def witnesses(self) -> tuple[str, ...]:
        """Whom to ask for aborts: everybody; or if it means ill, just as many as are needed, those who lie first."""
        names, liars = self.world.names, self.world.oracle.liars
        if not self.world.weather.hostile or self.world.random.random() < 0.3:
            return names
        a = Announcement.decode(self.world.bodies[self.announced[-1]])
        needed = len(a.cohort) - a.threshold + a.colluders + 1
        shuffled = self.world.random.sample(a.cohort, len(a.cohort))
        return tuple(sorted(shuffled, key=lambda name: name not in liars)[:needed])

    def conclude(self) -> None:
        """Try again if the last session is provably dead; else ask again, or give the round up."""
        world = self.world
        latest = self.announced[-1]
        # Everything that was ever signed: what is of another attempt must not count.
        frames = tuple(frame for signed in self.aborts.values() for frame in signed.values())
        try:
            abort_certificate_valid(frames, announce_body=world.bodies[latest], members=world.members)
        except ProtocolViolation:
            if world.network and world.random.random() < 0.8:
                return
            if world.random.random() < 0.4:
                self.attempt = ATTEMPTS + 1
                world.outcomes["lost"] += 1
            else:
                self.stop()
            return
        if self.attempt == ATTEMPTS:
            self.attempt += 1
            world.outcomes["gave up"] += 1
            return
        self.certificate = frames
        world.outcomes["retried"] += 1
        self.start()
