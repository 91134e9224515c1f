"""A small real federation on disk, made by the commands' own functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from small_plan import plan_document

from aggregator.founding import found_federation
from aggregator.homes import OperatorHome, load_operator_home
from aggregator.operations import enroll, read_requests
from feddrm.contract.authority import Address
from feddrm.contract.home import init_member, join_member
from feddrm.contract.identity import Role
from feddrm.contract.kit import FederationRoot
from feddrm.contract.plan import Plan

NOW = 1_800_000_000_000


@dataclass(frozen=True)
class Federation:
    path: Path
    anchor: FederationRoot
    now: int = NOW

    @property
    def operator(self) -> Path:
        return self.path / "fed" / "operator"

    @property
    def server(self) -> Path:
        return self.path / "fed" / "server"

    @property
    def home(self) -> OperatorHome:
        return load_operator_home(self.operator)

    def request(self, name: str, role: Role = Role.SILO, where: str | None = None) -> Path:
        return init_member(self.path / (where or name), name, role).request

    def enroll(self, *requests: Path, now: int = NOW, server: bool = True) -> list[Path]:
        candidates = read_requests(self.home, requests)
        enroll(self.operator, candidates, self.server if server else None, now)
        return [candidate.kit for candidate in candidates]

    def member(self, name: str, role: Role = Role.SILO) -> Path:
        (kit,) = self.enroll(self.request(name, role))
        join_member(self.path / name, kit, self.anchor.fingerprint, role, NOW)
        return self.path / name


@pytest.fixture
def found(tmp_path: Path):
    def make(name: str = "retina", where: str = "one") -> Federation:
        path = tmp_path / where
        anchor = found_federation(path / "fed", name, Address.parse("agg.example.org:8002"), NOW)
        return Federation(path, anchor)

    return make


@pytest.fixture
def federation(found) -> Federation:
    return found()


@pytest.fixture
def plan() -> Plan:
    figures = {"training__rounds": 10, "training__sampling_rate": 0.02, "training__noise_multiplier": 1.1}
    return Plan.model_validate(plan_document(("a", "b", "c", "d"), roster_version=2, **figures))
