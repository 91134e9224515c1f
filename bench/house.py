"""A federation's directories on this machine, made in process, and plans of a given size: benchmarks and tests only."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.founding import found_federation
from aggregator.homes import load_operator_home
from aggregator.operations import enroll, read_requests
from feddrm.contract.authority import Address
from feddrm.contract.home import init_member, join_member
from feddrm.contract.identity import Role
from feddrm.contract.plan import Plan
from feddrm.method.layout import layout_of

FEDERATION = "bench"
PATIENT = "person"
PUBLIC_SIZE = 1000

_AGENT = "torch_threads = 1\ncapacity = 0\nslot_seconds = 0\n"


@dataclass(frozen=True)
class House:
    """Where the federation's directories are. Silos dial `address`, the coordinator listens on `listen`."""

    root: Path
    silos: tuple[str, ...]
    address: Address
    listen: Address

    @property
    def server(self) -> Path:
        """The coordinator's directory."""
        return self.root / "coordinator" / "server"

    @property
    def operator(self) -> Path:
        """The operator's directory."""
        return self.root / "operator"

    def home(self, silo: str) -> Path:
        """A silo's directory."""
        return self.root / silo


def build(root: Path, silos: Sequence[str], address: Address, listen: Address) -> House:
    """Found a federation and let the silos join it.

    Args:
        address: what silos dial: the coordinator, or a proxy in front of it.
        listen: where the coordinator listens; on the same host, for which its certificate is made out.
    """
    house = House(root, tuple(silos), address, listen)
    now = time.time_ns() // 1_000_000
    anchor = found_federation(root / "coordinator", FEDERATION, address, now)
    shutil.move(root / "coordinator" / "operator", house.operator)
    settings = house.server / "server.toml"
    settings.write_text(settings.read_text().replace(f'listen = "{address}"', f'listen = "{listen}"'))
    requests = [init_member(house.home(name), name, Role.SILO).request for name in silos]
    candidates = read_requests(load_operator_home(house.operator), requests)
    enroll(house.operator, candidates, house.server, now)
    for name, candidate in zip(silos, candidates, strict=True):
        join_member(house.home(name), candidate.kit, anchor.fingerprint, Role.SILO, now)
        _configure(house.home(name) / "local", anchor.operator.hex())
    return house


def _configure(local: Path, operator: str) -> None:
    (local / "policy.toml").write_text(
        "[budget]\njob_epsilon = 100\njob_epsilon_alone = 100\njob_delta = 1e-5\n"
        "life_epsilon = 100\nlife_epsilon_alone = 100\nlife_delta = 1e-5\nrounds_without_release = 3\n\n"
        f'[jobs]\noperators = ["{operator}"]\nmodels = ["mlp"]\nsmallest_cohort = 3\ncolluders = 1\n'
        "routing_fit = true\n\n"
        "[queries]\nserve = false\n"
    )
    (local / "data.toml").write_text(f'records = "none"\npatient = "{PATIENT}"\npublic_size = {PUBLIC_SIZE}\n')
    (local / "agent.toml").write_text(_AGENT)


def plan_of(house: House, words32: int, rounds: int) -> Plan:
    """A plan of `rounds` sums over exactly `words32` shared parameters.

    Raises:
        ValueError: no network of this schema has so many.
    """
    count = len(house.silos)
    columns, hidden = _network(words32, count)
    plan = Plan.model_validate(
        {
            "federation": FEDERATION,
            "name": f"sums-of-{words32}",
            "roster_version": load_operator_home(house.operator).roster.version,
            "silos": house.silos,
            "schema": {
                "patient": PATIENT,
                "target": {"kind": "threshold", "column": "y", "operator": ">", "value": 0.0, "labels": ("no", "yes")},
                "columns": tuple(
                    {"kind": "numeric", "name": f"c{index}", "lower": 0.0, "upper": 1.0, "missing_indicator": False}
                    for index in range(columns)
                ),
            },
            "model": {"kind": "mlp", "hidden": hidden},
            "training": {
                "rounds": rounds,
                "local_steps": 1,
                "sampling_rate": 0.01,
                "clip_norm": 1.0,
                "noise_multiplier": 1.0,
                "target_weight": 0.5,
                "learning_rate": 0.1,
            },
            "privacy": {"delta": 1e-5},
            "secure_aggregation": {
                "threshold": 2 * count // 3 + 1,
                "minimum_cohort": 3,
                "colluders": 1,
                "clip": 1.0,
                "fraction_bits": 20,
            },
            "deadlines": {"gather_seconds": 60.0, "train_seconds": 600.0, "step_seconds": 120.0},
        }
    )
    if layout_of(plan).shared_size != words32:
        raise ValueError(f"a network of {layout_of(plan).shared_size} shared parameters, not {words32}")
    return plan


def _network(words32: int, silos: int) -> tuple[int, tuple[int, ...]]:
    """(features, hidden widths) of a network with at most three hidden layers and exactly so many shared parameters."""
    for width in range(1, 129):
        features, rest = divmod(words32 - silos * (width + 1) - width, width)
        if rest == 0 and 1 <= features <= 64:
            return features, (width,)
    # (f + 1) a + (a + 1) b + (b + 1) silos, solved for a.
    for features in range(1, 65):
        for width in range(1, 4097):
            first, rest = divmod(words32 - width - silos * (width + 1), features + 1 + width)
            if rest == 0 and 1 <= first <= 4096:
                return features, (first, width)
    for first in range(4096, 1024, -1):
        for features in range(1, 65):
            rest = words32 - (features + 1) * first - (first + 1) * 4096 - silos
            last, left = divmod(rest, 4097 + silos)
            if left == 0 and 1 <= last <= 4096:
                return features, (first, 4096, last)
    raise ValueError(f"no network here has {words32} shared parameters")
