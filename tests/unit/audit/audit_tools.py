"""Running the auditor's command line, and what a dishonest hospital can do to its own bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.identity import MemberKeys, sign_sealing_key
from feddrm.contract.roster import Member, Roster, sign_roster
from feddrm.contract.signed import Signed
from privacy.merkle import Tree
from privacy.note import sign_head

NOW = 1_800_000_000_000
SILOS = ("a", "b", "c", "d")
Run = Callable[..., tuple[int, str, str]]


def judged(run: Run, *arguments: object) -> tuple[int, dict[str, Any]]:
    code, out, _ = run("verify", *arguments, "--format", "json")
    return code, json.loads(out)


def failures(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (ledger["silo"], check["name"])
        for ledger in report["ledgers"]
        for check in ledger["checks"]
        if check["status"] == "FAIL"
    }


def rewrite(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    fields = json.loads(file.read_text(encoding="utf-8"))
    change(fields)
    file.write_text(as_exported(fields), encoding="utf-8")


def as_exported(fields: dict[str, Any]) -> str:
    """A bundle's text in the form of an export, whatever it holds."""
    if "witnessed" in fields:
        fields = fields | {"witnessed": dict(sorted(fields["witnessed"].items()))}
    return json.dumps(fields, indent=1, ensure_ascii=False)


def reseal(fields: dict[str, Any], key: Ed25519PrivateKey, leaves: list[str]) -> None:
    """What a hospital can do to its own bundle: any leaves, a valid head over them."""
    bodies = [leaf.encode() for leaf in leaves]
    fields["leaves"] = leaves
    fields["head"] = sign_head(fields["origin"], len(bodies), Tree(bodies).root(), key).decode()


def make_roster(keys: dict[str, MemberKeys], operator: Ed25519PrivateKey, version: int) -> Signed:
    members = tuple(
        Member(
            name=name,
            role="silo",
            identity=k.identity_public,
            sealing=k.sealing.public(),
            sealing_signature=sign_sealing_key(k.identity, name, k.sealing.public()),
            certificate=name.encode().ljust(32, b"c"),
        )
        for name, k in keys.items()
    )
    roster = Roster(
        federation="retina",
        version=version,
        issued_ms=NOW,
        expires_ms=NOW + 86_400_000,
        operator=operator.public_key().public_bytes_raw(),
        round_key=Ed25519PrivateKey.generate().public_key().public_bytes_raw(),
        members=members,
    )
    return sign_roster(roster, operator)
