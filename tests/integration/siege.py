"""A federation whose coordinator is hostile: real agents, and what the coordinator knows of the job that it besieges.

Honest steps come from the honest server's own state machine; tests use as many of them as they like and twist the rest.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hostile_coordinator import Host

from feddrm.contract import messages as m
from feddrm.contract.announce import Place, announcement_of, outcome_hash
from feddrm.contract.chunks import blob_hash
from feddrm.contract.roster import roster_hash
from feddrm.contract.rounds import Lost, sign_lost
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan
from feddrm.demo.processes import SILO, Daemon, Processes
from feddrm.method.layout import initial_model, layout_of
from feddrm.method.update import apply, model_hash
from secagg.bodies import Abort, Masked, Publish
from secagg.keys import sign
from secagg.server import Published, open_session
from secagg.session import Announcement
from secagg.wire import COORDINATOR, Frame, Step

STEPS = (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY)


def frame_of(step: Step) -> Callable[[Any], Frame | None]:
    """A silo's frame of a step."""
    return lambda event: event.frame if isinstance(event, m.SiloFrame) and event.frame.step == step else None


@dataclass
class Attempt:
    """One announcement, with the honest server's state machine behind it; tests use as much of it as they like."""

    announcement: Announcement
    frame: Frame
    state: Any

    @property
    def opened(self) -> bytes:
        """Names the announcement."""
        return self.announcement.hash()

    def close(self) -> dict[str, m.StepFrames]:
        """Close the step that is collected: what an honest coordinator would send to each member."""
        session, step = self.state.session, self.state.step
        self.state = self.state.close()
        return {name: m.StepFrames(session, int(step), tuple(f)) for name, f in self.state.outgoing.items()}


