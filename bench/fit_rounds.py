"""Stage 2 between real processes: sums of the routing fit of six silos that read, compute, charge and mask as always.

One coordinator and six agents over mutual TLS, everything durable, send slots 0. Every silo has its own records; the
noise comes in shares. The time runs from the first announcement to the certificate of the last sum, as the
coordinator's journal has them. That the release is then signed by every silo shows that all have the same head, bit for
bit: it is in what they sign.
"""

from __future__ import annotations

import csv
import random
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aggregator.homes import load_operator_home
from aggregator.operator_client import OperatorClient
from aggregator.store import read_journal
from bench.house import PATIENT, PUBLIC_SIZE, House, build, plan_of
from bench.report import arguments, show
from bench.rounds import SILOS, process
from feddrm.contract.authority import Address
from feddrm.contract.errors import FeddrmError, UnreachableError
from feddrm.contract.operator_messages import Status
from feddrm.contract.plan import Plan
from feddrm.contract.signed_plan import sign_plan
from feddrm.demo.federation import free_port

_ANNOUNCED = re.compile(r"round (\d+) \(routing fit.*attempt \d+: announced to")
_CERTIFIED = re.compile(r"round (\d+) \(routing fit.* is certified by")
_PATIENCE_SECONDS = 600.0


def fit_plan(house: House, sums: int) -> Plan:
    """A plan of nothing but a routing fit."""
    document = plan_of(house, 6 * 17 + 16 * 17, 1).model_dump(by_alias=True)
    document["training"] |= {"rounds": 0, "minimum_rounds": None}
    document["routing_fit"] = {
        "sums": sums,
        "noise_multiplier": 30.0,
        "step_size": 4.0,
        "public_sizes": dict.fromkeys(house.silos, PUBLIC_SIZE),
    }
    return Plan.model_validate(document)


def write_records(house: House, plan: Plan, patients: int = PUBLIC_SIZE) -> None:
    """A table of its own for every silo, around a mean of its own."""
    for place, name in enumerate(house.silos):
        draw = random.Random(place)  # noqa: S311 - made-up records
        columns = [column.name for column in plan.schema_.columns]
        with (house.home(name) / "local" / "records.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([PATIENT, "y", *columns])
            for number in range(patients):
                values = [min(max(draw.gauss(0.3 + 0.08 * place, 0.2), 0.0), 1.0) for _ in columns]
                writer.writerow([number, draw.choice((-1, 1)), *values])
        settings = house.home(name) / "local" / "data.toml"
        settings.write_text(settings.read_text().replace('"none"', '"records.csv"'))


def measure(root: Path, sums: int) -> dict[str, Any]:
    """Run one job; returns its times."""
    address = Address("127.0.0.1", free_port())
    house = build(root, [f"silo-{index}" for index in range(SILOS)], address, address)
    plan = fit_plan(house, sums)
    write_records(house, plan)
    with ExitStack() as stack:
        stack.enter_context(process(root / "coordinator.log", "aggregator.cli", "serve", house.server))
        for name in house.silos:
            stack.enter_context(process(root / f"{name}.log", "silo.cli", "serve", house.home(name)))
        status = _run(house, plan)
    if status.state != "release ready" or len(status.waiting_for):
        raise FeddrmError(f"The job ended as {status.state}: {status.detail}")
    announced, certified = _times(house, _ANNOUNCED), _times(house, _CERTIFIED)
    rounds = [certified[number] - announced[number] for number in sorted(certified)]
    return {
        "silos": SILOS,
        "sums": len(certified),
        "seconds": (max(certified.values()) - min(announced.values())) / 1000,
        "p50_ms": statistics.median(rounds),
        "entries": plan.fit_entries,
        "signed_by": SILOS,
    }


def _run(house: House, plan: Plan) -> Status:
    """Start the job and wait until every silo has signed the release."""
    signed = sign_plan(plan, load_operator_home(house.operator).key)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    started = False
    while True:
        try:
            with OperatorClient(house.operator) as client:
                if not started:
                    client.start_job(signed.signed)
                    started = True
                status = client.status()
        except UnreachableError:
            status = None
        over = status is not None and (status.state in ("failed", "stopped") or _signed(status))
        if status is not None and (over or time.monotonic() > deadline):
            return status
        time.sleep(0.5)


def _signed(status: Status) -> bool:
    return status.state == "release ready" and not status.waiting_for


def _times(house: House, what: re.Pattern[str]) -> dict[int, int]:
    """When the journal says so of each round, milliseconds; the first time counts."""
    found: dict[int, int] = {}
    for when, text in read_journal(house.server, 1_000_000):
        match = what.match(text)
        if match:
            found.setdefault(int(match[1]), when)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print one row."""
    options = arguments(argv, "The routing fit between real processes")
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), 10 if options.quick else 50)
    show([row], "Sums of the routing fit, six silos, gRPC with mutual TLS", options.format)


if __name__ == "__main__":
    main()
