"""What hospitals' IT changes while the agents run, in order: rosters, data, permissions. No agent is restarted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_federation import plan_text, write_records

from feddrm.demo.federation import Federation, Hospital
from feddrm.demo.processes import AGGREGATOR, QUERY, SILO, CommandFailedError, Processes

HOSPITALS = ("north", "east", "south")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three connected agents; south's data.toml names a table that does not exist."""
    directory = tmp_path_factory.mktemp("running")
    for name in HOSPITALS:
        write_records(directory / f"{name}.csv", name)
    write_records(directory / "questions.csv", "north", target=False)
    with Processes(directory / "logs") as processes:
        hospitals = [Hospital(name, directory / f"{name}.csv", "person", 70, 50.0) for name in HOSPITALS]
        federation = Federation(directory, processes, "small", hospitals)
        federation.found()
        federation.enrol()
        edit(federation.home("south") / "local" / "data.toml", "south.csv", "nowhere.csv")
        federation.start_coordinator()
        for name in HOSPITALS:
            federation.start_silo(name)
        wait(lambda: all(silo["connected"] for silo in federation.status()["silos"]))
        yield federation
        assert all(federation.silos[name].poll() is None for name in ("north", "south")), "an agent ended"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def silo_status(federation: Federation, name: str) -> Any:
    return federation.processes.run_json(SILO, "status", federation.home(name))


def enrol_querier(federation: Federation, name: str) -> int:
    """As the operator does it while everything runs; returns the version of the roster that lists the querier."""
    processes, home = federation.processes, federation.home(name)
    request = processes.run_json(QUERY, "init", home, "--name", name)["request"]
    enrolled = processes.run_json(AGGREGATOR, "enroll", request, "--operator", federation.operator, "--yes")
    kit = enrolled["members"][0]["kit"]
    processes.run(QUERY, "join", kit, "--dir", home, "--fingerprint", federation.fingerprint)
    processes.run(AGGREGATOR, "roster", "publish", "--operator", federation.operator)
    version: int = enrolled["roster_version"]
    return version


def accept(federation: Federation, *names: str) -> None:
    for name in names:
        federation.processes.run(SILO, "roster", "accept", "--yes", "--dir", federation.home(name))


def test_a_published_roster_reaches_connected_agents_and_is_used_once_it_is_accepted(federation: Federation) -> None:
    processes = {name: silo_status(federation, name)["process"] for name in HOSPITALS}
    version = enrol_querier(federation, "clinic")
    for name in HOSPITALS:
        wait(lambda name=name: silo_status(federation, name)["roster"]["waits_for_approval"] == version)
    text = federation.processes.run(SILO, "status", federation.home("north"))
    assert f"feddrm-silo roster accept --dir {federation.home('north')}" in text
    assert f"Roster version {version} waits for approval" in federation.silos["north"].log.read_text()
    assert silo_status(federation, "north")["roster"]["in_use"] == version - 1
    accept(federation, *HOSPITALS)
    for name in HOSPITALS:
        wait(lambda name=name: silo_status(federation, name)["roster"]["in_use"] == version)
    assert {name: silo_status(federation, name)["process"] for name in HOSPITALS} == processes


def test_a_hospital_that_declined_for_its_data_file_joins_once_that_is_mended(federation: Federation) -> None:
    version = federation.status()["roster_version"]
    federation.start_job(plan_text(version, silos=HOSPITALS))
    wait(lambda: (silo_status(federation, "south")["declined"] or {}).get("detail", "").find("nowhere.csv") >= 0)
    edit(federation.home("south") / "local" / "data.toml", "nowhere.csv", "south.csv")
    statuses = list(federation.watch())
    assert statuses[-1]["state"] == "release ready"
    assert all("south" in entry["survivors"] for entry in statuses[-1]["history"])
    assert silo_status(federation, "south")["declined"] is None


def test_a_querier_that_hospitals_do_not_know_yet_is_told_whose_it_must_act(federation: Federation) -> None:
    federation.publish()
    wait(lambda: all(silo["capacity"] for silo in federation.status()["silos"]))
    questions = federation.directory / "questions.csv"
    assert federation.ask("clinic", questions)
    version = enrol_querier(federation, "desk")
    refused = federation.processes.run(
        QUERY, "ask", questions, "--dir", federation.home("desk"), "--format", "json", accept=(4,)
    )
    assert "does not know this querier yet" in refused
    assert f"must accept roster version {version}" in refused
    assert any(f'"{name} does not know' in refused for name in HOSPITALS)
    accept(federation, *HOSPITALS)
    for name in HOSPITALS:
        wait(lambda name=name: silo_status(federation, name)["roster"]["in_use"] == version)
    assert federation.ask("desk", questions)


@pytest.mark.parametrize("broken", [("serve = true", "serve = false"), ("serve = true", "serve = ")])
def test_a_permission_taken_back_ends_the_answers_until_it_is_given_again(
    federation: Federation, broken: tuple[str, str]
) -> None:
    policy = federation.home("north") / "local" / "policy.toml"

    def capacity() -> int:
        return next(int(silo["capacity"]) for silo in federation.status()["silos"] if silo["name"] == "north")

    wait(lambda: capacity() > 0)
    edit(policy, *broken)
    wait(lambda: capacity() == 0)
    status = silo_status(federation, "north")
    assert status["queries"]["served"] is False
    assert "policy.toml" in status["queries"]["problem"]
    rows = federation.ask("desk", federation.directory / "questions.csv")
    assert rows
    assert all("north" not in row["silos"] for row in rows)
    edit(policy, broken[1], broken[0])
    wait(lambda: capacity() > 0)


def test_settings_that_only_a_restart_takes_up_are_named(federation: Federation) -> None:
    assert silo_status(federation, "east")["restart"] == []
    with (federation.home("east") / "local" / "agent.toml").open("a") as settings:
        settings.write("# a comment changes nothing\n")
    assert silo_status(federation, "east")["restart"] == []
    edit(federation.home("east") / "local" / "agent.toml", "capacity = 64", "capacity = 65")
    assert "agent.toml" in silo_status(federation, "east")["restart"][0]


def test_a_hospital_whose_ledger_was_wiped_says_so_itself_and_does_not_start(federation: Federation) -> None:
    """The last test: east stays away after it."""
    home = federation.home("east")
    federation.processes.run(SILO, "stop", home)
    for file in (home / "state").glob("ledger.db*"):
        file.unlink()
    for command in ("serve", "status"):
        with pytest.raises(CommandFailedError) as refused:
            federation.processes.run(SILO, command, home)
        assert "exit code 6" in str(refused.value)
        assert "A new one in its place would forget what was spent" in str(refused.value)
    assert not (home / "state" / "ledger.db").exists()
