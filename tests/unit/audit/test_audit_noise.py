"""What an auditor is told of noise in the sums, and transcripts that contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from audit_tools import SILOS, Run, as_exported, failures, judged, rewrite
from test_audit_transcripts import ROUND_KEY, bundles, faults, outcome

from feddrm.contract.messages import RoundOutcome
from feddrm.contract.operator_messages import NoiseFound
from feddrm.contract.transcript import JobRecord, read_transcript, sign_transcript

__all__ = ["bundles"]

SHORT = NoiseFound(5120, 0.7513, 3.2e-41, 3200, True)
SOUND = NoiseFound(5120, 0.9985, 0.9, 3200, False)


def written(paper: Any, name: str, noise: NoiseFound | None, *outcomes: RoundOutcome) -> Path:
    file: Path = paper.path / name
    record = JobRecord(paper.plan.signed, paper.roster, outcomes, noise)
    file.write_text(sign_transcript([record], "retina", ROUND_KEY), encoding="utf-8")
    return file


def said(report: dict[str, Any], name: str) -> list[tuple[str, str]]:
    checks = [check for one in report["transcripts"] for check in one["checks"]]
    return [(check["status"], check["message"]) for check in checks if check["name"] == name]


def test_missing_noise_fails_the_transcript_and_no_ledger(paper: Any, run: Run, bundles: list[Path]) -> None:
    file = written(paper, "t.json", SHORT, *(outcome(paper, n) for n in (1, 2, 3)))
    code, report = judged(run, *bundles, "--root", paper.root, "--transcript", file)
    assert (code, failures(report)) == (6, set())
    (check,) = said(report, "noise")
    assert check[0] == "FAIL"
    assert "NOISE IS MISSING: 75.1 % of the planned variance in 5,120 places" in check[1]
    assert "below 1e-40" in check[1]


def test_noise_as_planned_is_said_in_the_report(paper: Any, run: Run, bundles: list[Path], tmp_path: Path) -> None:
    file = written(paper, "t.json", SOUND, *(outcome(paper, n) for n in (1, 2, 3)))
    html = tmp_path / "report.html"
    code, _, _ = run("report", *bundles, "--root", paper.root, "--transcript", file, "--html", html)
    assert code == 0
    text = html.read_text(encoding="utf-8")
    assert "99.9 % of the planned variance in 5,120 places that hold noise alone; no hospital" in " ".join(text.split())
    assert "measured by the coordinator" in " ".join(text.split())


def test_what_nobody_measured_is_not_said(paper: Any, run: Run, bundles: list[Path]) -> None:
    file = written(paper, "t.json", None, *(outcome(paper, n) for n in (1, 2, 3)))
    code, report = judged(run, *bundles, "--root", paper.root, "--transcript", file)
    assert (code, said(report, "noise")) == (0, [])


@pytest.mark.parametrize("field", ["ratio", "places", "short"])
@pytest.mark.parametrize("value", [None, "1", -1, [], 1e300, True, {}])
def test_a_finding_of_another_form_is_no_transcript(paper: Any, field: str, value: object) -> None:
    if (field, value) == ("short", True):
        return
    file = written(paper, "t.json", SOUND)
    whole = json.loads(file.read_text())
    body = json.loads(whole["body"])
    body["jobs"][0]["noise"][field] = value
    from feddrm.contract.errors import MalformedError

    with pytest.raises(MalformedError):
        JobRecord.from_json(body["jobs"][0])


def test_a_finding_that_was_changed_is_not_signed(paper: Any, run: Run, bundles: list[Path]) -> None:
    file = written(paper, "t.json", SHORT, *(outcome(paper, n) for n in (1, 2, 3)))
    rewrite(file, lambda whole: whole.update(body=whole["body"].replace('"short": true', '"short": false')))
    code, report = judged(run, *bundles, "--root", paper.root, "--transcript", file)
    assert code == 6
    assert faults(report) == ["The transcript is not signed by a round key of this federation's rosters."]


def test_records_of_before_noise_was_looked_for_are_read(paper: Any) -> None:
    record = JobRecord(paper.plan.signed, paper.roster, ())
    older = record.to_json()
    del older["noise"]
    assert JobRecord.from_json(older) == record


def test_acknowledgements_of_two_results_fail_both_transcripts_and_name_who_signed_both(
    paper: Any, run: Run, bundles: list[Path]
) -> None:
    """a, b and c signed one model, b, c and d another: whichever is read last must not decide."""
    first = written(paper, "first.json", None, *(outcome(paper, n) for n in (1, 2)))
    second = written(paper, "second.json", None, outcome(paper, 1), outcome(paper, 2, silos=SILOS[1:], model=b"x" * 32))
    for order in ((first, second), (second, first)):
        arguments = [part for file in order for part in ("--transcript", file)]
        code, report = judged(run, *bundles, "--root", paper.root, *arguments)
        assert (code, failures(report)) == (6, set())
        told = faults(report)
        assert len(told) == 2
        for message in told:
            assert "round 2 of stage 1" in message
            assert str(first) in message
            assert str(second) in message
            assert "b, c signed both" in message
        notes = [c["message"] for one in report["ledgers"] for c in one["checks"] if c["status"] == "NOTE"]
        assert any("acknowledged with two results" in note for note in notes)


def test_the_same_acknowledgements_in_two_transcripts_contradict_nothing(
    paper: Any, run: Run, bundles: list[Path]
) -> None:
    first = written(paper, "first.json", None, outcome(paper, 1))
    second = written(paper, "second.json", None, *(outcome(paper, n, silos=SILOS[1:]) for n in (1, 2, 3)))
    code, report = judged(run, *bundles, "--root", paper.root, "--transcript", first, "--transcript", second)
    assert (code, failures(report), faults(report)) == (0, set(), [])


def test_who_acknowledged_only_the_second_result_must_have_charged_the_round_too(
    paper: Any, run: Run, bundles: list[Path]
) -> None:
    from audit_tools import reseal

    first = written(paper, "first.json", None, *(outcome(paper, n) for n in (1, 2, 3)))
    acks = outcome(paper, 3, silos=SILOS[1:], model=b"x" * 32)
    second = written(paper, "second.json", None, *(outcome(paper, n) for n in (1, 2)), acks)
    cut = json.loads(bundles[3].read_text())
    leaf = next(n for n, leaf in enumerate(cut["leaves"]) if '"RESERVE"' in leaf and '"round":3' in leaf)
    reseal(cut, paper.keys["d"].identity, cut["leaves"][:leaf])
    bundles[3].write_text(as_exported(cut))
    for order in ((first, second), (second, first)):
        arguments = [part for file in order for part in ("--transcript", file)]
        code, report = judged(run, bundles[3], "--root", paper.root, *arguments)
        assert (code, failures(report)) == (6, {("d", "transcript")})


def test_read_transcript_returns_what_was_found(paper: Any) -> None:
    file = written(paper, "t.json", SHORT)
    (record,) = read_transcript(
        file.read_bytes(), federation="retina", keys=[ROUND_KEY.public_key().public_bytes_raw()]
    )
    assert record.noise == SHORT
