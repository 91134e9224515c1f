"""Orders, plans, rosters and a second process that the coordinator does not take up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coordinator_harness import DAY_MS, START_MS, Identities, World, make_plan

from aggregator.events import JobStarted, JobStopped, ReleaseOrdered, RosterChanged
from aggregator.store import Store
from feddrm.contract.errors import AlreadyRunningError, FeddrmError, InputError, VerificationError
from feddrm.contract.roster import roster_hash, sign_roster
from feddrm.contract.signed_plan import sign_plan


def test_orders_that_cannot_be_carried_out_are_refused_and_not_stored(world: World) -> None:
    identities = world.identities
    names = identities.names
    stranger = Identities(names)
    changed = roster_hash(identities.signed_roster.body)
    orders: list[tuple[Any, type[FeddrmError], str]] = [
        (JobStarted(identities.sign(make_plan(names, name="second")).signed), InputError, "is not over yet"),
        (JobStopped(bytes(32), "x"), InputError, "No such job"),
        (ReleaseOrdered("0" * 16), InputError, "There is no release"),
        (RosterChanged(sign_roster(identities.make_roster(2), stranger.operator)), VerificationError, "not signed"),
        (RosterChanged(stranger.signed_roster), VerificationError, "not signed"),
    ]
    for order, kind, text in orders:
        count = len(list(world.engine.store.events(0)))
        with pytest.raises(kind, match=text):
            world.submit(order)
        assert len(list(world.engine.store.events(0))) == count
    assert roster_hash(world.engine.coordinator.signed_roster.body) == changed


def test_plans_that_cannot_run_are_refused(tmp_path: Path, identities: Identities) -> None:
    world = World(tmp_path / "server", identities=identities)
    names = identities.names
    for plan, text in (
        (make_plan(names, roster_version=2), "for roster version 2, but 1 is current"),
        (make_plan((*names[:4], "site-9")), "lists no silo named site-9"),
    ):
        with pytest.raises(InputError, match=text):
            world.submit(JobStarted(identities.sign(plan).signed))
    with pytest.raises(VerificationError, match="not signed"):
        world.submit(JobStarted(sign_plan(make_plan(names), identities.round_key).signed))
    with pytest.raises(VerificationError, match="is for federation cornea"):
        world.submit(JobStarted(identities.sign(make_plan(names, federation="cornea")).signed))
    world.now = START_MS + 400 * DAY_MS
    with pytest.raises(VerificationError, match="expired"):
        world.submit(JobStarted(world.plan.signed))
    assert world.job is None


def test_a_newer_roster_is_taken_up_and_an_older_one_is_not(world: World) -> None:
    second = sign_roster(world.identities.make_roster(2), world.identities.operator)
    world.submit(RosterChanged(second))
    world.submit(RosterChanged(second))
    assert world.status().roster_version == 2
    with pytest.raises(InputError, match="not above 2"):
        world.submit(RosterChanged(world.identities.signed_roster))
    # The running job stays with the roster that its plan names, also across a restart from the directory's old one.
    world.run()
    assert world.sums() == [31, 31]
    world.restart_coordinator()
    assert world.status().roster_version == 2


def test_a_second_coordinator_on_the_directory_is_locked_out(world: World) -> None:
    with pytest.raises(AlreadyRunningError, match="already runs on"):
        Store.open(world.directory)
    world.engine.store.close()
    Store.open(world.directory).close()
    with pytest.raises(InputError, match="no server directory"):
        Store.open(world.directory / "nowhere")
