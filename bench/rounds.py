"""A whole secure sum between real processes: one coordinator, six silos, gRPC over mutual TLS on this machine.

The coordinator is `feddrm-aggregator serve` itself, with SQLite and fsync as always. A silo is the agent itself, with
policy, budget, ledger and its database, all durable, but for the two things that are no part of a sum: the update is
given instead of trained, and the send slots that hide how long training took are 0.

Two times are taken of every round, both by the clock of this machine. A *sum* lasts from the announcement (R0), as the
coordinator's journal has it, until the last silo has verified, applied and stored the sum: the six steps of the
protocol, and in between what a silo may not put off, RESERVE and COMMIT in its ledger and the proofs of all peers'
ledgers. A *round* lasts from one announcement to the next: acks, certification, the RELEASE leaf and the coordinator's
checkpoint as well.

Beside it, in the same run, stands secure aggregation alone (bench.rounds_alone): the same transport and as many
processes, but no plans, budgets, ledgers, proofs and databases, and nothing on the disk. The product has no such mode.

Bytes are counted by a TCP proxy, in a run of its own: all that passes the sockets, TLS and HTTP/2 included.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from aggregator.homes import load_operator_home
from aggregator.operator_client import OperatorClient
from aggregator.store import read_journal
from bench.house import build, plan_of
from bench.proxy import Proxy
from bench.report import arguments, show
from feddrm.contract.authority import Address
from feddrm.contract.errors import UnreachableError
from feddrm.contract.messages import SMALL_VECTOR
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import sign_plan
from feddrm.demo.federation import free_port
from secagg.session import vector_size

SILOS = 6
# The first sums import, connect and fill caches.
WARM_UP = 3
_ANNOUNCED = re.compile(r"round (\d+) attempt (\d+): announced to")
_VERIFIED = re.compile(r"([0-9.]+) Round (\d+): the sum of \d+ silos is verified")
_START_SECONDS = 60.0
_PATIENCE_SECONDS = 300.0


@contextmanager
def process(log: Path, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python module until the block ends; its output goes to `log`."""
    with log.open("ab") as output:
        child = subprocess.Popen([sys.executable, "-m", *map(str, command)], stdout=output, stderr=subprocess.STDOUT)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Run:
    """One federation of real processes that adds the same vectors again and again."""

    def __init__(self, root: Path, words32: int, sums: int, silos: int = SILOS, *, counted: bool = False) -> None:
        address = Address("127.0.0.1", free_port())
        listen = Address("127.0.0.1", free_port()) if counted else address
        self.house = build(root, [f"silo-{index}" for index in range(silos)], address, listen)
        self.plan = plan_of(self.house, words32, sums + WARM_UP)
        self.proxy = Proxy(address, listen) if counted else None
        self.sums = sums
        self.logs = root

    def measure(self, patience: float = _PATIENCE_SECONDS) -> dict[str, Any]:
        """Run all sums; returns the seconds of each sum and of each whole round but the first, CPU seconds a round,
        and the bytes that one silo sends for a sum (at most; 0 where they are not counted)."""
        house, signed = self.house, sign_plan(self.plan, load_operator_home(self.house.operator).key)
        with ExitStack() as stack:
            if self.proxy is not None:
                stack.enter_context(self.proxy)
            server = stack.enter_context(
                process(self.logs / "coordinator.log", "aggregator.cli", "serve", house.server)
            )
            silos = [
                stack.enter_context(process(self.logs / f"{name}.log", "bench.rounds_silo", house.home(name)))
                for name in house.silos
            ]
            self._start(signed.signed)
            self._await(WARM_UP, patience)
            before = self._cpu(server, silos)
            first = len(self._verified())
            self._await(WARM_UP + self.sums, patience)
            after = self._cpu(server, silos)
            counted = len(self._verified()) - first
            # Over the whole life of a silo's one connection: the handshake and the job's start are in it.
            sent = max((pair.up for pair in self.proxy.pairs), default=0) if self.proxy is not None else 0
            sums = len(self._verified())
        used = [(b - a) / counted for a, b in zip(before, after, strict=True)]
        return {
            **self._seconds(),
            "cpu_coordinator_s": used[0],
            "cpu_silo_s": statistics.mean(used[1:]),
            "bytes_up": sent / sums,
        }

    def _start(self, signed: Signed) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with OperatorClient(self.house.operator) as client:
                    client.start_job(signed)
                return
            except UnreachableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    @staticmethod
    def _cpu(server: subprocess.Popen[bytes], silos: Sequence[subprocess.Popen[bytes]]) -> list[float]:
        return [cpu_seconds(child.pid) for child in (server, *silos)]

    def _verified(self) -> dict[int, float]:
        """When the last silo had verified each round's sum, for rounds that all silos verified."""
        times: dict[int, list[float]] = {}
        for name in self.house.silos:
            log = self.logs / f"{name}.log"
            for when, number in _VERIFIED.findall(log.read_text() if log.exists() else ""):
                times.setdefault(int(number), []).append(float(when))
        return {number: max(when) for number, when in times.items() if len(when) == len(self.house.silos)}

    def _await(self, rounds: int, patience: float) -> None:
        deadline = time.monotonic() + patience
        while len(self._verified()) < rounds:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self._verified())} of {rounds} sums after {patience:.0f} s")
            time.sleep(0.2)

    def _seconds(self) -> dict[str, list[float]]:
        announced: dict[int, float] = {}
        for when, text in read_journal(self.house.server, 1_000_000):
            found = _ANNOUNCED.match(text)
            if found:
                announced.setdefault(int(found[1]), when / 1000)
        measured = [(number, when) for number, when in sorted(self._verified().items()) if number > WARM_UP]
        return {
            "seconds": [when - announced[number] for number, when in measured],
            "rounds": [announced[number + 1] - announced[number] for number, _ in measured if number + 1 in announced],
        }


