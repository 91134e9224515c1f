"""A hostile coordinator, with the server's real keys, over gRPC with mutual TLS against real agents.

The tests share one federation and run in the order of this file: each starts from the round that the one before left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from siege import STEPS, Attempt, Siege, besieged, reissue, steps_of

from feddrm.contract import messages as m
from feddrm.contract.home import load_silo_home
from feddrm.contract.signed_plan import sign_plan
from feddrm.method.update import model_hash
from privacy.leaves import Release, Reserve
from privacy.ledger import Ledger
from secagg.aborts import abort_frame
from secagg.bodies import Abort, Keys, Publish, Unmask
from secagg.exhibits import Conflict, decode_exhibit
from secagg.keys import KeyPair, sign
from secagg.shamir import combine, lagrange_at_zero
from secagg.wire import Frame, Step

UNRELEASED = 7


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with besieged(tmp_path_factory.mktemp("siege"), rounds=20, unreleased=UNRELEASED) as siege:
        yield siege


def leaves(siege: Siege, name: str, kind: type) -> list[Any]:
    home = load_silo_home(siege.homes[name])
    path = siege.homes[name] / "state" / "ledger.db"
    ledger = Ledger.read(path, f"feddrm/small/{name}", home.keys.identity_public)
    return [record.leaf for record in ledger.leaves() if isinstance(record.leaf, kind)]


def test_different_plans_to_different_silos_share_no_session(siege: Siege) -> None:
    """Both are signed by the operator: an operator that conspires gets no further than an honest one's two plans."""
    three, west = siege.names[:3], siege.names[3]
    other = sign_plan(siege.plan.plan.model_copy(update={"name": "other"}), siege.operator)
    siege.offer(*three)
    siege.offer(west, plan=other)
    attempt = siege.open(siege.announcement())
    said = siege.announce(attempt)
    assert {name: Step(frame.step) for name, frame in said.items()} == dict.fromkeys(three, Step.KEYS) | {
        west: Step.ABORT
    }
    # West's R1 of its own plan, in everybody else's session.
    foreign = siege.open(replace(attempt.announcement, plan=other.hash, attempt=2))
    siege.host.send(west, siege.announce_event(foreign, west))
    assert Abort.decode(siege.abort_frame(west, foreign).body).reason == "announcement refused"
    siege.host.send(west, m.JobEnded(other.hash, "stopped", completed=False))
    siege.offer(west)
    assert leaves(siege, west, Reserve) == []
    for name in three:
        assert not siege.abort_of(name, attempt).released


@pytest.mark.parametrize(
    "lie",
    [
        {"threshold": 2, "minimum_cohort": 2},
        {"minimum_cohort": 2},
        {"colluders": 0},
        {"threshold": 4},
        {"model": bytes(32)},
        {"words64": 4},
        {"value_bound": 1 << 23},
        {"federation": "another"},
        {"stage": 2},
        {"round": 2},
        {"cohort": ("north", "east")},
    ],
    ids=lambda lie: " ".join(lie),
)
def test_what_the_plan_fixes_is_not_the_coordinators_to_change(siege: Siege, lie: dict[str, Any]) -> None:
    attempt = siege.open(siege.announcement(), **lie)
    said = siege.announce(attempt, to=siege.names[:2])
    assert {Step(frame.step) for frame in said.values()} == {Step.ABORT}
    assert {Abort.decode(frame.body).reason for frame in said.values()} == {"announcement refused"}
    assert {name: len(leaves(siege, name, Reserve)) for name in siege.names} == dict(
        zip(siege.names, (1, 1, 1, 0), strict=True)
    )


@pytest.mark.parametrize("relayed", ["everybody's", "their own"])
def test_different_announcements_to_different_silos_end_before_any_share(siege: Siege, relayed: str) -> None:
    one = siege.open(siege.announcement())
    other = siege.open(replace(one.announcement, nonce=b"\7" * 32))
    sides = {name: one if name in siege.names[:2] else other for name in siege.names}
    said = {name: siege.announce(side, to=(name,))[name] for name, side in sides.items()}
    assert {Step(frame.step) for frame in said.values()} == {Step.KEYS}
    for name, side in sides.items():
        frames = tuple(f for n, f in said.items() if relayed == "everybody's" or sides[n] is side)
        siege.host.send(name, m.StepFrames(side.opened, int(Step.KEYS), frames))
        last = Abort.decode(siege.abort_frame(name, side).body)
        assert (last.blamed, last.released) == ("", False)
        assert steps_of(siege.fence(name)) == []


def test_keys_substituted_by_the_coordinator_reach_no_session(siege: Siege) -> None:
    attempt = siege.keyed()
    requests = attempt.close()
    own = KeyPair.from_private(b"\5" * 32)
    for name, event in requests.items():
        west = next(frame for frame in event.frames if frame.sender != name)
        body = replace(Keys.decode(west.body), mask=own.public).encode()
        forged = replace(sign(Step.KEYS, west.sender, body, siege.host.home.round_key), attachment=west.attachment)
        siege.host.send(name, replace(event, frames=swapped(event.frames, forged)))
        last = Abort.decode(siege.abort_frame(name, attempt).body)
        assert (last.blamed, last.released) == ("", False)


def test_two_keys_of_a_colluding_silo_split_the_session_or_convict_it(siege: Siege) -> None:
    """West's identity key is in the coordinator's hands."""
    north, east, south, west = siege.names
    identity = load_silo_home(siege.homes[west]).keys.identity
    attempt = siege.keyed()
    requests = attempt.close()
    honest = next(frame for frame in requests[north].frames if frame.sender == west)
    body = replace(Keys.decode(honest.body), mask=KeyPair.from_private(b"\6" * 32).public)
    twin = sign(Step.KEYS, west, body.encode(), identity, honest.attachment)
    requests[south] = replace(requests[south], frames=swapped(requests[south].frames, twin))
    shares = siege.relay({name: requests[name] for name in (north, east, south)}, Step.SHARES)
    sids = {name: frame.body[:32] for name, frame in shares.items()}
    assert sids[north] == sids[east] != sids[south]
    # South's shares are for another session than north's: relayed there, they end it.
    carried = tuple(dealt_to(frame, north, siege.names) for frame in shares.values())
    siege.host.send(north, m.StepFrames(sids[north], int(Step.SHARES), carried))
    assert Abort.decode(siege.abort_frame(north, attempt).body).blamed == ""
    # Shown both, a silo convicts the one that signed them, with both as evidence.
    siege.host.send(east, replace(requests[east], frames=swapped(requests[east].frames, twin)))
    frame = siege.abort_frame(east, attempt)
    assert Abort.decode(frame.body).blamed == west
    conflict = decode_exhibit(frame.attachment)
    assert isinstance(conflict, Conflict)
    assert {conflict.first.body, conflict.second.body} == {honest.body, twin.body}


def swapped(frames: tuple[Frame, ...], new: Frame) -> tuple[Frame, ...]:
    return tuple(new if frame.sender == new.sender else frame for frame in frames)


def dealt_to(frame: Frame, recipient: str, members: tuple[str, ...]) -> Frame:
    """A silo's R2 with the one ciphertext for a recipient, as the coordinator relays it."""
    others = [name for name in members if name != frame.sender]
    size = len(frame.attachment) // len(others)
    if frame.sender == recipient:
        return frame.without_attachment()
    at = others.index(recipient)
    return replace(frame, attachment=frame.attachment[at * size : (at + 1) * size])


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
