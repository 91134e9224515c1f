"""For whom a round waits, and how long: silos that are absent, that have not answered, that decline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coordinator_faults import without
from coordinator_harness import Identities, World

from feddrm.contract import messages as m


def test_an_absent_silo_is_waited_for_no_longer_than_the_plan_says(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities)
    world.connect(*without("site-5"))
    world.down.add("site-5")
    world.start()
    start = world.now
    world.run(lambda: world.phase == "Running")
    assert world.now - start == 10_000
    assert world.job.phase.session.announcement.cohort == without("site-5")
    world.connect("site-5")
    world.run()
    world.check()
    assert world.sums() == [15, 31]


def test_an_absent_silo_delays_one_round_once(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities, training__rounds=4)
    world.connect()
    world.start()
    world.run(lambda: len(world.job.outcomes) == 1 and world.phase == "Gathering")
    start = world.now
    world.disconnect("site-5")
    world.run(lambda: len(world.job.outcomes) == 4)
    assert world.now - start == 10_000
    assert [h.survivors for h in world.job.history[1:]] == [without("site-5")] * 3


def test_a_connected_silo_that_has_not_answered_yet_is_not_left_out(tmp_path: Path, identities: Identities) -> None:
    """Loading data may take longer than one waits for a silo that is away."""
    world = World(tmp_path / "server", identities=identities)
    late: list[tuple[str, Any]] = []

    def load(way: str, silo: str, event: Any) -> bool:
        if way == "down" and silo == "site-5" and isinstance(event, m.JobOffer) and not late:
            late.append((silo, event))
            return False
        return True

    world.filter = load
    world.connect()
    world.start()
    world.run(lambda: bool(late) and not world.to_silo and not world.to_coordinator)
    assert world.status().waiting_for == ("site-5",)
    due = world.engine.coordinator.due_ms()
    assert due is not None
    assert due - world.now == 100_000
    world.now += 60_000
    world.to_silo.extend(late)
    world.run()
    assert world.sums() == [31, 31]


def test_a_decliner_shows_in_the_status_and_trains_nothing(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities)
    world.silos["site-3"].decline = m.DeclineReason.POLICY
    world.connect()
    world.start()
    start = world.now
    world.run()
    assert world.now == start, "who declines is not waited for"
    assert world.sums() == [27, 27]
    states = {silo.name: silo.state for silo in world.status().silos}
    assert states["site-3"] == "declined: policy"
    assert not world.silos["site-3"].entered
    assert not world.silos["site-3"].contributions


def test_too_many_decliners_leave_no_quorum_until_one_changes_its_policy(
    tmp_path: Path, identities: Identities
) -> None:
    world = World(tmp_path / "server", identities=identities)
    for name in ("site-3", "site-4"):
        world.silos[name].decline = m.DeclineReason.BUDGET
    world.connect()
    world.start()
    world.run()
    status = world.status()
    assert status.state == "gathering"
    assert status.detail == "3 silos are ready, 4 are needed, and too many do not take part: site-3, site-4"
    world.silos["site-4"].decline = None
    world.kill("site-4")
    world.connect("site-4")
    world.run()
    assert world.sums() == [27, 27]
