"""feddrm-query against an honest coordinator, a dishonest one, and an unlucky day."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from query_world import LABELS, NAMES, Refuse, World, a_plan, features_of

from feddrm.cli import invoke
from feddrm.contract import query_messages as q
from feddrm.contract.chunks import blob_hash
from feddrm.contract.errors import (
    BudgetError,
    ExitCode,
    MalformedError,
    NotAuthorisedError,
    UnreachableError,
)
from feddrm.contract.names import SiloId
from feddrm.contract.roster import sign_roster
from feddrm.contract.signed_plan import sign_plan
from feddrm.contract.tickets import issue_ticket
from feddrm.method.coarse import Grid, query_bits
from feddrm.method.model import Embedder
from feddrm.query.cli import app
from feddrm.query.coordinator import Patience
from feddrm.transport.client import BusyError
from feddrm.transport.recorder import read_recording

ROWS = [(31.7, "f"), (64.2, "m"), (50.9, "f"), (12.3, "m")]
Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str]) -> Run:
    table = world.directory / "patients.csv"
    table.write_text("age,sex,ignored\n" + "".join(f"{age},{sex},x\n" for age, sex in ROWS))

    def run(command: str, *arguments: str, file: Path = table) -> tuple[int, Any, str]:
        code = invoke(app, [command, str(file), "--dir", str(world.querier), "--format", "json", *arguments])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else None, captured.err

    return run


def test_route_names_a_silo_and_nothing_else(run: Run) -> None:
    code, document, _ = run("route")
    assert code == 0
    assert document == {"rows": [{"row": i + 1, "silo": NAMES[i % 3]} for i in range(4)]}


def test_ask_gives_each_hospitals_own_answer(world: World, run: Run) -> None:
    code, document, _ = run("ask")
    assert code == 0
    for index, (row, (age, sex)) in enumerate(zip(document["rows"], ROWS, strict=True)):
        prediction = world.predictor(NAMES[index % 3]).predict(features_of(age, sex)[None])
        expected = float(prediction.probabilities[0].max())
        assert row == {
            "row": index + 1,
            "silo": NAMES[index % 3],
            "label": LABELS[int(prediction.classes[0])],
            "probability": pytest.approx(expected, abs=1e-5),
        }
    assert len(set(world.seen)) == 4


def test_the_coordinator_sees_embeddings_and_ciphertext_only(world: World, run: Run) -> None:
    code, document, _ = run("ask")
    assert code == 0
    traffic = b"".join(record.data for record in read_recording(world.directory / "recording"))
    assert traffic.count(b"condition-") == traffic.count(world.offer.plan.body) * 2 == 2
    assert document["rows"][0]["label"] in LABELS
    for age, sex in ROWS:
        features = features_of(age, sex)
        assert features.tobytes() not in traffic
        assert features[:1].tobytes() not in traffic
        assert str(age).encode() not in traffic


def test_a_route_request_carries_the_release_and_packed_codes(world: World, run: Run) -> None:
    """Byte for byte: nothing else of a patient is in it, and the codes are of the plan's size."""
    code, _, _ = run("route")
    assert code == 0
    features = np.stack([features_of(age, sex) for age, sex in ROWS])
    plan, trunk = world.plan.plan, safetensors.numpy.load(world.trunk)
    codes = Grid.of(plan, trunk).encode(Embedder.from_tensors(plan, trunk).embed(features))
    assert query_bits(plan) == 14
    assert {len(entry) for entry in codes} == {2}
    (request,) = [
        record.data
        for record in read_recording(world.directory / "recording")
        if record.method.endswith("/Route") and record.direction == "received"
    ]
    release = hashlib.sha256(world.offer.statement.body).digest()
    assert request == b"\x0a\x20" + release + b"".join(b"\x12\x02" + entry for entry in codes)


def test_many_rows_keep_their_order(world: World, run: Run) -> None:
    table = world.directory / "many.csv"
    table.write_text("age,sex\n" + "".join(f"{n % 100},f\n" for n in range(300)))
    code, document, _ = run("ask", "--in-flight", "7", file=table)
    assert code == 0
    assert [row["row"] for row in document["rows"]] == list(range(1, 301))
    by_age = {n: row["probability"] for n, row in enumerate(document["rows"]) if row["silo"] == "hospital-a"}
    assert len({round(p, 5) for p in by_age.values()}) > 20


