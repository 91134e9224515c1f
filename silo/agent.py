"""The agent process: carries the participant's effects out, and keeps the control stream open (design 9).

A thin shell: what to do is decided in silo.participant, how bytes travel in silo.link, and how records are read in
silo.workshop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from feddrm.contract.errors import FeddrmError
from feddrm.contract.home import SiloHome
from feddrm.contract.messages import CoordinatorEvent, Hello, RosterOffer, SiloEvent
from feddrm.contract.schedule import STAGE_TRAIN
from silo.boundary import survivable
from silo.context import Context
from silo.effects import (
    Connected,
    Contribute,
    Contributed,
    Effect,
    Event,
    FetchSum,
    ForgetDeleted,
    LoadData,
    Log,
    ReleaseSigned,
    Send,
    StopTraining,
    Train,
    Trained,
    Tune,
    Upload,
)
from silo.link import Backoff, Link
from silo.participant import Participant
from silo.relay import Relay
from silo.renewal import LOOK_SECONDS, Renewal
from silo.transfers import Transfers
from silo.worker import Worker

logger = logging.getLogger("silo")

_CLOCK_TOLERANCE_MS: Final = 120_000
_FORGET_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Demo:
    """Switches for demonstrations only: `keep` saves each quantised update (which secure aggregation exists to hide),
    `kill_at` kills this process in that round, after it sent R2 and before it sends R3."""

    keep: Path | None = None
    kill_at: int | None = None


class _Stopping(Exception):  # noqa: N818 - what happened, not a fault
    """A signal asked the agent to leave."""


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Agent:
    """One silo's running agent.

    Args:
        member: the silo's verified directory.
        context: of the participant.
        renewal: looks after what the hospital changes.
        worker: reads and trains (silo.workshop.Workshop).
        relay: answers queries; None when this machine has no capacity for them.
    """

    def __init__(
        self, member: SiloHome, context: Context, renewal: Renewal, worker: Worker, relay: Relay | None, demo: Demo
    ) -> None:
        self._member = member
        self._renewal = renewal
        self._context = context
        self._participant = Participant(context)
        self._worker = worker
        self._relay = relay
        self._demo = demo
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="workshop")
        self._stop_training = threading.Event()
        self._outbox: asyncio.Queue[SiloEvent] | None = None
        self._forgetting = False
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        try:
            async with (
                Link(self._member.address, self._member.tls) as control,
                Link(self._member.address, self._member.tls) as queries,
                asyncio.TaskGroup() as self._group,
            ):
                self._link = control
                self._transfers = Transfers(control, self._start, self._handle)
                self._group.create_task(self._leave(stop))
                # Importing torch takes seconds: begin while the connection is made.
                self._pool.submit(self._worker.warm_up)
                self._perform(self._participant.start(now_ms()))
                self._group.create_task(self._attend())
                self._group.create_task(self._tick())
                self._group.create_task(self._look_around())
                if self._relay is not None:
                    self._group.create_task(self._relay.run(queries))
        except* _Stopping:
            logger.info("Stopped.")
        finally:
            self._stop_training.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
            if self._relay is not None:
                self._relay.close()

    async def _leave(self, stop: asyncio.Event) -> None:
        await stop.wait()
        raise _Stopping

    async def _attend(self) -> None:
        backoff = Backoff()
        said = ""
        while True:
            try:
                self._greet(await self._link.hello())
                logger.info("Connected to %s as %s.", self._member.address, self._member.name)
                self._note("connected", True)
                backoff.reset()
                said = ""
                outbox: asyncio.Queue[SiloEvent] = asyncio.Queue()
                self._outbox = outbox
                self._handle(Connected())
                await self._link.attend(outbox, self._receive)
                problem = "The coordinator closed the stream."
            except FeddrmError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - the boundary towards the coordinator
                survivable(error, "the control stream")
                problem = "The control stream broke."
            self._outbox = None
            self._note("connected", False)
            if problem != said:
                logger.warning("%s Trying again.", problem)
                said = problem
            await asyncio.sleep(backoff.next())

    def _greet(self, hello: Hello) -> None:
        skew = abs(hello.time_ms - now_ms())
        if skew > _CLOCK_TOLERANCE_MS:
            logger.warning("This machine's clock differs from the coordinator's by %d s.", skew // 1000)
        self._renewal.offered(hello.roster)

    def _receive(self, event: CoordinatorEvent) -> None:
        if isinstance(event, RosterOffer):
            self._renewal.offered(event.roster)
        else:
            self._handle(event)

    async def _look_around(self) -> None:
        """Take up what the hospital changes while the agent runs."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._renewal.look(refusing=self._participant.refusing) and self._relay is not None:
                self._relay.renew(self._renewal.roster)
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Between rounds, if there is reason to: what a new process would do, under a boot of its own."""
        if not self._renewal.due or not self._participant.between_rounds:
            return
        chosen = self._renewal.take()
        self._context = replace(
            self._context, roster=chosen.roster, signed_roster=chosen.signed, boot=self._context.entropy(16)
        )
        self._participant = Participant(self._context)
        self._perform(self._participant.start(now_ms()))
        if self._outbox is not None:
            self._perform(self._participant.handle(Connected(), now_ms()))
        self._wake.set()

    def _handle(self, event: Event) -> None:
        self._perform(self._participant.handle(event, now_ms()))
        if self._demo.keep is not None and isinstance(event, Trained | Contributed):
            self._keep(event, self._demo.keep)
        self._begin_anew()
        self._wake.set()

    async def _tick(self) -> None:
        while True:
            due = self._participant.due_ms
            wait = None if due is None else max(0, due - now_ms()) / 1000
            try:
                # Not asyncio.wait_for, which in Python 3.11 can swallow the cancellation that ends the agent.
                async with asyncio.timeout(wait):
                    await self._wake.wait()
                self._wake.clear()
            except TimeoutError:
                self._perform(self._participant.tick(now_ms()))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    if self._outbox is not None:
                        self._outbox.put_nowait(effect.event)
                case ReleaseSigned():
                    if self._relay is not None:
                        self._relay.release_changed()
                case Log():
                    logger.log(logging.WARNING if effect.warning else logging.INFO, effect.text)
                case StopTraining():
                    self._stop_training.set()
                case ForgetDeleted():
                    if not self._forgetting:
                        self._forgetting = True
                        self._start(self._forget_deleted())
                case LoadData() | Train() | Contribute() | Tune() | Upload() | FetchSum():
                    self._begin(effect)

    def _begin(self, effect: LoadData | Train | Contribute | Tune | Upload | FetchSum) -> None:
        match effect:
            case LoadData():
                self._start(self._report(lambda: self._worker.read(effect)))
            case Train():
                stop = self._stop_training = threading.Event()
                self._start(self._report(lambda: self._worker.round(effect, stop)))
            case Contribute():
                self._start(self._report(lambda: self._worker.contribute(effect)))
            case Tune():
                stop = self._stop_training = threading.Event()
                self._start(self._report(lambda: self._worker.tune(effect, stop)))
            case Upload():
                if self._demo.kill_at == effect.round:
                    logger.warning("Killing this process in round %d, as --demo-kill-at asks.", effect.round)
                    os.kill(os.getpid(), signal.SIGKILL)
                self._transfers.upload(effect)
            case FetchSum():
                self._transfers.fetch(effect)

    async def _forget_deleted(self) -> None:
        # It costs two syncs, and rounds that follow at once can share them.
        await asyncio.sleep(_FORGET_SECONDS)
        self._forgetting = False
        self._context.state.forget_deleted()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._group.create_task(self._survive(work))

    async def _survive(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the boundary: a task of the group must not end the agent
            survivable(error, "a task")

    async def _report(self, work: Callable[[], Event]) -> None:
        self._handle(await asyncio.get_running_loop().run_in_executor(self._pool, work))

    def _keep(self, event: Trained | Contributed, folder: Path) -> None:
        stage = event.stage if isinstance(event, Contributed) else STAGE_TRAIN
        q = self._context.state.update(event.plan_hash, stage, event.round)
        if q is not None:
            np.save(folder / f"round-{event.round:04d}-{self._member.name}.npy", q)

    def _note(self, name: str, value: object) -> None:
        self._context.state.note(name, value)
