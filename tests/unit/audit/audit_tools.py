"""Running the auditor's command line, and what a dishonest hospital can do to its own bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.merkle import Tree
from privacy.note import sign_head

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
    file.write_text(json.dumps(fields), encoding="utf-8")


def reseal(fields: dict[str, Any], key: Ed25519PrivateKey, leaves: list[str]) -> None:
    """What a hospital can do to its own bundle: any leaves, a valid head over them."""
    bodies = [leaf.encode() for leaf in leaves]
    fields["leaves"] = leaves
    fields["head"] = sign_head(fields["origin"], len(bodies), Tree(bodies).root(), key).decode()
