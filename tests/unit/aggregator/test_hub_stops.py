"""A coordinator that is stopped while its engine works has not failed; one whose engine raised half-way has."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from aggregator.engine import StoppedError
from aggregator.events import Ticked
from aggregator.hub import Hub
from aggregator.serve import stopped
from feddrm.contract.errors import InputError
from feddrm.contract.files import file_error


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
    assert isinstance(hub.failure, ZeroDivisionError)


def test_a_full_disk_is_no_internal_error_and_a_bug_is(tmp_path: Path) -> None:
    for full in (
        file_error(OSError(errno.ENOSPC, "no space"), tmp_path / "blobs" / "sum"),
        sqlite3.OperationalError("database or disk is full"),
        OSError(errno.EIO, "Input/output error"),
    ):
        said = stopped(tmp_path, full)
        assert isinstance(said, InputError)
        assert str(full) in said.message
        assert "Free some space" in said.remedy
    for bug in (ZeroDivisionError(), StoppedError("again"), None):
        assert isinstance(stopped(tmp_path, bug), StoppedError)
