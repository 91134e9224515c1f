"""A member's whole way through its commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feddrm.cli import invoke, make_app
from feddrm.contract.identity import Role
from feddrm.enrolment import register_member


def test_member_commands_end_to_end(federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from aggregator.enrolment import register as register_operator

    silo, operator = make_app("feddrm-silo", "x"), make_app("feddrm-aggregator", "x")
    register_member(silo, Role.SILO, "feddrm-silo")
    register_operator(operator)

    def call(app, *arguments: str, code: int = 0) -> dict:
        assert invoke(app, [*arguments, "--format", "json"]) == code
        return json.loads(capsys.readouterr().out)

    fed = call(operator, "init", str(tmp_path / "f"), "--name", "retina", "--address", "localhost:8002")
    made = {name: call(silo, "init", str(tmp_path / name), "--name", name) for name in ("a", "b")}
    keys = ("--operator", fed["operator_directory"], "--server", fed["server_directory"])
    done = call(operator, "enroll", made["a"]["request"], *keys, "--yes")
    assert done["roster_version"] == 2
    assert done["members"][0]["fingerprint"] == made["a"]["fingerprint"]
    join = ("join", done["members"][0]["kit"], "--dir", str(tmp_path / "a"), "--fingerprint", fed["fingerprint"])
    assert call(silo, *join)["operator"] == fed["operator"]
    assert call(silo, "roster", "accept", "--dir", str(tmp_path / "a"), "--yes", code=3)["error"]["kind"] == "input"
    second = call(operator, "enroll", made["b"]["request"], *keys, "--yes")
    assert second["roster_version"] == 3
    renewed = call(operator, "enroll", made["a"]["request"], *keys, "--yes")
    assert renewed["members"][0]["change"] == "renewed"
    assert call(silo, *join)["roster_pending"] is True
    shown = call(silo, "roster", "show", "--dir", str(tmp_path / "a"))
    assert shown["version"] == 2
    assert shown["pending"]["differences"][0].startswith("added    silo b")
    accepted = call(silo, "roster", "accept", "--dir", str(tmp_path / "a"), "--yes")
    assert accepted["version"] == 4
    assert call(operator, "roster", "show", *keys[:2])["roster_version"] == 4
    assert call(operator, "roster", "remove", "b", *keys, "--yes")["roster_version"] == 5
    assert call(operator, "roster", "renew", *keys)["roster_version"] == 6
    refused = call(silo, "init", str(tmp_path / "c"), "--name", "../c", code=3)
    assert "must be 1 to 32 characters" in refused["error"]["message"]
    assert not (tmp_path / "c").exists()
