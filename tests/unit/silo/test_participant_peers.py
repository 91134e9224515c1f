"""Peers whose ledgers do not hold: named, excluded, and the federation goes on (design 7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from silo_harness import NAMES, NOW, Desk

from feddrm.contract.messages import AbortRequest, OutcomeEvent
from feddrm.method.update import model_hash
from privacy.canonical import canonical_json
from privacy.ledger import Ledger
from privacy.note import open_head
from secagg.bodies import Abort
from secagg.wire import Step
from silo.books import origin_of
from silo.peers import Heads


def blame(desk: Desk, name: str = "alpha") -> Abort:
    return Abort.decode(desk.houses[name].frames(Step.ABORT)[-1].body)


def relay_keys(desk: Desk) -> None:
    for name, event in desk.request(Step.KEYS).items():
        desk.houses[name].handle(event)


def test_peers_heads_are_witnessed_and_extended(desk: Desk) -> None:
    desk.run()
    desk.run()
    heads = Heads(desk.houses["alpha"].state).heads()
    assert set(heads) == set(NAMES) - {"alpha"}
    for name, (size, note) in heads.items():
        head = open_head(note, origin_of("trial", name), desk.trial.keys[name].identity_public)
        assert head.size == size
        assert size <= desk.houses[name].ledger.size
    assert dict(desk.houses["alpha"].ready.witnessed) == {name: size for name, (size, _) in heads.items()}


def test_a_ledger_that_was_put_back_is_blamed_by_everybody(desk: Desk) -> None:
    beta = desk.houses["beta"]
    old = (beta.directory / "ledger.db").read_bytes()
    beta.ledger.close()
    copy = beta.directory / "copy.db"
    copy.write_bytes((beta.directory / "ledger.db").read_bytes())
    assert old
    beta.state.close()
    beta.start()
    desk.run()
    desk.run()
    # Beta puts its ledger back to the copy and charges round 3 as if rounds 1 and 2 had never been.
    beta.ledger.close()
    for path in beta.directory.glob("ledger.db*"):
        path.unlink()
    copy.rename(beta.directory / "ledger.db")
    beta.state.close()
    beta.start()
    desk.open()
    relay_keys(desk)
    for name in ("alpha", "delta", "gamma"):
        last = blame(desk, name)
        assert last.blamed == "beta"
        assert not last.released
    # Without it the federation goes on.
    rest = ("alpha", "delta", "gamma")
    desk.open(desk.announcement(attempt=2, cohort=rest))
    for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY):
        desk.advance(step)
    desk.publish()
    assert {desk.houses[name].ready.model for name in rest} == {model_hash(desk.model)}


def swapped(desk: Desk, make: Callable[[Desk], bytes]) -> None:
    """Beta joins with another proof than its books would give."""
    beta = desk.houses["beta"]
    proof = make(desk)
    beta.participant._reactions._witnessing.proof = lambda *_: proof  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["empty", "garbage", "of another silo", "of another round"])
def test_a_bad_proof_is_blamed_by_name(desk: Desk, kind: str) -> None:
    desk.run()
    alpha, beta = desk.houses["alpha"], desk.houses["beta"]
    if kind in ("empty", "garbage"):
        swapped(desk, lambda _: b"" if kind == "empty" else b"{}")
    else:
        source = alpha if kind == "of another silo" else beta
        work = source.participant._reactions._work
        assert work is not None
        proof = source.participant._reactions._witnessing.proof(work, 1, (1, 2, 3, 4, 5, 6, 7))
        swapped(desk, lambda _: proof)
    before = Heads(alpha.state).head("beta")
    desk.open()
    relay_keys(desk)
    assert blame(desk).blamed == "beta"
    assert Heads(alpha.state).head("beta") == before
    assert not alpha.frames(Step.SHARES)


def test_a_fork_is_kept_as_evidence_that_convinces_anybody(desk: Desk) -> None:
    desk.run()
    from privacy.leaves import Dataset
    from privacy.witness import check_fork

    beta = desk.houses["beta"]
    key, origin = desk.trial.keys["beta"].identity, origin_of("trial", "beta")
    honest = Heads(desk.houses["alpha"].state).heads()["beta"]
    # A second ledger of beta, of the size that alpha saw, with another content.
    other = Ledger.open(beta.directory / "other.db", origin, key, now_ms=NOW)
    while other.size < honest[0]:
        other.append(Dataset(bytes(32), bytes([other.size]) * 32, bytes(32), "id", 1000), now_ms=NOW)
    from privacy.witness import make_proof

    proof = make_proof(other, (0,), ())
    other.close()
    swapped(desk, lambda _: proof)
    desk.open()
    relay_keys(desk)
    frame = desk.houses["alpha"].frames(Step.ABORT)[-1]
    assert Abort.decode(frame.body).blamed == "beta"
    assert check_fork(frame.attachment, origin=origin, key=key.public_key().public_bytes_raw()) == honest[0]


def test_a_retry_shows_the_extension_of_what_peers_saw_in_the_attempt_before(desk: Desk) -> None:
    desk.open()
    relay_keys(desk)
    for house in desk.houses.values():
        house.handle(AbortRequest(desk.announcement_hash, "a silo is gone"))
    # Between the attempts alpha's ledger grows: its data changed.
    alpha = desk.houses["alpha"]
    work = alpha.participant._reactions._work
    assert work is not None
    alpha.participant._reactions._books.record_dataset(work, alpha.loaded_event(work.plan_hash, b"\3" * 32), NOW)
    desk.open(desk.announcement(attempt=2))
    relay_keys(desk)
    assert all(house.frames(Step.SHARES) for house in desk.houses.values())


@pytest.mark.parametrize("guilty", ["coordinator", "beta"])
def test_a_size_that_is_not_proven_is_blamed_on_who_left_it_out(desk: Desk, guilty: str) -> None:
    """Beta says, under its signature, what it was asked for: hiding a size makes nobody accuse it."""
    desk.run()
    original = desk.announce_event

    def hiding(name: str, certificate: tuple[object, ...] = ()) -> object:
        event = original(name, certificate)  # type: ignore[arg-type]
        return replace(event, witnessed=()) if name == "beta" and guilty == "coordinator" else event

    desk.announce_event = hiding  # type: ignore[assignment, method-assign]
    if guilty == "coordinator":
        desk.houses["beta"].state.set_fact("heads shown", b"")
    else:
        witnessing = desk.houses["beta"].participant._reactions._witnessing
        honest = witnessing.proof

        def silent(*arguments: Any) -> bytes:
            value = json.loads(honest(*arguments))
            value["consistency"] = []
            return canonical_json(value)

        witnessing.proof = silent  # type: ignore[method-assign]
    desk.open()
    relay_keys(desk)
    for name in ("alpha", "delta", "gamma"):
        assert blame(desk, name).blamed == ("" if guilty == "coordinator" else "beta")
        assert "head of" in blame(desk, name).reason
    outcome = desk.lose()
    alpha = desk.houses["alpha"]
    alpha.handle(OutcomeEvent(outcome))
    assert alpha.ready.round == 2
