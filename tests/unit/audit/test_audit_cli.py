from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from audit_tools import Run, failures, judged, reseal, rewrite
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract import labels
from feddrm.contract.charge import charge
from feddrm.contract.errors import ExitCode
from feddrm.contract.signed import sign
from feddrm.contract.signed_plan import sign_plan
from privacy.canonical import canonical_json
from privacy.leaves import Record, Release


def test_honest_ledgers_verify(paper: Any, run: Run) -> None:
    files = [paper.export(name) for name in paper.ledgers]
    code, report = judged(run, *files, "--root", paper.root, "--fingerprint", paper.anchor.fingerprint)
    assert (code, report["verified"], failures(report)) == (0, True, set())
    cost = charge(paper.plan.plan)
    for ledger in report["ledgers"]:
        assert ledger["verified"]
        assert ledger["plan_epsilon"] == cost.epsilon
        assert ledger["epsilon_spent"] == pytest.approx(cost.epsilon, abs=2e-6)
        assert (ledger["rounds_reserved"], ledger["delta"]) == (3, 1e-5)
        assert not any(check["status"] == "NOTE" for check in ledger["checks"])


def test_the_text_has_one_line_a_check(paper: Any, run: Run) -> None:
    files = [paper.export(name) for name in ("a", "b")]
    code, out, err = run("verify", *files, "--root", paper.root)
    assert (code, err) == (0, "")
    assert out.count("  PASS  ") > 20
    assert "FAIL" not in out
    assert "Verified: 2 ledgers." in out
    assert paper.anchor.fingerprint in out
    assert "that the noise was drawn no ledger can show" in out


def test_a_single_bundle_verifies_and_says_what_was_not_checked(paper: Any, run: Run) -> None:
    code, out, _ = run("verify", paper.export("a"), "--root", paper.root)
    assert code == 0
    assert "NOTE" in out
    assert "no other bundle witnesses this log" in out


def test_a_forged_leaf_fails_with_its_meaning(paper: Any, run: Run) -> None:
    file = paper.export("a")
    rewrite(file, lambda f: f["leaves"].__setitem__(3, f["leaves"][3].replace('"steps":5', '"steps":1')))
    code, out, _ = run("verify", file, "--root", paper.root)
    assert code == ExitCode.VERIFICATION
    assert "FAIL" in out
    assert "a leaf was edited" in out
    assert "NOT VERIFIED: a" in out


@pytest.mark.parametrize("keep", [1, 2, 5, 8, 9])
def test_a_hospital_that_cuts_its_log_is_found_by_its_peers(paper: Any, run: Run, keep: int) -> None:
    files = [paper.export(name) for name in paper.ledgers]
    signer = paper.keys["a"].identity
    rewrite(files[0], lambda f: reseal(f, signer, f["leaves"][:keep]))
    code, report = judged(run, *files, "--root", paper.root)
    assert code == 6
    assert failures(report) == {("a", "witnesses")}
    # Alone the same bundle passes: only peers can tell, and the report says so.
    code, report = judged(run, files[0], "--root", paper.root)
    assert code == 0
    assert "NOTE" in {check["status"] for check in report["ledgers"][0]["checks"]}


def test_a_hospital_that_charges_less_is_found(paper: Any, run: Run) -> None:
    files = [paper.export(name) for name in paper.ledgers]

    def cheaper(fields: dict[str, Any]) -> None:
        leaves = [leaf.replace('"noise_multiplier":1.5', '"noise_multiplier":9') for leaf in fields["leaves"]]
        reseal(fields, paper.keys["a"].identity, leaves)

    rewrite(files[0], cheaper)
    _, alone = judged(run, files[0], "--root", paper.root)
    assert failures(alone) == {("a", "plan"), ("a", "reservations"), ("a", "epsilon")}
    _, together = judged(run, *files, "--root", paper.root)
    assert ("a", "witnesses") in failures(together)


def test_a_claim_below_the_recomputed_epsilon_is_found(paper: Any, run: Run) -> None:
    file = paper.export("a")
    claimed = charge(paper.plan.plan).epsilon

    def lower(fields: dict[str, Any]) -> None:
        leaves = [leaf.replace(f'"epsilon":{claimed}', '"epsilon":0.1') for leaf in fields["leaves"]]
        assert leaves != fields["leaves"]
        reseal(fields, paper.keys["a"].identity, leaves)

    rewrite(file, lower)
    code, report = judged(run, file, "--root", paper.root)
    assert (code, failures(report)) == (6, {("a", "epsilon")})


def test_keys_come_from_the_signed_roster_and_not_from_the_bundle(paper: Any, run: Run) -> None:
    # The owner replaces its key everywhere in its own power: leaf 0, head, and a roster it signs itself.
    own = Ed25519PrivateKey.generate()
    file = paper.export("a", roster=sign(own, labels.ROSTER, paper.roster.body))
    old, new = paper.keys["a"].identity_public.hex(), own.public_key().public_bytes_raw().hex()
    rewrite(file, lambda f: reseal(f, own, [leaf.replace(old, new) for leaf in f["leaves"]]))
    code, report = judged(run, file, "--root", paper.root)
    assert (code, failures(report)) == (6, {("a", "roster")})
    code, report = judged(run, file, paper.export("b"), "--root", paper.root)
    assert failures(report) >= {("a", "roster"), ("a", "head"), ("a", "key")}


