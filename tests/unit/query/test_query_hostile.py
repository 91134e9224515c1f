"""feddrm-query against a dishonest coordinator: nothing of a patient leaves before what it serves is verified."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from query_world import NAMES, Run, World, a_plan

from feddrm.contract import query_messages as q
from feddrm.contract.chunks import blob_hash
from feddrm.contract.errors import (
    ExitCode,
)
from feddrm.contract.names import SiloId
from feddrm.contract.roster import sign_roster
from feddrm.contract.signed_plan import sign_plan
from feddrm.contract.tickets import issue_ticket


def identity_trunk(world: World) -> bytes:
    """What a coordinator would serve to read patients as embeddings."""
    tensors = safetensors.numpy.load(world.trunk)
    tensors["trunk.0.weight"] = np.eye(7, 5, dtype=np.float32)
    return safetensors.numpy.save(tensors)


def serve_identity_trunk(world: World) -> None:
    world.trunk = identity_trunk(world)
    world.offer = replace(world.offer, trunk=blob_hash(world.trunk))


def serve_identity_trunk_with_an_own_statement(world: World) -> None:
    serve_identity_trunk(world)
    body = world.statement.model_copy(update={"trunk": bytes(32)}).body()
    forged = world.signed_by(NAMES, body)
    for name in NAMES:
        world.silos[name] = replace(world.silos[name], identity=Ed25519PrivateKey.generate())
    world.offer = replace(world.offer, statement=world.signed_by(NAMES, forged.body))


def serve_two_signatures(world: World) -> None:
    world.offer = replace(world.offer, statement=world.signed_by(NAMES[:2]))


def serve_one_signature_three_times(world: World) -> None:
    signed = world.signed_by(("hospital-a",))
    other = [replace(signed.signatures[0], key=world.silos[name].identity_public) for name in NAMES]
    world.offer = replace(world.offer, statement=replace(signed, signatures=tuple(other)))


def serve_a_plan_of_its_own(world: World) -> None:
    weak = a_plan(
        secure_aggregation={"threshold": 3, "minimum_cohort": 3, "colluders": 1, "clip": 2.0, "fraction_bits": 16}
    )
    world.offer = replace(world.offer, plan=sign_plan(weak, Ed25519PrivateKey.generate()).signed)


def serve_a_statement_of_another_plan(world: World) -> None:
    old = world.offer
    world.make_release(a_plan(name="second"))
    world.offer = replace(world.offer, statement=old.statement)


def serve_another_layout(world: World) -> None:
    body = world.statement.model_copy(update={"layout": bytes(32)}).body()
    world.offer = replace(world.offer, statement=world.signed_by(NAMES, body))


def serve_garbage_as_trunk(world: World) -> None:
    world.trunk = b"\x10" + bytes(7) + b"not a json header"
    world.offer = replace(world.offer, trunk=blob_hash(world.trunk))


def serve_an_endless_trunk(world: World) -> None:
    world.trunk = bytes(1 << 20)
    world.offer = replace(world.offer, trunk=blob_hash(world.trunk))


def serve_other_bytes_than_named(world: World) -> None:
    world.trunk = identity_trunk(world)


@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        (serve_identity_trunk, "not the one that the silos signed"),
        (serve_identity_trunk_with_an_own_statement, "signed by 0 silos"),
        (serve_two_signatures, "signed by 2 silos"),
        (serve_one_signature_three_times, "signed by 1 silos"),
        (serve_a_plan_of_its_own, "The plan is not signed"),
        (serve_a_statement_of_another_plan, "about another plan"),
        (serve_another_layout, "another layout"),
        (serve_garbage_as_trunk, "not a safetensors file"),
        (serve_an_endless_trunk, "not the one expected"),
        (serve_other_bytes_than_named, "another blob"),
    ],
)
def test_a_forged_release_is_refused_before_anything_is_embedded(
    world: World, run: Run, attack: Callable[[World], None], sentence: str
) -> None:
    attack(world)
    code, document, error = run("ask")
    assert code == ExitCode.VERIFICATION
    assert sentence in error
    assert document["error"]["kind"] == "verification"
    assert world.routed == 0
    assert world.seen == []


def forge(key: Ed25519PrivateKey | None = None, **changes: Any) -> Callable[[World], None]:
    def attack(world: World) -> None:
        world.ticket = lambda ticket: issue_ticket(ticket.model_copy(update=changes), key or world.round_key)

    return attack


def route_elsewhere(world: World) -> None:
    """The ticket says hospital-a, the route hospital-b."""
    world.rows = lambda rows: [q.RouteRow((replace(row.routes[0], silo=SiloId("hospital-b")),)) for row in rows]


def route_to_a_stranger(world: World) -> None:
    world.pick = lambda *_: "hospital-x"


def drop_a_route(world: World) -> None:
    world.rows = lambda rows: rows[1:]


@pytest.mark.parametrize("command", ["route", "ask"])
@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        (forge(Ed25519PrivateKey.generate()), "The ticket is not signed"),
        (forge(querier="another"), "another federation, querier or silo"),
        (forge(federation="cornea"), "another federation, querier or silo"),
        (forge(release=bytes(32)), "another release"),
        (forge(issued_ms=1, expires_ms=2), "expired"),
        (route_elsewhere, "another federation, querier or silo"),
        (route_to_a_stranger, "no part in the release"),
        (drop_a_route, "with 3 routes"),
    ],
)
def test_a_forged_route_is_refused(
    world: World, run: Run, command: str, attack: Callable[[World], None], sentence: str
) -> None:
    attack(world)
    code, _, error = run(command)
    assert code == ExitCode.VERIFICATION
    assert sentence in error
    assert world.seen == []


def test_the_coordinator_cannot_answer_itself(world: World, run: Run) -> None:
    world.on_ask = lambda _: bytes(400)
    code, _, error = run("ask")
    assert code == ExitCode.VERIFICATION
    assert "not an answer to the request" in error


def test_another_hospitals_answer_is_refused(world: World, run: Run) -> None:
    """Hospital B, having got hospital A's sealing key, still cannot sign as A."""
    world.on_ask = lambda ask: world.answer(ask, by=NAMES[(NAMES.index(ask.silo) + 1) % 3])
    code, _, error = run("ask")
    assert code == ExitCode.VERIFICATION
    assert "not signed by" in error


def test_an_answer_to_another_row_is_refused(world: World, run: Run) -> None:
    kept: list[bytes] = []

    def swap(ask: q.Ask) -> bytes:
        kept.append(world.answer(ask))
        return kept[0]

    world.on_ask = swap
    code, document, error = run("ask", "--in-flight", "1")
    assert code == ExitCode.VERIFICATION
    assert "not an answer to the request" in error
    assert [row["row"] for row in document["rows"]] == [1]


def test_a_sealing_key_in_a_roster_of_the_coordinators_own_is_refused(world: World, run: Run) -> None:
    world.signed_roster = sign_roster(world.roster.model_copy(update={"version": 2}), Ed25519PrivateKey.generate())
    code, _, error = run("ask")
    assert code == ExitCode.VERIFICATION
    assert "The roster is not signed" in error
    assert world.seen == []


def test_a_newer_roster_waits_for_a_person_and_changes_nothing(world: World, run: Run) -> None:
    world.signed_roster = sign_roster(world.roster.model_copy(update={"version": 2}), world.operator)
    code, document, error = run("ask")
    assert code == 0
    assert len(document["rows"]) == 4
    assert "waits for your approval" in error
    assert json.loads((world.querier / "startup" / "roster.signed").read_text())
