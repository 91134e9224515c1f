"""Running the coordinator: one directory, one lock, one port, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregator.engine import Engine, StoppedError
from aggregator.homes import ServerHome, install_roster, load_server_home, refuse_operator_key
from aggregator.hub import Hub
from aggregator.relay import Relays
from aggregator.service import Office, add_services, now_ms
from aggregator.store import Store
from feddrm.contract.errors import FeddrmError, InputError
from feddrm.transport.recorder import Recorder
from feddrm.transport.server import make_server

log = logging.getLogger(__name__)
_GRACE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one querier may do."""

    daily_queries: int = 100_000
    queries_per_second: float = 200.0


async def serve(
    directory: Path, *, limits: Limits, recording: Path | None = None, started: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        directory: the server's directory.
        recording: record all traffic into this file; for demo and tests only.
        started: called with the address once it listens.

    Raises:
        AlreadyRunningError: another coordinator has the directory or the port.
        NotAuthorisedError: the operator's private key can be read from here.
        StoppedError: an internal error; what is on disk is sound.
        FeddrmError: the directory is incomplete, expired or damaged.
    """
    refuse_operator_key(directory)
    home = load_server_home(directory)
    home.check_current(now_ms())
    with contextlib.ExitStack() as stack:
        store = Store.open(directory)
        stack.callback(store.close)
        engine = Engine.open(
            store,
            federation=home.federation,
            operator=home.anchor.operator,
            signer=home.round_key,
            roster=home.signed_roster,
            entropy=secrets.token_bytes,
        )
        recorder = stack.enter_context(Recorder(recording)) if recording is not None else None
        await _run(home, engine, limits, recorder, started)


async def _run(
    home: ServerHome, engine: Engine, limits: Limits, recorder: Recorder | None, started: Callable[[str], None]
) -> None:
    hub, relays = Hub(engine), Relays()
    office = Office(
        hub,
        relays,
        roster=engine.coordinator.roster,
        signed_roster=engine.coordinator.signed_roster,
        round_key=home.round_key,
        install=lambda signed: install_roster(home.directory, signed, now_ms()),
        daily_queries=limits.daily_queries,
        queries_per_second=limits.queries_per_second,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server, port = make_server(
        str(home.listen),
        federation=home.federation,
        credentials=home.tls,
        admit=office.admit,
        recorder=recorder,
    )
    add_services(server, office)
    try:
        hub.start()
        await server.start()
        started(f"{home.listen.host}:{port}")
        await _first(stop, hub.failed)
        log.info("Stopping; the job goes on from here at the next start.")
    finally:
        relays.close()
        hub.close_streams()
        await server.stop(_GRACE_SECONDS)
        await hub.stop()
    if hub.failed.is_set():
        raise stopped(home.directory, hub.failure)


def stopped(directory: Path, failure: Exception | None) -> FeddrmError:
    """Why the coordinator ended by itself, for its operator: a disk that failed it, or a bug."""
    if isinstance(failure, FeddrmError | OSError | sqlite3.OperationalError) and not isinstance(failure, StoppedError):
        return InputError(
            f"The coordinator stopped, since {directory} cannot be written: {failure}",
            remedy="Free some space or mend the disk, then start it again; the job goes on from there.",
        )
    return StoppedError("The coordinator stopped after an internal error.", remedy="See its log, then start it again.")


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
