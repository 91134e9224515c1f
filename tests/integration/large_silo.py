"""A silo of its own process for large models: the agent's connection and the protocol's client, without training,
budget and ledger. Run as `large_silo.py DIR INDEX`; says `applied` when it has applied the sum."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "unit" / "aggregator"))

import coordinator_harness as harness

from feddrm.contract import messages as m
from feddrm.contract.errors import NotAuthorisedError, UnreachableError
from feddrm.contract.home import SiloHome, load_silo_home
from feddrm.contract.signed_plan import verify_plan
from feddrm.method.layout import initial_model, layout_of
from secagg.errors import ProtocolViolation
from secagg.session import vector_size
from silo.link import Backoff, Link


def public(key: bytes) -> Any:
    return SimpleNamespace(public_key=lambda: SimpleNamespace(public_bytes_raw=lambda: key))


def identities_of(home: SiloHome) -> Any:
    keys = {member.name: SimpleNamespace(identity_public=member.identity) for member in home.roster.members}
    keys[home.name] = home.keys  # type: ignore[assignment]
    return SimpleNamespace(
        keys=keys,
        operator=public(home.roster.operator),
        round_key=public(home.roster.round_key),
        roster=home.roster,
        signed_roster=home.signed_roster,
    )


class Silo(harness.MiniSilo):
    def _offer(self, signed: Any) -> list[Any]:
        # The harness knows one federation by name.
        operator = self.identities.operator.public_key().public_bytes_raw()
        plan = verify_plan(signed, federation=self.identities.roster.federation, operator=operator)
        if self.job is None:
            self.job, self.round = plan, 0
            self.models = [initial_model(layout_of(plan.plan), plan.hash)]
        return [m.PlanAnswer(plan.hash, True), self.ready()]


class Agent:
    """Answers events in order, over as many connections as it takes."""

    def __init__(self, home: SiloHome, index: int) -> None:
        self.sums: dict[bytes, bytes] = {}
        self.silo = Silo(home.name, index, identities_of(home), self.sums.__getitem__)
        self.inbox: asyncio.Queue[m.CoordinatorEvent] = asyncio.Queue()
        self.outbox: asyncio.Queue[m.SiloEvent] = asyncio.Queue()

    async def run(self, home: SiloHome) -> None:
        async with Link(home.address, home.tls) as link, asyncio.TaskGroup() as group:
            group.create_task(self._work(link))
            backoff = Backoff()
            while True:
                self.outbox = asyncio.Queue()
                for event in self.silo.connected():
                    self.outbox.put_nowait(event)
                try:
                    await link.attend(self.outbox, self.inbox.put_nowait)
                except UnreachableError as error:
                    print("stream:", error, flush=True)
                await asyncio.sleep(backoff.next())

    async def _work(self, link: Link) -> None:
        while True:
            event = await self.inbox.get()
            if isinstance(event, m.Publish) and event.sum not in self.sums:
                self.sums[event.sum] = await link.fetch(event.sum, vector_size(self.silo.layout.shared_size, 0))
            try:
                answers = await asyncio.to_thread(self.silo.handle, event)
            except ProtocolViolation as violation:
                print("refused:", violation.reason, flush=True)
                continue
            for answer in answers:
                if isinstance(answer, harness.Upload):
                    await self._upload(link, answer)
                else:
                    self.outbox.put_nowait(answer)
                    if isinstance(answer, m.AckEvent):
                        print("applied", flush=True)

    async def _upload(self, link: Link, upload: harness.Upload) -> None:
        backoff = Backoff()
        while True:
            try:
                return await link.upload(upload.blob, upload.data)
            except UnreachableError as error:
                print("upload:", error, flush=True)
                await asyncio.sleep(backoff.next())
            except NotAuthorisedError:
                # A repeat, asked for before the coordinator had the first: the step is over.
                return None


if __name__ == "__main__":
    silo_home = load_silo_home(Path(sys.argv[1]))
    asyncio.run(Agent(silo_home, int(sys.argv[2])).run(silo_home))
