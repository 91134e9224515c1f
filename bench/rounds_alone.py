"""Secure aggregation alone over the same transport: one server process, six client processes, gRPC over mutual TLS.

What bench.rounds leaves out of it: plans, policies, budget, ledgers and their proofs, databases and the disk. The state
machines are those of secagg with every check, the service, its guard, the codec and the silo's link those of the
product; only what drives them is here. Run by bench.rounds: `python -m bench.rounds_alone DIR WORDS SUMS [SILO]`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from os import urandom
from pathlib import Path
from typing import Any, cast

import numpy as np

from aggregator.homes import ServerHome, load_server_home
from aggregator.outgoing import Stream
from aggregator.service import Office, add_services
from bench.inputs import CLIP
from bench.ours import FRACTION_BITS, announcement
from feddrm.contract import codec
from feddrm.contract.errors import UnreachableError
from feddrm.contract.home import SiloHome, load_silo_home
from feddrm.contract.messages import Announce, CoordinatorEvent, Publish, Ready, SiloEvent, SiloFrame, StepFrames
from feddrm.transport.server import make_server
from secagg.client import VerifiedSum, join
from secagg.quantise import quantise
from secagg.server import Published, open_session
from secagg.wire import Frame, Step
from silo.link import Link

_READY = Ready(bytes(16), b"", 0, b"", (), bytes(32))
_NO_WORDS64 = np.zeros(0, np.int64)
_RETRY_SECONDS = 0.2


@dataclass
class Sums:
    """The coordinator's half: opens sums one after the other, each when all silos are ready."""

    home: ServerHome
    words32: int
    rounds: int
    announced: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    streams: dict[str, Stream] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    state: Any = None

    def __post_init__(self) -> None:
        silos = sorted(self.home.roster.silos, key=lambda member: member.name)
        self.members = {member.name: member.identity for member in silos}
        names = tuple(self.members)
        self.first = announcement(names, self.words32, 2 * len(names) // 3 + 1)

    async def attend(self, silo: str, events: AsyncIterator[SiloEvent]) -> AsyncGenerator[Any, None]:
        """One control stream, as aggregator.hub.Hub serves it."""
        stream = self.streams[silo] = Stream()
        reader = asyncio.create_task(self._read(silo, events))
        try:
            async for message in stream.messages():
                yield message
        finally:
            reader.cancel()

    async def _read(self, silo: str, events: AsyncIterator[SiloEvent]) -> None:
        async for event in events:
            if isinstance(event, Ready):
                self.ready.add(silo)
                if self.ready == self.members.keys():
                    self._open()
            elif isinstance(event, SiloFrame):
                self._take(event.frame)

    def _open(self) -> None:
        self.ready.clear()
        self.cpu.append(time.process_time())
        if len(self.announced) == self.rounds:
            self.over.set()
            return
        number = len(self.announced) + 1
        self.announced.append(time.time())
        opening = replace(self.first, round=number, nonce=urandom(32))
        self.state, frame = open_session(opening, self.home.round_key, self.members)
        self._send(dict.fromkeys(self.members, Announce(frame, (), None, ())))

    def _take(self, frame: Frame) -> None:
        self.state.receive(frame)
        if self.state.missing:
            return
        name, step = self.state.session, int(self.state.step)
        self.state = self.state.close()
        if isinstance(self.state, Published):
            self._send(dict.fromkeys(self.members, Publish(self.state.frame, self.state.sum)))
        else:
            outgoing = self.state.outgoing
            self._send({silo: StepFrames(name, step, tuple(frames)) for silo, frames in outgoing.items()})

    def _send(self, events: dict[str, CoordinatorEvent]) -> None:
        encoded: dict[int, Any] = {}
        for silo, event in events.items():
            # As aggregator.hub: what all of them get is encoded once.
            key = id(event.frames) if isinstance(event, StepFrames) else id(event)
            if key not in encoded:
                encoded[key] = codec.COORDINATOR_EVENT.to_wire(event)
            self.streams[silo].put(encoded[key])


async def serve(directory: Path, words32: int, rounds: int) -> dict[str, Any]:
    """Run the server until all sums are verified."""
    home = load_server_home(directory)
    sums = Sums(home, words32, rounds)

    class Desk:
        """What the service needs of an office here: nobody but silos calls."""

        hub = sums

    server, _ = make_server(
        str(home.listen), federation=home.federation, credentials=home.tls, admit=lambda _peer: True
    )
    add_services(server, cast("Office", Desk()))
    await server.start()
    await sums.over.wait()
    for stream in sums.streams.values():
        stream.close()
    await server.stop(1.0)
    return {"announced": sums.announced, "cpu": sums.cpu}


class Silo:
    """A silo's half: the same update in every sum."""

    def __init__(self, home: SiloHome, words32: int) -> None:
        self._home = home
        self._members = {member.name: member.identity for member in home.roster.silos}
        self._update = np.random.default_rng().uniform(-1, 1, words32)
        self._state: Any = None
        self.outbox: asyncio.Queue[SiloEvent] = asyncio.Queue()
        self.verified: list[float] = []
        self.cpu: list[float] = []

    def receive(self, event: CoordinatorEvent) -> None:
        """Answer the server."""
        match event:
            case Announce(frame):
                self.cpu.append(time.process_time())
                self._state, keys = join(
                    frame,
                    server_key=self._home.roster.round_key,
                    members=self._members,
                    me=self._home.name,
                    signer=self._home.keys.identity,
                    entropy=urandom,
                    ledger_proof=b"",
                )
                self._send(keys)
            case StepFrames():
                self._answer(Step(event.step), event.frames)
            case Publish(frame):
                total: VerifiedSum = self._state.receive(frame)
                if len(total.survivors) < len(self._members):
                    raise RuntimeError("a sum without everybody is no measurement")
                self.verified.append(time.time())
                self.outbox.put_nowait(_READY)

    def _answer(self, step: Step, frames: tuple[Frame, ...]) -> None:
        received = self._state.receive(frames)
        if step == Step.KEYS:
            self._state, answer = received.share()
        elif step == Step.SHARES:
            self._state, answer = received.mask(quantise(self._update, CLIP, FRACTION_BITS), _NO_WORDS64)
        else:
            self._state, answer = received
        self._send(answer)

    def _send(self, frame: Frame) -> None:
        self.outbox.put_nowait(SiloFrame(frame))


async def take_part(directory: Path, words32: int, rounds: int) -> dict[str, Any]:
    """Run one silo until the server has had all its sums."""
    home = load_silo_home(directory)
    silo = Silo(home, words32)
    async with Link(home.address, home.tls) as link:
        while len(silo.verified) < rounds:
            silo.outbox.put_nowait(_READY)
            try:
                await link.attend(silo.outbox, silo.receive)
            except UnreachableError:
                if silo.verified:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
                silo.outbox = asyncio.Queue()
    silo.cpu.append(time.process_time())
    return {"verified": silo.verified, "cpu": silo.cpu}


def main(arguments: Sequence[str]) -> None:
    """Run one process, and print what it measured as JSON."""
    directory, words32, rounds = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    work = serve if arguments[3:] == ["coordinator"] else take_part
    print(json.dumps(asyncio.run(work(directory, words32, rounds))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
