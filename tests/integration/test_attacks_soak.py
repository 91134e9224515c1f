"""Every role killed at every step of a round, as processes: the matrix that tests/unit plays on whole silos."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from besieged import besieged
from coordinator_process import SILOS, House, agents, found, plan_of, start, status_of
from siege import STEPS, Siege, steps_of

from aggregator.operator_client import OperatorClient
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.method.update import model_hash
from secagg.bodies import Abort
from secagg.wire import Step

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with besieged(tmp_path_factory.mktemp("siege"), rounds=20, unreleased=10) as siege:
        siege.offer()
        yield siege


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("answered", [False, True], ids=["before its answer", "after its answer"])
def test_a_silo_killed_at_any_step_is_dead_in_that_session(siege: Siege, step: Step, answered: bool) -> None:
    west = siege.names[3]
    attempt = siege.upto(step)
    requests = attempt.close()
    if answered:
        siege.relay({west: requests[west]}, Step(step + 1))
    old = siege.announce_event(attempt, west)
    siege.restart(west)
    for event in (requests[west], old, requests[west]):
        siege.host.send(west, event)
        assert set(steps_of(siege.fence(west))) <= {Step.ABORT}
    released = answered and step == Step.CONSISTENCY
    assert siege.abort_of(west, attempt).released == released
    if step == Step.CONSISTENCY:
        # Of those who released, none tries again; with the others there may be too few.
        siege.lose()
        return
    certificate = siege.certificate(attempt)
    assert not any(Abort.decode(frame.body).released for frame in certificate)
    published = siege.publish(siege.upto(Step.UNMASK, certificate=certificate))
    assert published.survivors == siege.names
    assert {siege.ready(name).model for name in siege.names} == {model_hash(siege.model)}


WHEN = {step.name: step for step in (Step.ANNOUNCE, *STEPS, Step.PUBLISH)}


@pytest.mark.parametrize("when", WHEN)
def test_the_coordinator_killed_at_any_step_goes_on(tmp_path: Path, when: str) -> None:
    """At the moment at which the last silo hears of the step."""
    house = found(tmp_path)
    step = WHEN[when]

    def is_it(event: m.CoordinatorEvent) -> bool:
        match event:
            case m.Announce():
                return step == Step.ANNOUNCE
            case m.StepFrames(step=number):
                return number == step
            case m.Publish():
                return step == Step.PUBLISH
        return False

    async def scenario() -> None:
        process: Any = start(house)
        killed = asyncio.Event()
        with agents(house, *SILOS) as silos:
            last = silos[SILOS[-1]]
            honest = last.silo.handle

            def handle(event: m.CoordinatorEvent) -> list[Any]:
                if is_it(event) and not killed.is_set():
                    os.kill(process.pid, signal.SIGKILL)
                    killed.set()
                return honest(event)

            last.silo.handle = handle  # type: ignore[method-assign]
            with OperatorClient(house.operator) as client:
                client.start_job(plan_of(house, name=f"job-{secrets.token_hex(4)}", training__rounds=2))
            await asyncio.wait_for(killed.wait(), 120)
            await asyncio.to_thread(process.wait, 15)
            process.communicate()
            process = await asyncio.to_thread(start, house)
            status = await wait_for_release(house)
            assert [h.outcome for h in status.history] == ["published"] * 2
            assert {h.survivors for h in status.history} == {SILOS}
            assert {agent.silo.boots for agent in silos.values()} == {1}
        process.terminate()
        process.communicate(timeout=15)

    asyncio.run(asyncio.wait_for(scenario(), 300))


async def wait_for_release(house: House) -> o.Status:
    while True:
        status = await asyncio.to_thread(status_of, house)
        if status.state == "release ready":
            return status
        await asyncio.sleep(0.2)
