"""A coordinator that is stopped while its engine works has not failed; one whose engine raised half-way has."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from aggregator.events import Ticked
from aggregator.hub import Hub


class SlowEngine:
    """An engine that is half-way through an event until it is let go; then it comes to a sound end, or does not."""

    def __init__(self, *, breaks: bool) -> None:
        self.failed = False
        self.breaks = breaks
        self.begun, self.go_on = threading.Event(), threading.Event()

    def submit_all(self, events: Any) -> tuple[()]:
        self.failed = True
        self.begun.set()
        assert self.go_on.wait(30)
        if self.breaks:
            raise ZeroDivisionError
        self.failed = False
        return ()

    @property
    def coordinator(self) -> Any:
        return self

    def due_ms(self) -> None:
        return None


def test_a_stop_in_the_middle_of_an_event_is_not_taken_for_a_failure() -> None:
    engine: Any = SlowEngine(breaks=False)
    hub = Hub(engine)

    async def scenario() -> None:
        asking = asyncio.create_task(hub.submit(Ticked()))
        while not engine.begun.is_set():
            await asyncio.sleep(0.01)
        # Stopping waits for the worker, and the event loop with it.
        threading.Timer(0.2, engine.go_on.set).start()
        await hub.stop()
        asking.cancel()

    asyncio.run(scenario())
    assert not hub.failed.is_set()
    assert not engine.failed


def test_an_event_that_fails_half_way_ends_the_coordinator() -> None:
    engine: Any = SlowEngine(breaks=True)
    hub = Hub(engine)

    async def scenario() -> None:
        engine.go_on.set()
        with pytest.raises(ZeroDivisionError):
            await hub.submit(Ticked())
        await hub.stop()

    asyncio.run(scenario())
    assert hub.failed.is_set()