def test_rows_go_to_a_private_file(world: World, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    out = world.directory / "out.csv"
    code = invoke(app, ["ask", str(world.directory / "patients.csv"), "--dir", str(world.querier), "--out", str(out)])
    assert capsys.readouterr().out == f"Wrote 4 rows to {out}.\n"
    assert code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    lines = out.read_text().splitlines()
    assert lines[0] == "row,silo,label,probability"
    assert len(lines) == 5
    code, document, _ = run("route", "--out", str(world.directory / "out.json"))
    assert document == {"out": str(world.directory / "out.json"), "rows_written": 4}
    assert len(json.loads((world.directory / "out.json").read_text())["rows"]) == 4


def test_the_trunk_is_fetched_once_and_again_when_damaged(world: World, run: Run) -> None:
    assert run("route")[0] == run("route")[0] == 0
    assert world.fetches == 1
    (trunk,) = (world.querier / "state" / "releases").glob("*/trunk.safetensors")
    trunk.write_bytes(trunk.read_bytes()[:-1] + b"!")
    assert run("route")[0] == 0
    assert world.fetches == 2
    assert trunk.read_bytes() == world.trunk


def test_a_part_of_a_trunk_longer_than_the_whole_heals(world: World, run: Run) -> None:
    assert run("route")[0] == 0
    (trunk,) = (world.querier / "state" / "releases").glob("*/trunk.safetensors")
    trunk.rename(trunk.with_name("trunk.safetensors.part"))
    with trunk.with_name("trunk.safetensors.part").open("ab") as part:
        part.write(b"more")
    assert run("route")[0] == 0
    assert trunk.read_bytes() == world.trunk


# A dishonest coordinator.


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
    world.routes = lambda routes: [replace(route, silo=SiloId("hospital-b")) for route in routes]


def route_to_a_stranger(world: World) -> None:
    world.pick = lambda *_: "hospital-x"


def drop_a_route(world: World) -> None:
    world.routes = lambda routes: routes[1:]


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


# An unlucky day.


def test_a_busy_hospital_is_asked_again_with_the_same_bytes(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, BusyError("full"), BusyError("full"))
    code, document, _ = run("ask", "--in-flight", "1")
    assert code == 0
    assert len(document["rows"]) == 4
    assert world.seen[0] == world.seen[1] == world.seen[2]
    assert len(set(world.seen)) == 4


def test_a_coordinator_that_is_restarted_is_asked_again_with_the_same_bytes(world: World, run: Run) -> None:
    world.hiccups = 2
    code, document, _ = run("ask", "--in-flight", "1")
    assert code == 0
    assert len(document["rows"]) == 4
    assert world.seen[0] == world.seen[1] == world.seen[2]
    assert world.routed == 4


def test_patience_ends(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, *[BusyError("full")] * 10)
    code, document, error = run("ask", "--patience", "0")
    assert code == ExitCode.UNREACHABLE
    assert "is still busy" in error
    assert document["error"]["code"] == 7


def test_a_hospital_that_went_away_is_given_up_for_the_next_choice(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, UnreachableError("gone"))
    code, document, _ = run("ask", "--in-flight", "1")
    assert code == 0
    assert document["rows"][0]["silo"] == NAMES[4 % 3]
    assert [row["row"] for row in document["rows"]] == [1, 2, 3, 4]


def test_nobody_is_rerouted_for_ever(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, *[UnreachableError("gone")] * 50)
    code, _, _ = run("ask", "--in-flight", "1")
    assert code == ExitCode.UNREACHABLE
    assert len(world.seen) == 3


def test_asks_in_flight_are_kept_when_one_fails(world: World, run: Run) -> None:
    world.on_ask = Refuse(world, BudgetError("spent"))
    code, document, _ = run("ask", "--in-flight", "4")
    assert code == ExitCode.BUDGET
    assert len(document["rows"]) == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [(BudgetError("spent"), ExitCode.BUDGET), (NotAuthorisedError("no"), ExitCode.NOT_AUTHORISED)],
)
def test_what_was_answered_before_a_refusal_is_kept(
    world: World, run: Run, error: BudgetError | NotAuthorisedError, code: ExitCode
) -> None:
    answered: list[q.Ask] = []

    def second_says_no(ask: q.Ask) -> bytes:
        answered.append(ask)
        if ask.silo == NAMES[1]:
            raise error
        return world.answer(ask)

    world.on_ask = second_says_no
    world.pick = lambda number, _: NAMES[number % 2]
    actual, document, message = run("ask", "--in-flight", "1")
    assert actual == code
    # Rows of the other hospital are asked all the same; who refused once is not asked again, and nobody in its place.
    assert [(row["row"], row["silo"]) for row in document["rows"]] == [(1, NAMES[0]), (3, NAMES[0])]
    assert [ask.silo for ask in answered] == [NAMES[0], NAMES[1], NAMES[0]]
    assert "no more answers" in document["incomplete"] or "refuses" in document["incomplete"]
    (refused,) = document["refused"]
    assert (refused["silo"], refused["rows"]) == (NAMES[1], [2, 4])
    assert "Not answered: rows 2, 4." in message
    assert "2 of 4 rows were answered." in message


