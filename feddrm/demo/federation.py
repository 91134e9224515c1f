"""A whole federation on this machine: every step is the command that its user would type, in a process of its own."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddrm.contract.authority import Address
from feddrm.contract.errors import FeddrmError, UnreachableError
from feddrm.contract.kit import load_federation_root
from feddrm.demo.processes import AGGREGATOR, AUDIT, QUERY, SILO, Daemon, Processes
from feddrm.transport.client import probe_tls

_TRANSCRIPT = "coordinator.transcript"
# Short commands are mostly imports: two at a time keep two cores busy.
_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Hospital:
    """One silo: its name, its own records and their patient column, its public approximate size in patients, its caps
    on epsilon with and without secure aggregation (the same if left out), and whether it allows a target of its own."""

    name: str
    records: Path
    patient_column: str
    public_size: int
    epsilon_cap: float
    epsilon_cap_alone: float | None = None
    own_target: bool = False


class Federation:
    """Directories and processes of one federation.

    Layout of `directory`: coordinator/ (the server's), operator/ (its keys, apart), one directory a member, logs/.
    """

    def __init__(self, directory: Path, processes: Processes, name: str, hospitals: Sequence[Hospital]) -> None:
        self.directory = directory
        self.processes = processes
        self.name = name
        self.hospitals = tuple(hospitals)
        self.address = f"127.0.0.1:{free_port()}"
        self.coordinator = directory / "coordinator" / "server"
        self.operator = directory / "operator"
        self.silos: dict[str, Daemon] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The silos' names."""
        return tuple(hospital.name for hospital in self.hospitals)

    def home(self, member: str) -> Path:
        """The directory of a member."""
        return self.directory / member

    def found(self) -> None:
        """Make the federation's keys, then move the operator's away from the coordinator's machine."""
        root = self.directory / "coordinator"
        made = self.processes.run_json(AGGREGATOR, "init", root, "--name", self.name, "--address", self.address)
        shutil.move(root / "operator", self.operator)
        self.fingerprint: str = made["fingerprint"]
        self.operator_key: str = made["operator"]

    def enrol(self, queriers: Sequence[str] = ()) -> int:
        """Every member makes its keys; the operator signs all requests into one roster; every member joins.

        Returns:
            the roster's version.
        """
        members = [(SILO, name) for name in self.names] + [(QUERY, name) for name in queriers]
        with ThreadPoolExecutor(_WORKERS) as pool:
            made = list(pool.map(lambda member: self._init(*member), members))
            enrolled = self.processes.run_json(
                AGGREGATOR, "enroll", *made, "--operator", self.operator, "--server", self.coordinator, "--yes"
            )
            kits = {member["name"]: member["kit"] for member in enrolled["members"]}
            list(pool.map(lambda member: self._join(member[0], member[1], kits[member[1]]), members))
        for hospital in self.hospitals:
            self.configure(hospital)
        version: int = enrolled["roster_version"]
        self.roster_version = version
        return version

    def _init(self, module: str, name: str) -> str:
        request: str = self.processes.run_json(module, "init", self.home(name), "--name", name)["request"]
        return request

    def _join(self, module: str, name: str, kit: str) -> None:
        self.processes.run(module, "join", kit, "--dir", self.home(name), "--fingerprint", self.fingerprint)

    def configure(self, hospital: Hospital) -> None:
        """Write a hospital's own local files: what it accepts, and where its records are."""
        local = self.home(hospital.name) / "local"
        cap = hospital.epsilon_cap
        alone = cap if hospital.epsilon_cap_alone is None else hospital.epsilon_cap_alone
        (local / "policy.toml").write_text(
            "# What this hospital accepts; `feddrm-silo init` writes a commented template of this file.\n"
            f"[budget]\njob_epsilon = {cap}\njob_epsilon_alone = {alone}\njob_delta = 1e-5\n"
            f"life_epsilon = {cap}\nlife_epsilon_alone = {alone}\nlife_delta = 1e-5\nrounds_without_release = 3\n\n"
            f'[jobs]\noperators = ["{self.operator_key}"]\nmodels = ["mlp"]\nsmallest_cohort = 3\ncolluders = 1\n'
            "routing_fit = true\npersonal_head = true\nevaluation = true\n"
            f"own_target = {json.dumps(hospital.own_target)}\n\n"
            "[queries]\nserve = true\n"
        )
        (local / "data.toml").write_text(
            f"records = {json.dumps(str(hospital.records.resolve()))}\n"
            f"patient = {json.dumps(hospital.patient_column)}\npublic_size = {hospital.public_size}\n"
        )
        # Six agents share this machine, and thousands of held-out records are asked in a minute.
        (local / "agent.toml").write_text(
            "torch_threads = 1\ncapacity = 64\nanswers_per_day = 1000000\nslot_seconds = 0.1\n"
        )

    def start_coordinator(self, *options: str | Path) -> Daemon:
        """Start the coordinator and wait until it answers."""
        daemon = self.processes.serve("coordinator", AGGREGATOR, "serve", self.coordinator, *options)
        host, port = self.address.rsplit(":", 1)
        while daemon.poll() is None:
            with socket.socket() as probe:
                probe.settimeout(0.2)
                if probe.connect_ex((host, int(port))) == 0:
                    return daemon
            time.sleep(0.05)
        raise UnreachableError(f"The coordinator did not start. The end of {daemon.log}:\n{daemon.tail()}")

    def start_silo(self, name: str, *options: str | Path) -> Daemon:
        """Start one hospital's agent."""
        self.silos[name] = self.processes.serve(name, SILO, "serve", self.home(name), *options)
        return self.silos[name]

    def start_job(self, plan: str) -> Path:
        """Check, sign and start the job of a plan (TOML text)."""
        source, signed = self.directory / "plan.toml", self.directory / "plan.signed"
        source.write_text(plan)
        self.processes.run(AGGREGATOR, "plan", "check", source)
        self.processes.run(AGGREGATOR, "plan", "sign", source, "--operator", self.operator, "-o", signed)
        self.processes.run(AGGREGATOR, "job", "start", signed, "--operator", self.operator)
        return signed

    def watch(self) -> Iterator[dict[str, Any]]:
        """The coordinator's status at every change until the job ends."""
        process = self.processes.stream(
            AGGREGATOR, "status", "--watch", "--operator", self.operator, "--format", "json"
        )
        assert process.stdout is not None  # noqa: S101 - opened as a pipe by stream()
        for line in process.stdout:
            yield json.loads(line)
        process.wait()

    def status(self) -> dict[str, Any]:
        """The coordinator's status now."""
        status: dict[str, Any] = self.processes.run_json(AGGREGATOR, "status", "--operator", self.operator)
        return status

    def transport(self) -> dict[str, Any]:
        """The TLS version that the coordinator speaks, and whether it turns away clients without a certificate."""
        root = load_federation_root(self.coordinator / "federation.root").root
        facts = probe_tls(Address.parse(self.address), root.encode())
        return {"version": facts.version, "client_auth": facts.client_auth}

    def publish(self) -> str:
        """Publish the newest release; returns its id."""
        releases = self.processes.run_json(AGGREGATOR, "release", "list", "--operator", self.operator)["releases"]
        if not releases:
            raise FeddrmError("The job ended without a release.")
        release: str = releases[0]["id"]
        self.processes.run(AGGREGATOR, "release", "publish", release, "--operator", self.operator)
        return release

    def predict(self, records: Path) -> dict[str, list[str]]:
        """Every silo's own model's label for every row of a table."""

        def one(name: str) -> list[str]:
            rows = self.processes.run_json(SILO, "predict", self.home(name), records)["rows"]
            return [row["label"] for row in rows]

        with ThreadPoolExecutor(_WORKERS) as pool:
            return dict(zip(self.names, pool.map(one, self.names), strict=True))

    def ask(self, querier: str, records: Path, *options: str | Path) -> list[dict[str, Any]]:
        """Route every row of a table and ask the hospital that it was routed to."""
        asked = self.processes.run_json(QUERY, "ask", records, "--dir", self.home(querier), *options)
        rows: list[dict[str, Any]] = asked["rows"]
        return rows

    def export(self) -> dict[str, Path]:
        """Every silo exports its ledger for the auditor, and the coordinator its transcript."""
        folder = self.directory / "audit"
        folder.mkdir(exist_ok=True)
        self.processes.run(AGGREGATOR, "transcript", self.coordinator, "-o", folder / _TRANSCRIPT)

        def one(name: str) -> Path:
            bundle = folder / f"{name}.ledger"
            self.processes.run(SILO, "ledger", "export", self.home(name), "-o", bundle)
            return bundle

        with ThreadPoolExecutor(_WORKERS) as pool:
            return dict(zip(self.names, pool.map(one, self.names), strict=True))

    def audit(self, bundles: Mapping[str, Path]) -> dict[str, Any]:
        """The auditor's verdict on all bundles together (exit code 6 is a verdict, too)."""
        shutil.copy(self.operator / "federation.root", self.directory / "audit" / "federation.root")
        report: dict[str, Any] = self.processes.run_json(AUDIT, "verify", *self._evidence(bundles), accept=(0, 6))
        return report

    def report(self, bundles: Mapping[str, Path]) -> Path:
        """The same verdict as a page for people; `audit` comes first."""
        page = self.directory / "report.html"
        self.processes.run_json(AUDIT, "report", *self._evidence(bundles), "--html", page, accept=(0, 6))
        return page

    def _evidence(self, bundles: Mapping[str, Path]) -> list[str | Path]:
        root = self.directory / "audit" / "federation.root"
        transcript = self.directory / "audit" / _TRANSCRIPT
        return [*bundles.values(), "--transcript", transcript, "--root", root, "--fingerprint", self.fingerprint]

    def card(self, release: str) -> dict[str, Any]:
        """The auditor's verdict on a release's model card."""
        folder, root = self.coordinator / "releases" / release, self.directory / "audit" / "federation.root"
        found = self.processes.run_json(AUDIT, "card", folder, "--root", root, accept=(0, 6))["cards"]
        return {"file": str(folder / "card.md"), "verified": found[0]["verified"]}


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
