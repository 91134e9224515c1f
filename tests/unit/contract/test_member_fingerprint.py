"""One fingerprint from `init` to `roster accept`: what a member reads out is what every other hospital compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aggregator.cli import app as aggregator
from feddrm.cli import invoke
from feddrm.contract.fingerprint import member_fingerprint
from feddrm.contract.identity import MemberKeys, sign_sealing_key
from feddrm.enrolment import load_pin
from silo.cli import app as silo


def test_the_fingerprint_that_init_prints_is_the_one_that_others_see(
    federation, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("aggregator.enrolment", "feddrm.enrolment"):
        monkeypatch.setattr(f"{module}.now_ms", lambda: federation.now)

    def run(app, *arguments: str | Path) -> str:
        assert invoke(app, [str(argument) for argument in arguments]) == 0, capsys.readouterr().err
        return "".join(capsys.readouterr())

    home = federation.member("a")
    new = tmp_path / "new-hospital"
    made = json.loads(run(silo, "init", new, "--name", "b", "--format", "json"))
    read_out = made["fingerprint"]
    enrolled = run(
        aggregator, "enroll", made["request"], "--operator", federation.operator, "--server", federation.server, "--yes"
    )
    assert read_out in enrolled

    load_pin(home).offer(federation.home.signed_roster, federation.now)
    shown = run(silo, "roster", "show", "--dir", home)
    assert f"added    silo b, fingerprint {read_out}" in shown
    accepted = run(silo, "roster", "accept", "--dir", home, "--yes")
    assert read_out in accepted
    listed = json.loads(run(silo, "roster", "show", "--dir", home, "--format", "json"))
    assert {m["name"]: m["fingerprint"] for m in listed["members"]}["b"] == read_out
    assert read_out in run(aggregator, "roster", "show", "--operator", federation.operator)


def test_only_the_same_identity_in_the_same_place_has_the_same_fingerprint(federation) -> None:
    federation.member("a")
    (member,) = federation.home.roster.members
    other = MemberKeys.generate()
    assert member.model_copy(update={"identity": other.identity_public}).fingerprint != member.fingerprint
    assert member.model_copy(update={"name": "b"}).fingerprint != member.fingerprint
    assert member.model_copy(update={"role": "querier"}).fingerprint != member.fingerprint
    # A sealing key that is changed later is vouched for by the identity that was compared.
    sealing = other.sealing.public()
    rotated = member.model_copy(
        update={"sealing": sealing, "sealing_signature": sign_sealing_key(other.identity, "a", sealing)}
    )
    assert rotated.fingerprint == member.fingerprint
    # Lengths are part of it: no shift of bytes between the fields gives the same text.
    assert member_fingerprint("silo", "ab", b"c") != member_fingerprint("silo", "a", b"bc")
