"""A hostile coordinator, with the server's real keys, against real agents that mask: replays, restarts, forged sums.

The tests share one federation and run in the order of this file: each starts from the round that the one before left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from besieged import besieged, leaves
from siege import STEPS, Attempt, Siege, reissue, steps_of

from feddrm.contract import messages as m
from feddrm.contract.home import load_silo_home
from feddrm.method.update import model_hash
from privacy.leaves import Release, Reserve
from secagg.aborts import abort_frame
from secagg.bodies import Abort, Keys, Publish, Unmask
from secagg.keys import KeyPair, sign
from secagg.shamir import combine, lagrange_at_zero
from secagg.wire import Frame, Step

UNRELEASED = 7


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with besieged(tmp_path_factory.mktemp("siege"), rounds=20, unreleased=UNRELEASED) as siege:
        siege.offer(*siege.names)
        yield siege


def test_an_honest_round_then_everything_recorded_is_replayed_at_every_step(siege: Siege) -> None:
    begin = {name: len(siege.host.sent[name]) for name in siege.names}
    first = siege.upto(Step.UNMASK)
    old = first.opened
    siege.publish(first)
    assert siege.round == 1
    recorded = {
        name: [
            event
            for event in siege.host.sent[name][begin[name] :]
            if isinstance(event, m.Announce | m.StepFrames | m.Publish | m.OutcomeEvent)
        ]
        for name in siege.names
    }
    assert all(len(events) >= 7 for events in recorded.values())
    attempt = siege.keyed()
    for step in STEPS:
        for name in siege.names:
            for event in recorded[name]:
                siege.host.send(name, event)
            said = siege.fence(name)
            # The one thing said is the last word on the old round: its announcement is refused.
            assert steps_of(said) == [Step.ABORT]
            last = Abort.decode(said[0].frame.body)
            assert (last.announcement, last.released) == (old, True)
        siege.advance(attempt, step)
    published = siege.publish(attempt)
    assert published.survivors == siege.names


def test_a_forged_sum_is_applied_by_nobody(siege: Siege) -> None:
    north, east, south, west = siege.names
    before = {name: siege.ready(name).model for name in siege.names}
    attempt = siege.upto(Step.UNMASK)
    published = attempt.state.close()
    true = published.frame.attachment
    key = siege.host.home.round_key
    shifted = bytearray(true)
    shifted[0] ^= 1
    forged = {
        north: bytes(len(true)),
        east: doubled(true, siege.layout.shared_size),
        south: bytes(shifted),
        # The true sum of the round before: it carries tags, of another session.
        west: siege.host.sums[siege.outcomes[siege.round].sum],
    }
    for name, data in forged.items():
        event, siege.host.sums[event.sum] = reissue(published.frame, data, key)
        siege.host.send(name, event)
        last = Abort.decode(siege.abort_frame(name, attempt).body)
        assert (last.blamed, last.released) == ("", True)
        # The true sum comes too late, and so does one under other survivors' names.
        siege.host.sums[published.sum] = true
        fewer = replace(Publish.decode(published.frame.body), survivors=siege.names[:3])
        for frame in (published.frame, sign(Step.PUBLISH, "", fewer.encode(), key)):
            siege.host.send(name, m.Publish(frame.without_attachment(), published.sum))
        assert siege.fence(name) == []
    assert {name: siege.ready(name).model for name in siege.names} == before
    siege.lose()


def doubled(data: bytes, words: int) -> bytes:
    small, large = np.frombuffer(data, "<u4", words), np.frombuffer(data, "<u8", offset=4 * words)
    return (small * np.uint32(2)).tobytes() + (large * np.uint64(2)).tobytes()


def test_a_victim_survivor_and_dropped_across_restarts_of_silo_and_coordinator(siege: Siege) -> None:
    north, east, south, west = siege.names
    attempt = siege.upto(Step.MASKED)
    requests = attempt.close()
    full = requests[north]
    less = replace(full, frames=tuple(frame for frame in full.frames if frame.sender != west))
    views = {north: full, east: full, south: less, west: full}
    signed = siege.relay(views, Step.CONSISTENCY)
    sid = full.session

    # The coordinator comes back and asks north the other question.
    siege.host.stop()
    siege.host.start()
    for name in siege.names:
        siege.host.expect(name, lambda event: event if isinstance(event, m.Ready) else None)
    siege.host.send(north, less)
    last = Abort.decode(siege.abort_frame(north, attempt).body)
    assert (last.blamed, last.released) == ("", False)

    # West's process dies between its R4 and its R5, and another one is asked for the R5.
    siege.restart(west)
    agreed = m.StepFrames(sid, int(Step.CONSISTENCY), (signed[north], signed[east], signed[west]))
    siege.host.send(west, agreed)
    siege.host.send(west, less)
    assert siege.fence(west) == []

    # East is shown an R4 on the other survivors, south the only one on its own.
    mixed = (signed[east], signed[south], signed[west])
    siege.host.send(east, replace(agreed, frames=mixed))
    siege.host.send(south, replace(agreed, frames=(signed[south],)))
    for name in (east, south):
        assert not Abort.decode(siege.abort_frame(name, attempt).body).released
    for name in siege.names:
        siege.host.send(name, agreed)
        assert Step.UNMASK not in steps_of(siege.fence(name))
        assert not siege.abort_of(name, attempt).released
    # Nobody released anything, so that the round goes on.
    siege.publish(siege.upto(Step.UNMASK, certificate=siege.certificate(attempt)))


def test_an_update_is_masked_again_for_no_forged_certificate(siege: Siege) -> None:
    """For the same and for a smaller cohort."""
    north, east, south, _ = siege.names
    attempt = siege.upto(Step.MASKED)
    true = siege.certificate(attempt)
    forged = forgeries(siege, attempt)
    for cohort in (siege.names, (north, east, south)):
        for certificate in forged if cohort == siege.names else [(), forged[0]]:
            again = siege.open(siege.announcement(cohort))
            for frame in siege.announce(again, certificate=certificate).values():
                assert "abort certificate" in Abort.decode(frame.body).reason
    # The very announcement they are dead in: never again, whatever comes with it.
    for name in siege.names:
        siege.host.send(name, siege.announce_event(attempt, name, true))
        assert steps_of(siege.fence(name)) == [Step.ABORT]
    siege.publish(siege.upto(Step.UNMASK, certificate=true))


def forgeries(siege: Siege, attempt: Attempt) -> list[tuple[Frame, ...]]:
    """Certificates that are none. Needed: |U1| - t + c + 1 = 3 of 4."""
    key = siege.host.home.round_key
    identities = {name: load_silo_home(siege.homes[name]).keys.identity for name in siege.names}

    def said(name: str, signer: Any, *, released: bool = False, about: bytes = b"") -> Frame:
        return abort_frame(announcement=about or attempt.opened, me=name, signer=signer, released=released, reason="x")

    return [
        (),
        tuple(said(name, key) for name in siege.names),
        # One colluding silo, as often as it likes and in everybody's name, and one honest silo.
        tuple(said(siege.names[0], identities["north"]) for _ in range(4)),
        tuple(replace(said(siege.names[0], identities["north"]), sender=name) for name in siege.names),
        tuple(said(name, identities[name]) for name in siege.names[:2]),
        tuple(said(name, identities[name], released=True) for name in siege.names),
        tuple(said(name, identities[name], about=bytes(32)) for name in siege.names),
    ]


def test_silos_killed_after_shares_and_after_release(siege: Siege) -> None:
    """West dies after its R2: its mask key is opened. South dies after its R5: it never masks that update again. What
    R5 opens is on no silo's disk."""
    north, east, south, west = siege.names
    attempt = siege.keyed()
    keys = siege.advance(attempt, Step.KEYS)
    mask_keys = {frame.sender: Keys.decode(frame.body).mask for frame in keys[north].frames}
    requests = attempt.close()
    siege.kill(west)
    del requests[west]
    for frame in siege.relay(requests, Step.MASKED).values():
        attempt.state.receive(siege.complete(frame))
    siege.advance(attempt, Step.MASKED)
    opened = siege.relay(attempt.close(), Step.UNMASK)
    for frame in opened.values():
        attempt.state.receive(frame)
    siege.kill(south)
    published = attempt.state.close()
    assert (published.survivors, published.opened) == ((north, east, south), (west,))
    secrets = opened_secrets(attempt, opened)
    assert len(secrets) == 4 + 3 * 4
    # They are the ones, and a search that finds nothing at all would prove nothing.
    assert KeyPair.from_private(secrets[siege.names.index(west)]).public == mask_keys[west]
    for home in siege.homes.values():
        assert traces(home, [attempt.opened])
        assert traces(home, secrets) == []
    siege.start(south, west)
    statements = tuple(
        abort_frame(
            announcement=attempt.opened,
            me=name,
            signer=load_silo_home(siege.homes[name]).keys.identity,
            released=False,
            reason="x",
        )
        for name in siege.names
    )
    assert siege.abort_of(south, attempt).released
    again = siege.open(siege.announcement())
    said = siege.announce(again, to=(south, north), certificate=statements)
    assert {Abort.decode(frame.body).reason for frame in said.values()} == {
        "unmasking shares of this round were released here"
    }
    siege.lose()