def alone(root: Path, words32: int, sums: int, silos: int = SILOS) -> dict[str, Any]:
    """The protocol without its ledgers, budgets and databases (bench.rounds_alone): as `Run.measure`, without bytes."""
    address = Address("127.0.0.1", free_port())
    house = build(root, [f"silo-{index}" for index in range(silos)], address, address)
    size = str(words32), str(sums + WARM_UP)
    with ExitStack() as stack:
        logs = [root / f"{name}.log" for name in ("coordinator", *house.silos)]
        commands = [(house.server, *size, "coordinator"), *((house.home(name), *size) for name in house.silos)]
        children = [
            stack.enter_context(process(log, "bench.rounds_alone", *command))
            for log, command in zip(logs, commands, strict=True)
        ]
        for child in children:
            child.wait(_PATIENCE_SECONDS)
    server, *members = (json.loads(log.read_text().splitlines()[-1]) for log in logs)
    verified = [max(times) for times in zip(*(member["verified"] for member in members), strict=True)]
    announced = server["announced"]
    used = [(cpu[-1] - cpu[WARM_UP]) / sums for cpu in (each["cpu"] for each in (server, *members))]
    return {
        "seconds": [end - start for start, end in zip(announced, verified, strict=True)][WARM_UP:],
        "cpu_coordinator_s": used[0],
        "cpu_silo_s": statistics.mean(used[1:]),
    }


def row(words32: int, sums: int) -> dict[str, Any]:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        timed = Run(Path(folder), words32, sums).measure()
    bare: dict[str, Any] = {}
    # A larger vector is no part of its frame, and what carries it then belongs to the product.
    if vector_size(words32, 0) <= SMALL_VECTOR:
        with tempfile.TemporaryDirectory() as folder:
            bare = alone(Path(folder), words32, sums)
    with tempfile.TemporaryDirectory() as folder:
        counted = Run(Path(folder), words32, 3, counted=True).measure()
    return {
        "n": words32,
        "silos": SILOS,
        "sums": len(timed["seconds"]),
        "p50_ms": 1000 * statistics.median(timed["seconds"]),
        "p90_ms": 1000 * statistics.quantiles(timed["seconds"], n=10)[-1],
        "round_p50_ms": 1000 * statistics.median(timed["rounds"]),
        "round_p90_ms": 1000 * statistics.quantiles(timed["rounds"], n=10)[-1],
        "coordinator_cpu_ms": 1000 * timed["cpu_coordinator_s"],
        "silo_cpu_ms": 1000 * timed["cpu_silo_s"],
        "alone_p50_ms": 1000 * statistics.median(bare["seconds"]) if bare else None,
        "alone_coordinator_cpu_ms": 1000 * bare["cpu_coordinator_s"] if bare else None,
        "alone_silo_cpu_ms": 1000 * bare["cpu_silo_s"] if bare else None,
        "bytes_up_per_silo": round(counted["bytes_up"]),
        "bytes_up_over_n": counted["bytes_up"] / words32,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print one row for a routing head and one for a million parameters."""
    options = arguments(argv, "Secure sums between real processes")
    sizes = ((264, 30),) if options.quick else ((264, 40), (1_000_000, 10))
    show([row(*size) for size in sizes], "Whole secure sums over gRPC with mutual TLS", options.format)


if __name__ == "__main__":
    main()
