"""The coordinator's transcript against the hospitals' ledgers: who lies, and what the coordinator's word is worth."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from audit_tools import SILOS, Run, as_exported, failures, judged, make_roster, reseal
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.audit.transcripts import Testimony as Heard
from feddrm.audit.transcripts import check_transcript
from feddrm.contract.messages import RoundOutcome
from feddrm.contract.roster import Roster
from feddrm.contract.rounds import Ack, Lost, sign_ack, sign_lost
from feddrm.contract.transcript import JobRecord, sign_transcript
from privacy.handover import Carry
from privacy.history import Published

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


def lost(paper: Any, number: int) -> RoundOutcome:
    statement = Lost(plan=paper.plan.hash, round=number, reason="late")
    return RoundOutcome(number, lost=sign_lost(statement, ROUND_KEY))


def faults(report: dict[str, Any]) -> list[str]:
    """What is said against transcripts themselves."""
    return [c["message"] for said in report["transcripts"] for c in said["checks"] if c["status"] == "FAIL"]


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
    reseal(cut, paper.keys["d"].identity, cut["leaves"][:first])
    bundles[3].write_text(as_exported(cut))
    code, report = verdict(paper, run, bundles[3:], file)
    assert (code, failures(report)) == (6, {("d", "transcript")})


def test_the_coordinator_alone_proves_nothing(paper: Any, run: Run, bundles: list[Path]) -> None:
    forged = Lost(plan=paper.plan.hash, round=3, reason="why not")
    for build in (
        lambda: transcript(paper, outcome(paper, 1, silos=SILOS[:2])),
        lambda: transcript(paper, outcome(paper, 2)),
        lambda: transcript(paper, outcome(paper, 1, silos=("a", "a", "a"))),
        lambda: transcript(
            paper, outcome(paper, 1), outcome(paper, 2), RoundOutcome(3, lost=sign_lost(forged, paper.operator))
        ),
        lambda: transcript(paper, outcome(paper, 1), key=Ed25519PrivateKey.generate()),
        lambda: transcript(paper, outcome(paper, 1), federation="other"),
    ):
        code, report = verdict(paper, run, bundles, build())
        assert (code, report["verified"]) == (6, False)
        # What does not hold in the coordinator's file is no fault of any hospital.
        assert failures(report) == set()
        assert all(ledger["verified"] for ledger in report["ledgers"])
        assert len(faults(report)) == 1


def test_a_round_declared_lost_speaks_against_the_coordinator_and_against_no_ledger(
    paper: Any, run: Run, bundles: list[Path]
) -> None:
    """A coordinator keeps the acks of a certified round to itself and signs that the round was lost."""
    file = transcript(paper, outcome(paper, 1), outcome(paper, 2), lost(paper, 3))
    code, report = verdict(paper, run, bundles, file)
    assert (code, failures(report)) == (6, set())
    (fault,) = faults(report)
    assert "round 3 of first is declared lost, on the coordinator's word alone" in fault
    assert "released by the ledgers of a, b, c, d, which agree on its sum and model" in fault
    for ledger in report["ledgers"]:
        assert ledger["verified"]
        (note,) = (c for c in ledger["checks"] if c["name"] == "transcript" and c["status"] == "NOTE")
        assert json.loads(json.loads(Path(ledger["file"]).read_text())["leaves"][note["leaf"]])["round"] == 3

    code, out, _ = run("verify", *bundles, "--root", paper.root, "--transcript", file)
    assert code == 6
    assert "Verified: 4 ledgers." in out
    assert f"NOT VERIFIED: the coordinator's transcript {file}" in out

    # One ledger alone: its word against the coordinator's, and that is what is said.
    code, report = verdict(paper, run, bundles[:1], file)
    assert (code, failures(report)) == (6, set())
    assert faults(report)[0].endswith("released by the ledger of a; no acknowledgement here decides between them")


def test_acks_in_another_transcript_speak_against_one_that_declares_the_round_lost(
    paper: Any, run: Run, bundles: list[Path]
) -> None:
    honest = transcript(paper, *(outcome(paper, n) for n in (1, 2, 3)))
    honest = honest.rename(paper.path / "honest.json")
    other = transcript(paper, outcome(paper, 1), outcome(paper, 2), lost(paper, 3))
    code, report = judged(run, *bundles, "--root", paper.root, "--transcript", honest, "--transcript", other)
    assert (code, failures(report)) == (6, set())
    assert [said["verified"] for said in report["transcripts"]] == [True, False]
    assert faults(report)[0].endswith("as many hospitals acknowledged it as the plan demands")


def test_a_lost_round_that_no_ledger_has_is_no_fault(paper: Any, run: Run, bundles: list[Path]) -> None:
    file = transcript(paper, *(outcome(paper, n) for n in (1, 2, 3)), lost(paper, 4))
    # The plan has three rounds: a fourth cannot be lost, either.
    assert faults(verdict(paper, run, bundles, file)[1]) == ["round 4 of first: The plan has no round 4."]
    for name in SILOS:
        cut = json.loads((paper.path / f"{name}.ledger").read_text())
        first = next(n for n, leaf in enumerate(cut["leaves"]) if '"RESERVE"' in leaf and '"round":3' in leaf)
        reseal(cut, paper.keys[name].identity, cut["leaves"][:first])
        (paper.path / f"{name}.ledger").write_text(as_exported(cut | {"witnessed": {}, "sightings": []}))
    file = transcript(paper, outcome(paper, 1), outcome(paper, 2), lost(paper, 3))
    code, report = verdict(paper, run, bundles, file)
    assert (code, failures(report), faults(report)) == (0, set(), [])
    (check,) = report["transcripts"][0]["checks"]
    assert check["message"].startswith("2 rounds are acknowledged by as many hospitals as their plan demands; 1 are")


def test_acks_of_the_threshold_speak_against_a_ledger_even_where_all_ledgers_agree(
    paper: Any, run: Run, bundles: list[Path]
) -> None:
    file = transcript(paper, outcome(paper, 1), outcome(paper, 2, model=b"x" * 32), lost(paper, 3))
    code, report = verdict(paper, run, bundles, file)
    assert (code, failures(report)) == (6, {(name, "transcript") for name in SILOS})
    assert len(faults(report)) == 1


def test_a_ledger_that_answers_for_a_lost_one_charged_what_its_hospital_acknowledged() -> None:
    """The job is carried in full, so its rounds need no leaves of their own; another job's do."""
    key, plan = b"k" * 32, b"p" * 32
    heard = Heard(published={(plan, 1, 1): (Published(bytes(32), bytes(32)), frozenset({key}))})
    carry = Carry(plan, "first", 1e-5, 1.0, 1.0, (), "id", 1000)
    assert list(check_transcript([carry], [key], heard)) == []
    (fault,) = check_transcript([replace(carry, plan=b"q" * 32)], [key], heard)
    assert not fault.passed


def test_the_report_for_the_board_blames_the_coordinator(paper: Any, run: Run, bundles: list[Path]) -> None:
    file = transcript(paper, outcome(paper, 1), outcome(paper, 2), lost(paper, 3))
    file = file.rename(paper.path / "<script>.json")
    html = paper.path / "out.html"
    code, _, _ = run("report", *bundles, "--root", paper.root, "--transcript", file, "--html", html)
    assert code == 6
    text = html.read_text(encoding="utf-8")
    assert "NOT verified" in text
    assert "These ledgers failed" not in text
    assert "No ledger failed" in text
    assert "&lt;script&gt;.json (1 of 1 checks)" in text
    assert "<script>" not in text
    # Among what failed, in the annex of all checks, and among the files that were read.
    assert text.count('<th scope="row">the coordinator</th>') == 2
    assert sha256(file.read_bytes()).hexdigest() in text
    assert text.count('<span class="PASS">verified</span>') == 4


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
