"""Four agents in a job whose rounds take a while, and what their ledgers say in the meantime."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from small_federation import NAMES, plan_text, write_records

from feddrm.contract.home import load_silo_home
from feddrm.demo.federation import Federation, Hospital
from feddrm.demo.processes import Daemon, Processes
from privacy.leaves import Leaf, Reserve
from privacy.ledger import Ledger

PATIENCE = 120.0


@contextmanager
def working_agents(
    directory: Path, plan: Callable[[str], str], *options: str | Path, rounds: int
) -> Iterator[tuple[Federation, Daemon]]:
    """Started and in a job until the block ends; with the coordinator.

    Args:
        directory: empty.
        plan: changes the small federation's plan, whose noise is large, so that many steps of a round cost little.
        options: of the agents.
        rounds: of the plan.
    """
    for name in NAMES:
        write_records(directory / f"{name}.csv", name)
    with Processes(directory / "logs") as processes:
        hospitals = [Hospital(name, directory / f"{name}.csv", "person", 70, 50.0) for name in NAMES]
        federation = Federation(directory, processes, "small", hospitals)
        federation.found()
        version = federation.enrol()
        coordinator = federation.start_coordinator()
        for name in NAMES:
            federation.start_silo(name, *options)
        federation.start_job(plan(plan_text(version, rounds=rounds, noise_multiplier=200.0)))
        yield federation, coordinator


def kill(daemon: Daemon) -> None:
    os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()


def leaves(federation: Federation, name: str) -> list[Leaf]:
    """What a silo's ledger holds, read and verified beside its agent."""
    home = load_silo_home(federation.home(name))
    path = federation.home(name) / "state" / "ledger.db"
    if not path.exists():
        return []
    ledger = Ledger.read(path, f"feddrm/small/{name}", home.keys.identity_public)
    return [record.leaf for record in ledger.leaves()]


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def reserved(federation: Federation, name: str) -> list[int]:
    """The rounds that a silo was charged for, in order."""
    return [leaf.round for leaf in leaves(federation, name) if isinstance(leaf, Reserve)]


def unresolved(federation: Federation, name: str) -> bool:
    """Whether a silo is in the middle of a round's training."""
    found = leaves(federation, name)
    return bool(found) and isinstance(found[-1], Reserve)
