"""Heads that bundles hold of one another: mislabelled, made up, or no heads at all."""

from __future__ import annotations

from typing import Any

from audit_tools import Run, failures, judged, reseal, rewrite
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.note import sign_head


def test_a_head_filed_under_another_name_witnesses_whose_it_is_and_fails_its_holder(paper: Any, run: Run) -> None:
    """Else a hospital could hide what it saw of a colluding one by filing it under a name that nobody looks up."""
    cut, holder = paper.export("a"), paper.export("b")
    rewrite(cut, lambda f: reseal(f, paper.keys["a"].identity, f["leaves"][:5]))

    def hide(fields: dict[str, Any]) -> None:
        fields["witnessed"]["feddrm/retina/d"] = fields["witnessed"].pop("feddrm/retina/a")

    rewrite(holder, hide)
    code, out, _ = run("verify", cut, holder, "--root", paper.root)
    assert code == 6
    assert "b (filed under feddrm/retina/d) saw" in out
    assert "the head filed under feddrm/retina/d is of feddrm/retina/a" in out
    assert "NOT VERIFIED: a, b" in out


def test_a_made_up_head_fails_who_holds_it_and_not_whom_it_names(paper: Any, run: Run) -> None:
    files = [paper.export("a"), paper.export("b")]
    forged = sign_head("feddrm/retina/a", 99, bytes(32), Ed25519PrivateKey.generate()).decode()
    rewrite(files[1], lambda f: f["witnessed"].update({"feddrm/retina/a": forged}))
    rewrite(files[1], lambda f: f.update(sightings=[]))
    code, report = judged(run, *files, "--root", paper.root)
    assert (code, failures(report)) == (6, {("b", "peers")})
    # And a is then witnessed by nobody, which the reader is told.
    assert any(c["status"] == "NOTE" and c["name"] == "witnesses" for c in report["ledgers"][0]["checks"])


def test_a_head_that_is_none_fails_its_holder(paper: Any, run: Run) -> None:
    for text in ("", "\u2028", "feddrm/retina/a", "feddrm/retina/a\n5\nAAAA\n\n— x y\n"):
        file = paper.export("b")
        rewrite(file, lambda f, text=text: f["witnessed"].update({"feddrm/retina/a": text}))  # type: ignore[misc]
        code, report = judged(run, file, "--root", paper.root)
        assert (code, failures(report)) == (6, {("b", "peers")})


def test_a_head_of_a_log_that_no_roster_lists_is_said_to_be_unchecked(paper: Any, run: Run) -> None:
    file = paper.export("b")
    note = sign_head("feddrm/retina/gone", 9, bytes(32), Ed25519PrivateKey.generate()).decode()
    rewrite(file, lambda f: f["witnessed"].update({"feddrm/retina/gone": note}))
    code, out, _ = run("verify", file, "--root", paper.root)
    assert code == 0
    assert "is of feddrm/retina/gone, which no roster here lists: not checked" in out


def test_one_bundle_given_twice_is_one_ledger_and_no_witness(paper: Any, run: Run) -> None:
    first = paper.export("a")
    copy = paper.path / "copy.ledger"
    copy.write_bytes(first.read_bytes())
    for second in (first, copy):
        code, out, _ = run("verify", first, second, "--root", paper.root)
        assert code == 0
        assert f"{second} is the same bundle again: counted once, no witness" in out
        assert "no other bundle witnesses this log" in out
        assert "Verified: 1 ledger." in out


def test_an_older_export_of_the_same_ledger_is_no_witness_either(paper: Any, run: Run) -> None:
    old = paper.path / "old.ledger"
    old.write_bytes(paper.export("a").read_bytes())
    paper.read("a")
    code, out, _ = run("verify", old, paper.export("a"), "--root", paper.root)
    assert code == 0
    assert out.count("no other bundle witnesses this log") == 2
    assert "Verified: 1 ledger." in out