def test_a_wrong_number_of_classes_is_refused(world: World, run: Run) -> None:
    class Three:
        def predict(self, features: Any) -> Any:
            return replace_probabilities(np.full((len(features), 3), 1 / 3, dtype=np.float32))

    def replace_probabilities(values: Any) -> Any:
        from feddrm.method.model import Prediction

        return Prediction(values.argmax(axis=1), values)

    world.predictor = lambda _: Three()  # type: ignore[method-assign,assignment,return-value]
    code, _, error = run("ask")
    assert code == ExitCode.VERIFICATION
    assert "3 classes" in error


def test_nothing_released_yet(world: World, run: Run) -> None:
    world.in_service = False
    code, _, error = run("route")
    assert code == ExitCode.UNREACHABLE
    assert "No release is in service yet" in error


# Wrong input.


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sex\nf\n", "'age'"),
        ("age,sex\n", "no records"),
        ("age,sex\n1,x\n", "line 2, column 'sex'"),
        ("age,sex\nabc,f\n", "line 2, column 'age'"),
    ],
)
def test_a_wrong_table_is_one_sentence(world: World, run: Run, text: str, sentence: str) -> None:
    table = world.directory / "wrong.csv"
    table.write_text(text)
    code, document, error = run("route", file=table)
    assert code == ExitCode.INPUT
    assert sentence in error
    assert "Traceback" not in error
    assert document["error"]["kind"] == "input"


def test_a_missing_table_is_found_before_anybody_is_called(run: Run, tmp_path: Path) -> None:
    code, _, error = run("route", file=tmp_path / "nothing.csv")
    assert code == ExitCode.INPUT
    assert "nothing.csv" in error


def test_a_directory_that_has_not_joined(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    table = world.directory / "t.csv"
    table.write_text("age,sex\n1,f\n")
    assert invoke(app, ["ask", str(table), "--dir", str(tmp_path / "empty")]) == ExitCode.INPUT
    assert "holds no keys" in capsys.readouterr().err


# Patience itself.


def test_pauses_grow_jittered_and_end_in_time() -> None:
    pauses: list[float] = []
    clock = [0.0]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    async def busy() -> None:
        raise BusyError("full")

    with pytest.raises(BusyError):
        asyncio.run(Patience(100, sleep, lambda: clock[0]).retry(busy))
    assert 80 < sum(pauses) <= 100
    assert len(set(pauses)) == len(pauses)
    for n, pause in enumerate(pauses):
        bound = min(0.1 * 2**n, 10)
        assert bound / 2 <= pause <= bound


def test_only_busy_is_retried() -> None:
    calls = []

    async def fail() -> None:
        calls.append(1)
        raise MalformedError("no")

    with pytest.raises(MalformedError):
        asyncio.run(Patience(100).retry(fail))
    assert calls == [1]