def test_a_plan_that_the_operator_did_not_sign_does_not_count(paper: Any, run: Run) -> None:
    forged = sign_plan(paper.plan.plan, Ed25519PrivateKey.generate()).signed
    code, report = judged(run, paper.export("a", plans=[forged]), "--root", paper.root)
    assert code == 6
    assert ("a", "plan") in failures(report)
    code, report = judged(run, paper.export("a", plans=[]), "--root", paper.root)
    assert (code, failures(report)) == (6, {("a", "plan"), ("a", "reservations"), ("a", "epsilon")})


def test_a_plan_of_other_hospitals_or_another_federation_does_not_count(paper: Any, run: Run) -> None:
    plan = paper.plan.plan
    for change in ({"silos": ("b", "c", "d", "e")}, {"federation": "other"}):
        body = canonical_json({**json.loads(plan.body()), **change})
        signed = sign(paper.operator, labels.PLAN, body)
        code, report = judged(run, paper.export("a", plans=[paper.plan.signed, signed]), "--root", paper.root)
        assert (code, failures(report)) == (6, {("a", "plan")})


def test_another_federation_s_root_verifies_nothing(paper: Any, run: Run) -> None:
    stranger = paper.anchor.model_copy(
        update={"operator": Ed25519PrivateKey.generate().public_key().public_bytes_raw()}
    )
    root = paper.path / "other.root"
    root.write_bytes(stranger.to_text())
    code, report = judged(run, paper.export("a"), "--root", root)
    assert (code, failures(report)) == (6, {("a", "roster")})
    code, _, err = run("verify", paper.export("a"), "--root", root, "--fingerprint", paper.anchor.fingerprint)
    assert code == 6
    assert "not the root of the federation whose fingerprint" in err


def test_two_exports_of_one_forked_ledger_fail(paper: Any, run: Run) -> None:
    first = paper.export("a")
    second = paper.path / "a-again.ledger"
    second.write_bytes(first.read_bytes())
    code, report = judged(run, first, second, "--root", paper.root)
    assert (code, failures(report)) == (0, set())

    def other(fields: dict[str, Any]) -> None:
        last = Record.decode(fields["leaves"][-1].encode())
        assert isinstance(last.leaf, Release)
        body = Record(last.time, replace(last.leaf, sum=b"x" * 32)).encode()
        reseal(fields, paper.keys["a"].identity, [*fields["leaves"][:-1], body.decode()])

    rewrite(second, other)
    code, report = judged(run, first, second, "--root", paper.root)
    assert (code, failures(report)) == (6, {("a", "witnesses"), ("a", "published")})


def test_a_hospital_that_says_another_model_than_the_others_is_found(paper: Any, run: Run) -> None:
    """It re-signs, and its own leaves agree with one another: only the other ledgers contradict it."""
    files = [paper.export(name) for name in paper.ledgers]

    def other(fields: dict[str, Any]) -> None:
        leaves = [leaf.replace(paper.model(2).hex(), "ee" * 32) for leaf in fields["leaves"]]
        assert leaves != fields["leaves"]
        reseal(fields, paper.keys["a"].identity, leaves)

    rewrite(files[0], other)
    assert judged(run, files[0], "--root", paper.root)[0] == 0
    code, report = judged(run, *files, "--root", paper.root)
    assert (code, failures(report)) == (6, {("a", "published"), ("a", "witnesses")})
    # With one against one nobody can say which of them lies.
    _, report = judged(run, *files[:2], "--root", paper.root)
    assert {("a", "published"), ("b", "published")} <= failures(report)


def test_a_bundle_that_its_hospital_never_signed_contradicts_nobody(paper: Any, run: Run) -> None:
    forged, good = paper.export("a"), paper.export("b")
    rewrite(forged, lambda f: f.update(leaves=[leaf.replace("02" * 32, "ee" * 32) for leaf in f["leaves"]]))
    _, report = judged(run, forged, good, "--root", paper.root)
    assert [ledger["verified"] for ledger in report["ledgers"]] == [False, True]


def test_a_first_round_that_does_not_start_from_the_plan_s_model_is_found(paper: Any, run: Run) -> None:
    file = paper.export("a")

    def other(fields: dict[str, Any]) -> None:
        leaves = [leaf.replace(paper.model(0).hex(), "ee" * 32) for leaf in fields["leaves"]]
        assert leaves != fields["leaves"]
        reseal(fields, paper.keys["a"].identity, leaves)

    rewrite(file, other)
    code, report = judged(run, file, "--root", paper.root)
    assert (code, failures(report)) == (6, {("a", "models")})


def test_a_patient_column_that_moves_to_the_visit_is_found_and_shown(paper: Any, run: Run) -> None:
    code, out, _ = run("verify", paper.export("a"), "--root", paper.root)
    assert code == 0
    assert "the patient is what the column id says" in out
    number = paper.read("a", patient="visit")
    file = paper.export("a")
    code, out, _ = run("verify", file, "--root", paper.root)
    assert code == ExitCode.VERIFICATION
    assert f"FAIL  leaf {number}" in out
    assert "changed from id to visit" in out
    assert "the signed plan says id" in out
    assert "patients by column visit" in run("show", file)[1]


def test_an_older_export_beside_a_newer_one_is_no_fork(paper: Any, run: Run) -> None:
    old = paper.path / "old.ledger"
    old.write_bytes(paper.export("a").read_bytes())
    paper.read("a")
    code, report = judged(run, old, paper.export("a"), "--root", paper.root)
    assert (code, failures(report)) == (0, set())
