"""A commitment that a hospital opens: to whom it gives the file, for one leaf, and never for another thing."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from audit_tools import NOW, Run, as_exported

from feddrm.contract.release import schema_hash
from privacy.commitments import Opening, commit_dataset, commit_update, dataset_key, parse_opening, update_key
from privacy.errors import MalformedError

KEY, NONCE = b"k" * 32, b"n" * 32
RECORDS = sha256(b"the records").digest()


@pytest.fixture
def leaf(paper: Any) -> int:
    return paper.gates["a"].record_dataset(
        paper.plan.hash,
        commit_dataset(KEY, RECORDS, NONCE),
        schema_hash(paper.plan.plan),
        patient="id",
        public_size=1000,
        now_ms=NOW,
    )


def opening(paper: Any, number: int, key: bytes, digest: bytes = RECORDS, origin: str = "feddrm/retina/a") -> Path:
    file = paper.path / "opening.json"
    file.write_bytes(Opening(origin, number, key, digest).encode())
    return file


def judged(run: Run, paper: Any, file: Path) -> tuple[int, dict[str, object]]:
    code, out, _ = run("opening", file, paper.export("a"), paper.export("b"), "--root", paper.root, "--format", "json")
    return code, json.loads(out)


def test_an_opening_shows_what_was_read(paper: Any, run: Run, leaf: int) -> None:
    code, shown = judged(run, paper, opening(paper, leaf, dataset_key(KEY, NONCE)))
    assert (code, shown["opens"], shown["sha256"]) == (0, True, RECORDS.hex())


@pytest.mark.parametrize("change", ["records", "key", "leaf", "kind", "number", "origin"])
def test_an_opening_of_something_else_fails(paper: Any, run: Run, leaf: int, change: str) -> None:
    key = dataset_key(KEY, NONCE)
    file = {
        "records": lambda: opening(paper, leaf, key, sha256(b"other records").digest()),
        "key": lambda: opening(paper, leaf, dataset_key(b"l" * 32, NONCE)),
        "leaf": lambda: opening(paper, 1, key),
        "kind": lambda: opening(paper, 0, key),
        "number": lambda: opening(paper, 10**6, key),
        "origin": lambda: opening(paper, leaf, key, origin="feddrm/retina/b"),
    }[change]()
    code, shown = judged(run, paper, file)
    assert (code, shown["opens"], shown["sha256"]) == (6, False, None)


def test_an_opening_of_a_ledger_that_does_not_hold_counts_for_nothing(paper: Any, run: Run, leaf: int) -> None:
    file, bundle = opening(paper, leaf, dataset_key(KEY, NONCE)), paper.export("a")
    fields = json.loads(bundle.read_text())
    fields["leaves"] = fields["leaves"][:-2] + fields["leaves"][-1:]
    bundle.write_text(as_exported(fields))
    code, out, _ = run("opening", file, bundle, "--root", paper.root)
    assert (code, "NOT VERIFIED" in out) == (6, True)


def test_one_key_opens_one_commitment() -> None:
    """What an auditor was given for one leaf lets nobody search for what stands behind another."""
    keys = {dataset_key(KEY, NONCE), dataset_key(KEY, b"m" * 32), update_key(KEY, NONCE, 1, 1), KEY}
    keys |= {update_key(KEY, NONCE, 1, 2), update_key(KEY, NONCE, 2, 1), update_key(KEY, b"m" * 32, 1, 1)}
    assert len(keys) == 7
    update = b"\x01\x00" * 40
    digest = sha256(update).digest()
    assert Opening("feddrm/retina/a", 4, update_key(KEY, NONCE, 1, 1), digest).opens(
        commit_update(KEY, NONCE, 1, 1, update)
    )
    assert not Opening("feddrm/retina/a", 4, update_key(KEY, NONCE, 1, 2), digest).opens(
        commit_update(KEY, NONCE, 1, 1, update)
    )


def test_secrets_do_not_print_and_other_files_are_no_openings() -> None:
    made = Opening("feddrm/retina/a", 4, KEY, RECORDS)
    assert KEY.hex() not in repr(made)
    assert str(KEY) not in repr(made)
    assert parse_opening(made.encode()) == made
    for text in (b"", b"{}", made.encode() + b" ", made.encode().replace(b"opening 1", b"opening 2"), b"[" * 5000):
        with pytest.raises(MalformedError):
            parse_opening(text)
