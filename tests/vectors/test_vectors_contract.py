"""The frozen documents around a round: the code makes them byte for byte, and verifies them as they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vectors_contract import Json, contract_json

from feddrm.contract import labels
from feddrm.contract.announce import Place, check_announcement, outcome_hash
from feddrm.contract.documents import parse_body
from feddrm.contract.errors import VerificationError
from feddrm.contract.messages import RoundOutcome
from feddrm.contract.release import Statement
from feddrm.contract.rounds import Lost, verify_ack
from feddrm.contract.signed import Signature, Signed, verify
from feddrm.contract.signed_plan import SignedPlan, verify_plan
from secagg.session import Announcement

FROZEN = Path(__file__).resolve().parent / "frozen" / "contract.json"
SILOS = ("silo-0", "silo-1", "silo-2")
USED = ("PLAN", "PLAN_HASH", "ROUND_ACK", "ROUND_LOST", "RELEASE")


@pytest.fixture(scope="module")
def frozen() -> Json:
    document: Json = json.loads(FROZEN.read_text())
    return document


def key_of(frozen: Json, name: str) -> bytes:
    return bytes.fromhex(frozen["identities"][name]["public"])


def signed(frozen: Json, part: str, name: str) -> Signed:
    signature = bytes.fromhex(frozen[part]["signatures"][name])
    return Signed(frozen[part]["body"].encode(), (Signature(key_of(frozen, name), signature),))


def plan_of(frozen: Json) -> SignedPlan:
    return verify_plan(signed(frozen, "plan", "operator"), federation="vectors", operator=key_of(frozen, "operator"))


def test_the_plan_is_verified_and_has_its_hash(frozen: Json) -> None:
    plan = plan_of(frozen)
    assert plan.hash.hex() == frozen["plan"]["hash"]
    assert plan.plan.body().decode() == frozen["plan"]["body"]


def test_acks_of_all_silos_and_the_lost_round_are_verified(frozen: Json) -> None:
    acks = [signed(frozen, "ack", name) for name in SILOS]
    for name, ack in zip(SILOS, acks, strict=True):
        assert verify_ack(ack, identity=key_of(frozen, name)).plan.hex() == frozen["plan"]["hash"]
        with pytest.raises(VerificationError):
            verify_ack(ack, identity=key_of(frozen, "coordinator"))
    ack = verify_ack(acks[0], identity=key_of(frozen, "silo-0"))
    assert outcome_hash(RoundOutcome(1, tuple(acks), ack.sum)).hex() == frozen["ack"]["previous"]
    lost = signed(frozen, "lost", "coordinator")
    body = verify(lost, labels.ROUND_LOST, key_of(frozen, "coordinator"), what="The record")
    assert parse_body(body, Lost, what="The record").round == 1
    assert outcome_hash(RoundOutcome(1, lost=lost)).hex() == frozen["lost"]["previous"]


def test_announcements_are_what_a_silo_derives_from_the_plan(frozen: Json) -> None:
    plan = plan_of(frozen)
    previous = {"none": bytes(32).hex(), "acknowledged": frozen["ack"]["previous"], "lost": frozen["lost"]["previous"]}
    for entry in frozen["announcements"]:
        announcement = Announcement.decode(bytes.fromhex(entry["body"]))
        place = Place(
            plan=plan.hash,
            roster=announcement.roster,
            layout=announcement.layout,
            words32=entry["words32"],
            round=announcement.round,
            model=announcement.model,
            previous=bytes.fromhex(previous[entry["previous"]]),
        )
        check_announcement(announcement, plan.plan, place, "silo-0")
        assert announcement.round == (1 if entry["previous"] == "none" else 2)
    assert len({entry["body"] for entry in frozen["announcements"]}) == 3


def test_the_release_is_signed_by_every_silo(frozen: Json) -> None:
    for name in SILOS:
        body = verify(signed(frozen, "release", name), labels.RELEASE, key_of(frozen, name), what="The release")
        assert parse_body(body, Statement, what="The release").plan.hex() == frozen["plan"]["hash"]


@pytest.mark.parametrize("label", USED)
def test_a_change_of_a_label_of_these_documents_breaks_the_file(
    frozen: Json, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert contract_json() == frozen
    monkeypatch.setattr(labels, label, vars(labels)[label] + b"!")
    made = contract_json()
    for value in made.values():
        if isinstance(value, dict):
            value.pop("signed_under", None)
    assert any(
        made[part][field] != frozen[part][field] for part in ("plan", "ack", "lost", "release") for field in made[part]
    )
