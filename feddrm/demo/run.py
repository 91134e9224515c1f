"""The demo: found a federation, train, lose a hospital if asked to, publish, route, ask, audit, and measure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddrm.cli import progress
from feddrm.contract.errors import FeddrmError, InputError
from feddrm.demo import canary, rand, sums
from feddrm.demo.federation import Federation, Hospital
from feddrm.demo.measure import measure
from feddrm.demo.processes import Daemon, Processes
from feddrm.demo.rand import SITES

QUERIER = "clinic"
# How many rounds a killed hospital stays away.
_AWAY_ROUNDS = 2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Kill:
    """Which hospital dies in which round."""

    silo: str
    round: int

    @classmethod
    def parse(cls, text: str) -> Kill:
        """Read NAME@ROUND.

        Raises:
            InputError: not of that form, or no such hospital or round.
        """
        name, _, number = text.partition("@")
        if name not in SITES or not number.isdigit() or not 1 <= int(number) <= rand.ALL_ROUNDS:
            raise InputError(
                f"--kill-silo {text}: no such hospital and round.",
                remedy=f"Write NAME@ROUND with one of {', '.join(SITES)} and a round from 1 to {rand.ALL_ROUNDS}.",
            )
        return cls(name, int(number))


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person chose on the command line."""

    directory: Path
    kill: Kill | None = None
    record_traffic: Path | None = None
    canary: str | None = None


def run(settings: Settings, say: Say) -> dict[str, Any]:
    """Run the whole demo.

    Args:
        say: told each step in words.

    Returns:
        the object that `feddrm demo --format json` prints.
    """
    started = time.monotonic()
    directory = prepare(settings.directory)
    files = rand.write_files(directory / "data")
    if settings.canary:
        canary.plant(files.train, settings.canary)
    with Processes(directory / "logs") as processes:
        hospitals = [
            Hospital(
                name,
                files.train[name],
                "zper",
                files.public_size[name],
                rand.EPSILON_CAP,
                rand.EPSILON_CAP_ALONE,
            )
            for name in SITES
        ]
        federation = Federation(directory, processes, "rand", hospitals)
        say("Founding the federation: every hospital makes its own keys, the operator signs one roster")
        federation.found()
        roster_version = federation.enrol([QUERIER])
        say("Starting one coordinator and six hospitals")
        recording: list[str | Path] = ["--record-traffic", settings.record_traffic] if settings.record_traffic else []
        federation.start_coordinator(*recording)
        for name in SITES:
            kill_at = (
                ["--demo-kill-at", str(settings.kill.round)] if settings.kill and settings.kill.silo == name else []
            )
            federation.start_silo(name, *_keep(directory, name), *kill_at)
        signed = federation.start_job(rand.plan_text("rand", roster_version, SITES))
        say("Training, fitting the router, tuning and evaluating, under differential privacy and secure aggregation")
        status = _follow(federation, settings)
        if status["state"] != "release ready":
            raise FeddrmError(f"The job ended as {status['state']}: {status['detail']}")
        say("Publishing the release that the hospitals signed")
        release = federation.publish()
        transport = federation.transport()
        say("Asking the held-out patients' questions as an enrolled querier")
        answers = federation.ask(QUERIER, files.held_out)
        say("Comparing with every hospital's own model")
        predictions = federation.predict(files.held_out)
        say("Auditing every hospital's ledger, offline")
        bundles = federation.export()
        verdict = federation.audit(bundles)
        report, card = federation.report(bundles), federation.card(release)
        checked = sums.check(status["history"], directory / "kept-updates", federation.coordinator)
    accuracy = measure(
        files.truth,
        [row["silos"] for row in answers],
        [row["label"] for row in answers],
        predictions,
        files.majority,
    )
    return {
        "directory": str(directory),
        "report": str(report),
        "card": card,
        "seconds": round(time.monotonic() - started, 1),
        "plan": str(signed),
        "release": release,
        **_privacy(status, verdict),
        **accuracy.as_dict(),
        "transport": transport,
        "sums_checked": checked.checked,
        "sums_verified": checked.verified,
    }


def prepare(directory: Path) -> Path:
    """An empty directory for the demo.

    Raises:
        InputError: it exists and holds something.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} exists and is not empty.", remedy="Name another one with --dir, or remove it.")
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


def _keep(directory: Path, name: str) -> list[str | Path]:
    folder = directory / "kept-updates" / name
    folder.mkdir(parents=True, exist_ok=True)
    return ["--demo-keep-updates", folder]


def _follow(federation: Federation, settings: Settings) -> dict[str, Any]:
    """Watch the job to its end, and bring a killed hospital back two rounds later."""
    killed: Daemon | None = federation.silos.get(settings.kill.silo) if settings.kill else None
    status: dict[str, Any] = {}
    with progress("rounds", rand.ALL_ROUNDS) as bar:
        for status in federation.watch():
            bar.advance(max(0, status["round"] - bar.done), note=_note(status))
            due = settings.kill and (status["round"] >= settings.kill.round + _AWAY_ROUNDS or _over(status))
            if killed and due and killed.poll() is not None:
                federation.start_silo(killed.name, *_keep(federation.directory, killed.name))
                killed = None
            _check_alive(federation, killed)
    if not status:
        raise FeddrmError("The coordinator's status could not be watched; see logs/.")
    return status


def _check_alive(federation: Federation, killed: Daemon | None) -> None:
    for daemon in federation.silos.values():
        if daemon is not killed and daemon.poll() is not None:
            raise FeddrmError(f"{daemon.name} stopped by itself. The end of {daemon.log}:\n{daemon.tail()}")


def _over(status: dict[str, Any]) -> bool:
    return status["state"] in ("release ready", "completed", "stopped", "failed")


def _note(status: dict[str, Any]) -> str:
    waiting = ", ".join(status["waiting_for"])
    # No step while silos gather.
    doing = f"{status['stage']}: {status['step'] or status['state']}"
    return f"{doing}, waiting for {waiting}" if waiting else doing


def _privacy(status: dict[str, Any], verdict: dict[str, Any]) -> dict[str, Any]:
    joined = {silo["name"]: silo["rounds_joined"] for silo in status["silos"]}
    ledgers = {ledger["silo"]: ledger for ledger in verdict["ledgers"]}
    return {
        "rounds": status["rounds"],
        "evaluation": status["evaluation"],
        "noise": status["noise"],
        "rounds_lost": [entry["round"] for entry in status["history"] if entry["outcome"] == "lost"],
        "plan_epsilon": next(iter(ledgers.values()))["plan_epsilon"],
        "delta": next(iter(ledgers.values()))["delta"],
        "silos": [
            {
                "name": name,
                "epsilon_spent": ledgers[name]["epsilon_spent"],
                "epsilon_cap": rand.EPSILON_CAP,
                "ledger_verified": ledgers[name]["verified"],
                "rounds_reserved": ledgers[name]["rounds_reserved"],
                "rounds_joined": joined[name],
            }
            for name in SITES
        ],
        "history": status["history"],
    }
