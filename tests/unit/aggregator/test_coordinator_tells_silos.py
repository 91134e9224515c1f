"""What a silo's own people must act on reaches the silo: a newer roster, and why it is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coordinator_faults import all_blame
from coordinator_harness import World

from aggregator.events import RosterChanged
from feddrm.contract import messages as m
from feddrm.contract.roster import Roster, sign_roster


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "state")
    yield world
    world.engine.store.close()


def sent(world: World, kind: type[Any]) -> list[tuple[str, Any]]:
    return [(silo, event) for silo, event in world.sent if isinstance(event, kind)]


def test_a_new_roster_goes_to_every_silo_that_is_connected_and_in_it(world: World) -> None:
    world.connect("site-1", "site-2", "site-3")
    world.run()
    newer: Roster = world.identities.make_roster(2)
    kept = tuple(member for member in newer.members if member.name != "site-3")
    signed = sign_roster(newer.model_copy(update={"members": kept}), world.identities.operator)
    world.submit(RosterChanged(signed))
    assert sent(world, m.RosterOffer) == [("site-1", m.RosterOffer(signed)), ("site-2", m.RosterOffer(signed))]


def test_a_silo_that_is_left_out_is_told_why_and_again_when_it_asks(world: World) -> None:
    world.connect()
    world.start()
    all_blame(world, "site-1", "the ledger went back from 9 leaves to 4")
    world.run()
    (told, *again) = sent(world, m.Notice)
    assert told == (
        "site-1",
        m.Notice(
            "site-1 is left out of first until its agent is restarted: 4 silos blame it, saying: "
            "the ledger went back from 9 leaves to 4"
        ),
    )
    assert all(notice == told for notice in again)
    count = len(sent(world, m.Notice))
    world.connect("site-1")
    world.run()
    assert len(sent(world, m.Notice)) > count, "its people may have looked away"
    # Another process of its may try again, and is told nothing that is no longer so.
    world.crash("site-1")
    before = len(sent(world, m.Notice))
    world.run()
    assert len(sent(world, m.Notice)) == before
