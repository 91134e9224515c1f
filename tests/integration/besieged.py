"""Real agents that connect to a hostile coordinator."""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hostile_coordinator import Host
from siege import Siege
from small_federation import NAMES, plan_text, write_records

from aggregator.founding import found_federation
from aggregator.homes import load_operator_home
from aggregator.operations import enroll, read_requests
from feddrm.contract.authority import Address
from feddrm.contract.home import init_member, join_member, load_silo_home
from feddrm.contract.identity import Role
from feddrm.contract.plan import Plan
from feddrm.contract.signed_plan import sign_plan
from feddrm.demo.federation import free_port
from feddrm.demo.processes import Processes
from privacy.ledger import Ledger


@contextmanager
def besieged(directory: Path, *, rounds: int, unreleased: int) -> Iterator[Siege]:
    """Four hospitals' agents, connected to a hostile coordinator, before any offer.

    Args:
        rounds: of the plan.
        unreleased: `rounds_without_release` of every hospital's policy.
    """
    now = time.time_ns() // 1_000_000
    base = directory / "coordinator"
    found_federation(base, "small", Address("127.0.0.1", free_port()), now)
    shutil.move(base / "operator", directory / "operator")
    homes = {name: directory / name for name in NAMES}
    requests = [init_member(home, name, Role.SILO).request for name, home in homes.items()]
    operator = load_operator_home(directory / "operator")
    enroll(directory / "operator", read_requests(operator, requests), base / "server", now)
    operator = load_operator_home(directory / "operator")
    for name, home in homes.items():
        join_member(home, home / f"{name}.kit", operator.anchor.fingerprint, Role.SILO, now)
        write_records(directory / f"{name}.csv", name)
        local = home / "local"
        (local / "policy.toml").write_text(policy_text(operator.roster.operator.hex(), unreleased))
        (local / "data.toml").write_text(
            f'records = {json.dumps(str(directory / f"{name}.csv"))}\npatient = "person"\npublic_size = 70\n'
        )
        (local / "agent.toml").write_text("slot_seconds = 0.02\n")
    text = plan_text(operator.roster.version, rounds=rounds, noise_multiplier=200.0)
    plan = Plan.model_validate(tomllib.loads(text))
    host = Host(base / "server")
    with Processes(directory / "logs") as processes:
        siege = Siege(host, operator.key, sign_plan(plan, operator.key), homes, processes)
        host.start()
        try:
            siege.start(*siege.names)
            yield siege
        finally:
            host.close()


def policy_text(operator: str, unreleased: int) -> str:
    """A policy that accepts the plan and serves no queries."""
    return (
        "[budget]\njob_epsilon = 50\njob_epsilon_alone = 50\njob_delta = 1e-5\nlife_epsilon = 100\n"
        f"life_epsilon_alone = 100\nlife_delta = 1e-4\nrounds_without_release = {unreleased}\n"
        f'[jobs]\noperators = ["{operator}"]\nmodels = ["mlp"]\nsmallest_cohort = 3\ncolluders = 1\n'
        "[queries]\nserve = false\n"
    )


def leaves(siege: Siege, name: str, kind: type) -> list[Any]:
    """All leaves of a kind in a hospital's ledger."""
    home = load_silo_home(siege.homes[name])
    path = siege.homes[name] / "state" / "ledger.db"
    ledger = Ledger.read(path, f"feddrm/small/{name}", home.keys.identity_public)
    return [record.leaf for record in ledger.leaves() if isinstance(record.leaf, kind)]