@dataclass
class Siege:
    """A federation whose coordinator is hostile: agents as real processes, and what the coordinator knows."""

    host: Host
    operator: Ed25519PrivateKey
    plan: SignedPlan
    homes: dict[str, Path]
    processes: Processes
    agents: dict[str, Daemon] = field(default_factory=dict)
    round: int = 0
    attempt: int = 0
    outcomes: dict[int, m.RoundOutcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = layout_of(self.plan.plan)
        self.model = initial_model(self.layout, self.plan.hash)
        self.members = {x.name: x.identity for x in self.host.home.roster.members if x.role == "silo"}

    @property
    def names(self) -> tuple[str, ...]:
        """The plan's silos."""
        return tuple(self.plan.plan.silos)

    # agents

    def start(self, *names: str) -> None:
        """Start agents and wait until they are there."""
        for name in names:
            self.host.skip(name)
            self.agents[name] = self.processes.serve(name, SILO, "serve", self.homes[name])
        for name in names:
            self.host.expect(name, lambda event: event if isinstance(event, m.Ready) else None)

    def kill(self, name: str) -> None:
        """SIGKILL, at once."""
        process = self.agents[name].process
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def restart(self, name: str) -> m.Ready:
        """SIGKILL, and a new process on the same directory."""
        self.kill(name)
        self.start(name)
        self.fence(name)
        return self.ready(name)

    def ready(self, name: str) -> m.Ready:
        """Where a silo said last that it is."""
        return next(event for event in reversed(self.host.inbox[name]) if isinstance(event, m.Ready))

    def fence(self, name: str) -> list[Any]:
        """All that a silo says to what was sent to it until now. It handles its stream in order, and the answer to an
        offer ends the list."""
        begin = self.host._read[name]
        self.host.send(name, m.JobOffer(self.plan.signed))
        self.host.expect(name, lambda event: event if isinstance(event, m.PlanAnswer) else None)
        said = self.host.inbox[name][begin : self.host._read[name] - 1]
        return [event for event in said if not isinstance(event, m.Ready)]

    # honest steps

    def offer(self, *names: str, plan: SignedPlan | None = None) -> None:
        """Offer a plan and wait until it is accepted."""
        for name in names or self.names:
            self.host.skip(name)
            self.host.send(name, m.JobOffer((plan or self.plan).signed))
        for name in names or self.names:
            answer = self.host.expect(name, lambda event: event if isinstance(event, m.PlanAnswer) else None)
            assert answer.accepted, name

    def place(self) -> Place:
        """Where the next round starts."""
        return Place(
            plan=self.plan.hash,
            roster=roster_hash(self.host.home.signed_roster.body),
            layout=self.layout.fingerprint(),
            words32=self.layout.shared_size,
            round=self.round + 1,
            model=model_hash(self.model),
            previous=outcome_hash(self.outcomes.get(self.round)),
        )

    def announcement(self, cohort: tuple[str, ...] = (), **changes: Any) -> Announcement:
        """R0 of the next attempt, with whatever the test changes in it."""
        self.attempt += 1
        honest = announcement_of(
            self.plan.plan,
            self.place(),
            attempt=self.attempt,
            cohort=cohort or self.names,
            deadline_ms=time.time_ns() // 1_000_000 + 600_000,
            nonce=os.urandom(32),
        )
        return replace(honest, **changes)

    def open(self, announcement: Announcement, **unsound: Any) -> Attempt:
        """Sign an announcement with the round key; `unsound` fields are written over it, whatever they say."""
        state, frame = open_session(announcement, self.host.home.round_key, self.members)
        if unsound:
            for name, value in unsound.items():
                object.__setattr__(announcement, name, value)
            frame = sign(Step.ANNOUNCE, COORDINATOR, announcement.encode(), self.host.home.round_key)
        return Attempt(announcement, frame, state)

    def announce_event(self, attempt: Attempt, name: str, certificate: tuple[Frame, ...] = ()) -> m.Announce:
        """The announcement as one silo gets it."""
        heads = [dict(self.ready(other).witnessed) for other in self.names if other != name]
        sizes = {sizes[name] for sizes in heads if name in sizes}  # type: ignore[index]
        return m.Announce(attempt.frame, certificate, self.outcomes.get(self.round), tuple(sorted(sizes)))

    def announce(
        self, attempt: Attempt, to: tuple[str, ...] = (), certificate: tuple[Frame, ...] = ()
    ) -> dict[str, Frame]:
        """Announce, and wait for every addressee's R1 or abort."""
        names = to or attempt.announcement.cohort
        for name in names:
            self.host.skip(name)
            self.host.send(name, self.announce_event(attempt, name, certificate))
        return {name: self.host.expect(name, _keys_or_abort) for name in names}

    def keyed(self, cohort: tuple[str, ...] = (), certificate: tuple[Frame, ...] = ()) -> Attempt:
        """A new attempt in which everybody sent R1."""
        attempt = self.open(self.announcement(cohort))
        for frame in self.announce(attempt, certificate=certificate).values():
            attempt.state.receive(frame)
        return attempt

    def relay(self, requests: dict[str, m.StepFrames], answer: Step) -> dict[str, Frame]:
        """Send requests and wait for everybody's frame of the step that answers them."""
        for name, event in requests.items():
            self.host.send(name, event)
        return {name: self.host.expect(name, frame_of(answer)) for name in requests}

    def advance(self, attempt: Attempt, step: Step) -> dict[str, m.StepFrames]:
        """Close a step honestly, relay it, collect the answers; returns what was relayed."""
        requests = attempt.close()
        for frame in self.relay(requests, Step(step + 1)).values():
            attempt.state.receive(self.complete(frame))
        return requests

    def complete(self, frame: Frame) -> Frame:
        """A frame with its vector, which came along or was uploaded for it."""
        if frame.step != Step.MASKED or frame.attachment:
            return frame
        return replace(frame, attachment=self.host.uploads[Masked.decode(frame.body).vector])

    def upto(self, step: Step, cohort: tuple[str, ...] = (), certificate: tuple[Frame, ...] = ()) -> Attempt:
        """An attempt in which everybody sent its frame of `step`."""
        attempt = self.keyed(cohort, certificate)
        for earlier in STEPS[: STEPS.index(step)] if step in STEPS else STEPS:
            self.advance(attempt, earlier)
        return attempt

    def publish(self, attempt: Attempt) -> Published:
        """Publish the true sum; the round is certified by everybody's acks."""
        published: Published = attempt.state.close()
        self.host.sums[published.sum] = published.frame.attachment
        event = m.Publish(published.frame.without_attachment(), published.sum)
        for name in published.survivors:
            self.host.send(name, event)
        acks = [
            self.host.expect(n, lambda e: e.ack if isinstance(e, m.AckEvent) else None) for n in published.survivors
        ]
        plan = self.plan.plan
        self.model = apply(
            self.model,
            published.words32,
            len(published.survivors),
            plan.secure_aggregation.fraction_bits,
            plan.training.server_learning_rate,
        )
        self._next(m.RoundOutcome(self.round + 1, tuple(acks), published.sum))
        return published

    def lose(self) -> m.RoundOutcome:
        """Declare the round lost, to everybody."""
        lost = sign_lost(Lost(plan=self.plan.hash, round=self.round + 1, reason="x"), self.host.home.round_key)
        return self._next(m.RoundOutcome(self.round + 1, lost=lost))

    def _next(self, outcome: m.RoundOutcome) -> m.RoundOutcome:
        self.round, self.attempt = self.round + 1, 0
        self.outcomes[self.round] = outcome
        for name in self.names:
            self.host.send(name, m.OutcomeEvent(outcome))
            self.fence(name)
            assert (self.ready(name).round, self.ready(name).model) == (self.round, model_hash(self.model)), name
        return outcome

    # verdicts

    def abort_of(self, name: str, attempt: Attempt) -> Abort:
        """A silo's signed last word on an announcement, asked for."""
        self.host.send(name, m.AbortRequest(attempt.opened, "x"))
        return Abort.decode(self.abort_frame(name, attempt).body)

    def abort_frame(self, name: str, attempt: Attempt) -> Frame:
        """The next abort of an announcement that a silo sends."""

        def about(event: Any) -> Frame | None:
            frame = frame_of(Step.ABORT)(event)
            return frame if frame is not None and Abort.decode(frame.body).announcement == attempt.opened else None

        return self.host.expect(name, about)

    def certificate(self, attempt: Attempt) -> tuple[Frame, ...]:
        """Everybody's abort of an attempt."""
        for name in attempt.announcement.cohort:
            self.host.send(name, m.AbortRequest(attempt.opened, "x"))
        return tuple(self.abort_frame(name, attempt) for name in attempt.announcement.cohort)


def _keys_or_abort(event: Any) -> Frame | None:
    return frame_of(Step.KEYS)(event) or frame_of(Step.ABORT)(event)


def _ack(event: Any) -> Signed | None:
    return event.ack if isinstance(event, m.AckEvent) else None


def steps_of(events: list[Any]) -> list[Step]:
    """Which frames a silo sent."""
    return [Step(event.frame.step) for event in events if isinstance(event, m.SiloFrame)]


def reissue(frame: Frame, data: bytes, signer: Any) -> tuple[m.Publish, bytes]:
    """A publication of other bytes, signed by the round key as if it were the sum."""
    body = replace(Publish.decode(frame.body), sum=blob_hash(data))
    return m.Publish(sign(Step.PUBLISH, "", body.encode(), signer), body.sum), data
