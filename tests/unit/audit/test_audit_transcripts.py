"""The coordinator's transcript against the hospitals' ledgers: who lies, and what the coordinator's word is worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audit_tools import SILOS, Run, failures, judged, make_roster
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.messages import RoundOutcome
from feddrm.contract.roster import Roster
from feddrm.contract.rounds import Ack, Lost, sign_ack, sign_lost
from feddrm.contract.transcript import JobRecord, sign_transcript

ROUND_KEY = Ed25519PrivateKey.from_private_bytes(b"r" * 32)


@pytest.fixture
def bundles(paper: Any) -> list[Path]:
    """The hospitals' exports under a roster that names the coordinator's round key."""
    from feddrm.contract.documents import parse_body
    from feddrm.contract.roster import sign_roster

    roster = parse_body(make_roster(paper.keys, paper.operator, 2).body, Roster, what="roster")
    named = roster.model_copy(update={"round_key": ROUND_KEY.public_key().public_bytes_raw()})
    paper.roster = sign_roster(named, paper.operator)
    return [paper.export(name) for name in SILOS]


def outcome(paper: Any, number: int, *, silos: tuple[str, ...] = SILOS[:3], model: bytes | None = None) -> RoundOutcome:
    ack = Ack(
        plan=paper.plan.hash,
        round=number,
        session=bytes(32),
        sum=bytes(32),
        count=3,
        model=model or paper.model(number),
    )
    return RoundOutcome(number, tuple(sign_ack(ack, paper.keys[name].identity) for name in silos), bytes(32))


def transcript(
    paper: Any, *outcomes: RoundOutcome, key: Ed25519PrivateKey = ROUND_KEY, federation: str = "retina"
) -> Path:
    file = paper.path / "transcript.json"
    record = JobRecord(paper.plan.signed, paper.roster, outcomes)
    file.write_text(sign_transcript([record], federation, key), encoding="utf-8")
    return file


def verdict(paper: Any, run: Run, bundles: list[Path], file: Path) -> tuple[int, dict[str, Any]]:
    return judged(run, *bundles, "--root", paper.root, "--transcript", file)


def test_a_transcript_that_fits_is_said_to(paper: Any, run: Run, bundles: list[Path]) -> None:
    code, report = verdict(paper, run, bundles, transcript(paper, *(outcome(paper, n) for n in (1, 2, 3))))
    assert (code, failures(report)) == (0, set())
    said = [c["message"] for ledger in report["ledgers"] for c in ledger["checks"] if c["name"] == "transcript"]
    assert said == ["3 RELEASE leaves are what the hospitals acknowledged, by the coordinator's transcript"] * 4


def test_a_hospital_that_says_another_model_than_was_acknowledged_is_named_with_its_leaf(
    paper: Any, run: Run, bundles: list[Path]
) -> None:
    file = transcript(paper, outcome(paper, 1), outcome(paper, 2, model=b"x" * 32), outcome(paper, 3))
    code, report = verdict(paper, run, bundles[:1], file)
    assert (code, failures(report)) == (6, {("a", "transcript")})
    (fault,) = (c for c in report["ledgers"][0]["checks"] if c["status"] == "FAIL")
    leaf = json.loads(json.loads(bundles[0].read_text())["leaves"][fault["leaf"]])
    assert (leaf["type"], leaf["round"]) == ("RELEASE", 2)


def test_what_a_hospital_acknowledged_it_must_have_charged(paper: Any, run: Run, bundles: list[Path]) -> None:
    """d acknowledges a fourth round, of which its ledger knows nothing."""
    acks = SILOS[1:]
    file = transcript(paper, *(outcome(paper, n) for n in (1, 2)), outcome(paper, 3, silos=acks))
    cut = json.loads(bundles[3].read_text())
    first = next(n for n, leaf in enumerate(cut["leaves"]) if '"RESERVE"' in leaf and '"round":3' in leaf)
    from audit_tools import reseal

    reseal(cut, paper.keys["d"].identity, cut["leaves"][:first])
    bundles[3].write_text(json.dumps(cut))
    code, report = verdict(paper, run, bundles[3:], file)
    assert (code, failures(report)) == (6, {("d", "transcript")})


def test_the_coordinator_alone_proves_nothing(paper: Any, run: Run, bundles: list[Path]) -> None:
    lost = Lost(plan=paper.plan.hash, round=3, reason="why not")
    for build in (
        lambda: transcript(paper, outcome(paper, 1, silos=SILOS[:2])),
        lambda: transcript(paper, outcome(paper, 2)),
        lambda: transcript(paper, outcome(paper, 1, silos=("a", "a", "a"))),
        lambda: transcript(
            paper, outcome(paper, 1), outcome(paper, 2), RoundOutcome(3, lost=sign_lost(lost, paper.operator))
        ),
        lambda: transcript(paper, outcome(paper, 1), key=Ed25519PrivateKey.generate()),
        lambda: transcript(paper, outcome(paper, 1), federation="other"),
    ):
        code, report = verdict(paper, run, bundles[:1], build())
        assert code == 6
        assert failures(report) == {("a", "transcript")}


def test_a_round_that_was_declared_lost_and_released_all_the_same(paper: Any, run: Run, bundles: list[Path]) -> None:
    lost = RoundOutcome(3, lost=sign_lost(Lost(plan=paper.plan.hash, round=3, reason="late"), ROUND_KEY))
    code, report = verdict(paper, run, bundles[:1], transcript(paper, outcome(paper, 1), outcome(paper, 2), lost))
    assert (code, failures(report)) == (6, {("a", "transcript")})


def test_an_older_transcript_is_a_note(paper: Any, run: Run, bundles: list[Path]) -> None:
    code, report = verdict(paper, run, bundles[:1], transcript(paper, outcome(paper, 1)))
    assert (code, failures(report)) == (0, set())
    notes = [c["message"] for c in report["ledgers"][0]["checks"] if c["status"] == "NOTE"]
    assert "2 RELEASE leaves are of rounds after the transcript's last" in notes


@pytest.mark.parametrize("change", ["flip", "cut", "keys", "text", "nested", "bytes"])
def test_other_files_are_no_transcripts(paper: Any, run: Run, bundles: list[Path], change: str) -> None:
    file = transcript(paper, outcome(paper, 1))
    fields = json.loads(file.read_text())
    if change == "flip":
        fields["body"] = fields["body"].replace('"round": 1', '"round": 2')
    elif change == "keys":
        fields["more"] = 1
    elif change == "text":
        fields["signed"] = 7
    file.write_text(json.dumps(fields))
    if change == "cut":
        file.write_text(file.read_text()[:-9])
    elif change == "nested":
        file.write_text("[" * 100_000)
    elif change == "bytes":
        file.write_bytes(b"\xff\xfe")
    code, _, err = run("verify", *bundles[:1], "--root", paper.root, "--transcript", file)
    assert code == (6 if change == "flip" else 3)
    assert "Traceback" not in err


def test_records_survive(paper: Any, bundles: list[Path]) -> None:
    record = JobRecord(paper.plan.signed, paper.roster, (outcome(paper, 1), outcome(paper, 2)))
    assert JobRecord.from_json(json.loads(record.to_bytes())) == record
    assert replace(record, outcomes=()).to_bytes() != record.to_bytes()