def opened_secrets(attempt: Attempt, frames: dict[str, Frame]) -> list[bytes]:
    """What R5 tells the coordinator: b of every survivor, s of the dropped silo, and all shares of them."""
    members = attempt.announcement.cohort
    shares = {name: [opening.share for opening in Unmask.decode(frame.body).openings] for name, frame in frames.items()}
    weights = lagrange_at_zero([members.index(name) + 1 for name in shares])
    columns = list(zip(*shares.values(), strict=True))
    return [combine(weights, column) for column in columns] + [share for column in columns for share in column]


def traces(home: Path, secrets: list[bytes]) -> list[str]:
    """Files of a silo's directory in which a secret lies, as bytes or as text."""
    forms = [form for secret in secrets for form in (secret, secret[::-1], secret.hex().encode())]
    files = [path for path in home.rglob("*") if path.is_file()]
    assert {"agent.db", "agent.db-wal", "ledger.db"} <= {path.name for path in files}
    return [path.name for path in files for form in forms if form in path.read_bytes()]


def test_a_larger_and_a_merely_different_cohort_get_no_second_masking(siege: Siege) -> None:
    north, east, south, west = siege.names
    attempt = siege.upto(Step.MASKED, (north, east, south))
    forged = forgeries(siege, attempt)
    for cohort in (siege.names, (north, east, west), (north, south, west)):
        for certificate in (forged[0], forged[5]):
            again = siege.open(siege.announcement(cohort))
            said = siege.announce(again, certificate=certificate)
            assert Step(said.pop(west).step) == Step.KEYS
            assert all("abort certificate" in Abort.decode(frame.body).reason for frame in said.values())
    # With the true one the round goes on, with all four.
    certificate = siege.certificate(attempt)
    published = siege.publish(siege.upto(Step.UNMASK, certificate=certificate))
    assert published.survivors == siege.names
    assert {model_hash(siege.model)} == {siege.ready(name).model for name in siege.names}


def test_announcing_and_stopping_burns_no_more_than_the_policy_allows(siege: Siege) -> None:
    for _ in range(UNRELEASED + 1):
        attempt = siege.open(siege.announcement())
        said = siege.announce(attempt)
        siege.lose()
        if {Step(frame.step) for frame in said.values()} == {Step.ABORT}:
            break
    assert {Abort.decode(frame.body).reason for frame in said.values()} == {"declined"}
    for name in siege.names:
        charged = {leaf.round for leaf in leaves(siege, name, Reserve)}
        released = {leaf.round for leaf in leaves(siege, name, Release)}
        assert len(charged - released) == UNRELEASED
        # And so it stays, however often it is announced again.
        assert Step(siege.announce(siege.open(siege.announcement()), to=(name,))[name].step) == Step.ABORT
        assert {leaf.round for leaf in leaves(siege, name, Reserve)} == charged
