"""What is no bundle, plan or root, and what breaks accountants: refused in words, never a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from audit_tools import Run, failures, judged, rewrite

from feddrm.contract import labels
from feddrm.contract.errors import ExitCode
from feddrm.contract.signed import Signed, sign
from privacy.canonical import canonical_json


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.update(origin="feddrm/other/a"),
        lambda f: f.update(origin="feddrm/retina/nobody"),
        lambda f: f.update(head="x"),
        lambda f: f.update(leaves=[]),
        lambda f: f.update(leaves=["{}"]),
        lambda f: f.update(roster="x"),
        lambda f: f.update(roster='{"body": "AAAA", "signatures": []}'),
        lambda f: f.update(plans=["x"]),
        lambda f: f.update(plans=["[" * 5000]),
        lambda f: f["leaves"].__setitem__(1, "\x1b[2J"),
    ],
)
def test_hostile_bundles_fail_cleanly(paper: Any, run: Run, change: Callable[[dict[str, Any]], None]) -> None:
    file = paper.export("a")
    rewrite(file, change)
    for arguments in ((file,), (file, paper.export("b"))):
        code, out, _ = run("verify", *arguments, "--root", paper.root)
        assert code == 6
        assert "FAIL" in out
        assert "\x1b" not in out
    code, out, _ = run("show", file)
    assert code == 0
    assert "\x1b" not in out


def test_one_bad_bundle_does_not_hide_the_good_one(paper: Any, run: Run) -> None:
    bad, good = paper.export("a"), paper.export("b")
    rewrite(bad, lambda f: f.update(head="x"))
    code, report = judged(run, bad, good, "--root", paper.root)
    assert code == 6
    assert [ledger["verified"] for ledger in report["ledgers"]] == [False, True]


@pytest.mark.parametrize("content", [b"", b"not a bundle", b"{}", b"\xff\xfe"])
def test_files_that_are_no_bundle_are_input_errors(paper: Any, run: Run, content: bytes) -> None:
    file = paper.path / "bad.ledger"
    file.write_bytes(content)
    for arguments in (("verify", file, "--root", paper.root), ("show", file)):
        code, out, err = run(*arguments)
        assert (code, out) == (ExitCode.INPUT, "")
        assert "bad.ledger is not a ledger bundle" in err
        assert "Traceback" not in err


def test_missing_files_and_bad_roots_are_input_errors(paper: Any, run: Run) -> None:
    assert run("verify", paper.path / "none", "--root", paper.root)[0] == ExitCode.INPUT
    assert run("verify", paper.export("a"), "--root", paper.path / "none")[0] == ExitCode.INPUT
    bad = paper.path / "bad.root"
    bad.write_text("federation = 3\n")
    assert run("verify", paper.export("a"), "--root", bad)[0] == ExitCode.INPUT
    assert run("verify", paper.export("a"), "--root", paper.root, "--fingerprint", "short")[0] == ExitCode.INPUT
    assert run("verify", "--root", paper.root)[0] == ExitCode.USAGE


def test_show_prints_every_leaf_and_verifies_nothing(paper: Any, run: Run) -> None:
    code, out, _ = run("show", paper.export("a"))
    assert code == 0
    assert "NOT verified" in out
    for word in ("KEY", "PLAN", "RESERVE", "COMMIT", "RELEASE", "holds a head of feddrm/retina/b"):
        assert word in out
    code, out, _ = run("show", paper.export("a"), "--format", "json")
    assert len(json.loads(out)["leaves"]) == paper.ledgers["a"].size


def test_an_unaccountable_plan_is_a_failed_check(paper: Any, run: Run) -> None:
    body = json.loads(paper.plan.plan.body())
    body["training"] |= {"rounds": 10_000, "local_steps": 10_000}
    signed = sign(paper.operator, labels.PLAN, canonical_json(body))
    code, report = judged(run, paper.export("a", plans=[paper.plan.signed, signed]), "--root", paper.root)
    assert (code, failures(report)) == (6, {("a", "plan")})


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("privacy", {"delta": 1e-15}),
        ("privacy", {"delta": 5e-324}),
        ("training", {"clip_norm": 1e-320}),
        ("training", {"clip_norm": 1e308}),
        ("training", {"learning_rate": 5e-324}),
        ("secure_aggregation", {"clip": 1e308}),
        ("secure_aggregation", {"clip": 5e-324}),
    ],
)
def test_no_signed_plan_breaks_the_auditor(paper: Any, run: Run, section: str, changes: dict[str, float]) -> None:
    body = json.loads(paper.plan.plan.body())
    body[section] |= changes
    signed = sign(paper.operator, labels.PLAN, canonical_json(body))
    code, report = judged(run, paper.export("a", plans=[paper.plan.signed, signed]), "--root", paper.root)
    assert (code, failures(report)) == (6, {("a", "plan")})


def test_an_accountant_that_overflows_is_a_failed_check(paper: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(*_: object) -> object:
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setattr("feddrm.audit.court.charge", overflow)
    code, report = judged(run, paper.export("a"), "--root", paper.root)
    assert code == 6
    assert ("a", "plan") in failures(report)


def test_the_auditor_needs_neither_torch_nor_grpc(paper: Any) -> None:
    file = paper.export("a")
    code = (
        "import sys\nclass Wall:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'opacus', 'grpc', 'silo', 'aggregator'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Wall())\nfrom feddrm.audit.cli import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", str(file), "--root", str(paper.root)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    assert "Verified: 1 ledger." in done.stdout


def test_signed_documents_in_a_bundle_are_opaque_text(paper: Any) -> None:
    fields = json.loads(paper.export("a").read_text(encoding="utf-8"))
    assert Signed.from_json(fields["roster"]).body == paper.roster.body
    assert Signed.from_json(fields["plans"][0]).body == paper.plan.signed.body
