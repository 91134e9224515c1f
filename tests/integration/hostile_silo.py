"""A silo with an enrolled silo's real keys that twists what it sends."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator_process import SILOS, Agent, House, agents, plan_of, status_of

from aggregator.operator_client import OperatorClient
from aggregator.store import read_journal
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from secagg.client import join
from secagg.keys import sign
from secagg.wire import Frame, Step

BAD, REST = SILOS[3], SILOS[:3]
DEADLINES = {"gather_seconds": 20.0, "train_seconds": 20.0, "step_seconds": 4.0}

Twist = Callable[[Frame], list[Frame]]


@dataclass
class Run:
    """What a job came to."""

    status: o.Status
    journal: list[str]
    evidence: dict[str, bytes] = field(repr=False)

    def names(self, silo: str) -> bool:
        """Whether the journal says what a silo did wrong."""
        faults = ("signed", "sent", "without", "malformed", "in the name", "other than", "blame", "opened")
        return any(text.startswith(f"{silo} ") and any(word in text for word in faults) for text in self.journal)


def play(house: House, twist: Callable[[Agent], None], *, rounds: int = 1) -> Run:
    """Run a job in which the last silo is hostile until that many rounds are over."""
    before = len(read_journal(house.server, 100_000))

    async def scenario() -> o.Status:
        with agents(house, *SILOS) as silos:
            twist(silos[BAD])
            with OperatorClient(house.operator) as client:
                # Many more rounds than pass until the job is stopped.
                name = f"job-{secrets.token_hex(4)}"
                plan = plan_of(house, name=name, training__rounds=rounds + 50, deadlines=DEADLINES)
                receipt = await asyncio.to_thread(client.start_job, plan)
            while True:
                status = await asyncio.to_thread(status_of, house)
                if len(status.history) >= rounds or status.state in ("stopped", "failed"):
                    break
                await asyncio.sleep(0.1)
            with OperatorClient(house.operator) as client:
                if status.state not in ("stopped", "failed"):
                    await asyncio.to_thread(client.stop_job, receipt.plan, "the test is over")
            return replace(status, history=status.history[:rounds])

    status = asyncio.run(asyncio.wait_for(scenario(), 120))
    journal = [text for _, text in read_journal(house.server, 100_000)[before:]]
    kept = {text.split()[1] for text in journal if text.startswith("evidence ")}
    folder = house.server / "blobs" / "evidence"
    return Run(status, journal, {name: (folder / name).read_bytes() for name in kept})


def frames(agent: Agent, step: Step, twist: Twist) -> None:
    """Twist every frame of a step that a silo sends."""
    honest = agent.silo.handle

    def handle(event: m.CoordinatorEvent) -> list[Any]:
        answers: list[Any] = []
        for answer in honest(event):
            if isinstance(answer, m.SiloFrame) and answer.frame.step == step:
                answers += [m.SiloFrame(frame) for frame in twist(answer.frame)]
            else:
                answers.append(answer)
        return answers

    agent.silo.handle = handle  # type: ignore[method-assign]


def key(agent: Agent) -> Any:
    return agent.silo.signer


def resigned(agent: Agent, frame: Frame, body: bytes, attachment: bytes | None = None) -> Frame:
    data = frame.attachment if attachment is None else attachment
    return sign(Step(frame.step), frame.sender, body, key(agent), data)


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def twin_keys(agent: Agent) -> Twist:
    """A second R1 of the same silo for the same announcement."""

    def twist(frame: Frame) -> list[Frame]:
        identities = agent.silo.identities
        announce = next(e for e in reversed(agent.heard) if isinstance(e, m.Announce))  # type: ignore[attr-defined]
        _, twin = join(
            announce.frame,
            server_key=identities.round_key.public_key().public_bytes_raw(),
            members={name: keys.identity_public for name, keys in identities.keys.items()},
            me=agent.name,
            signer=key(agent),
            entropy=secrets.token_bytes,
            ledger_proof=b"",
        )
        return [frame, twin]

    return twist


def listening(agent: Agent) -> None:
    """Keep what a silo hears."""
    agent.heard = []  # type: ignore[attr-defined]
    honest = agent.silo.handle

    def handle(event: m.CoordinatorEvent) -> list[Any]:
        agent.heard.append(event)  # type: ignore[attr-defined]
        return honest(event)

    agent.silo.handle = handle  # type: ignore[method-assign]
