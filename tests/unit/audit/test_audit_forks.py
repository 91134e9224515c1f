"""A hospital that keeps two ledgers: the proof is found, kept in a file, and judged from the root alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from audit_tools import Run, reseal, rewrite
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.errors import ExitCode
from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import MalformedError
from privacy.forks import check_fork_proof, find_fork
from privacy.merkle import Tree
from privacy.note import Head, open_head, sign_head

SIGNER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
KEY = SIGNER.public_key().public_bytes_raw()
ORIGIN = "feddrm/retina/a"
LOG = [b"%d" % number for number in range(13)]
OTHER = [*LOG[:5], b"x", *LOG[6:]]


def head(leaves: list[bytes]) -> Head:
    return open_head(sign_head(ORIGIN, len(leaves), Tree(leaves).root(), SIGNER), ORIGIN, KEY)


def test_no_honest_history_is_a_fork() -> None:
    heads = [head(LOG[:size]) for size in range(len(LOG) + 1)]
    logs = [(head(LOG[:size]), LOG[:size]) for size in range(len(LOG) + 1)]
    assert find_fork(heads, logs) is None
    assert find_fork([]) is None


def test_two_heads_of_one_size_are_a_fork() -> None:
    proof = find_fork([head(LOG[:6]), head(OTHER[:6]), head(LOG)])
    assert proof is not None
    assert check_fork_proof(proof, origin=ORIGIN, key=KEY) == "signed two different heads of 6 leaves"


@pytest.mark.parametrize("size", [6, 7, 8, 12])
def test_a_longer_log_that_does_not_extend_a_head_is_a_fork(size: int) -> None:
    proof = find_fork([head(OTHER[:size])], [(head(LOG), LOG)])
    assert proof is not None
    said = check_fork_proof(proof, origin=ORIGIN, key=KEY)
    assert said == f"signed a head of 13 leaves that does not extend its head of {size} leaves"


def test_an_innocent_silo_is_not_convicted_by_any_change_of_a_proof() -> None:
    """Whatever root and path a liar writes beside two heads of one honest log, it proves nothing."""
    real = parse_canonical(find_fork([head(OTHER[:7])], [(head(LOG), LOG)]) or b"")
    assert isinstance(real, dict)
    honest = {"first": head(LOG[:7]).note.decode(), "second": head(LOG).note.decode()}
    tree = Tree(LOG)
    good = [digest.hex() for digest in tree.consistency(7)]
    attempts: list[dict[str, Any]] = [
        {**real, **honest},
        {**honest, "root": tree.root(7).hex(), "path": good},
        {**honest, "root": "ee" * 32, "path": good},
        {**honest, "root": tree.root(6).hex(), "path": [digest.hex() for digest in tree.consistency(6)]},
        {**honest, "root": tree.root(13).hex(), "path": []},
        {"first": honest["second"], "second": honest["first"], "root": "ee" * 32, "path": []},
        honest,
        {"first": honest["first"], "second": honest["first"]},
        {**real, "path": real["path"][1:]},
        {**real, "root": 5},
        {**real, "first": None},
        {**real, "path": ["00" * 32] * 1000},
        {**real, "extra": 1},
        {},
    ]
    for attempt in attempts:
        with pytest.raises(MalformedError):
            check_fork_proof(canonical_json(attempt), origin=ORIGIN, key=KEY)
    for key, origin in ((bytes(32), ORIGIN), (KEY, "feddrm/retina/b")):
        with pytest.raises(MalformedError):
            check_fork_proof(canonical_json(real), origin=origin, key=key)
    for junk in (b"", b"[]", b"x" * 100_000, b"\xff"):
        with pytest.raises(MalformedError):
            check_fork_proof(junk, origin=ORIGIN, key=KEY)


def forked(paper: Any) -> tuple[Path, Path]:
    """Two bundles of a, both signed, with another leaf somewhere in the middle and one leaf less."""
    first = paper.export("a")
    second = paper.path / "second.ledger"
    second.write_bytes(first.read_bytes())

    def change(fields: dict[str, Any]) -> None:
        leaves = [leaf.replace(paper.model(1).hex(), "ee" * 32) for leaf in fields["leaves"]][:-1]
        reseal(fields, paper.keys["a"].identity, leaves)

    rewrite(second, change)
    return first, second


def test_the_file_convinces_from_the_root_alone(paper: Any, run: Run) -> None:
    out = paper.path / "proof.json"
    code, text, _ = run("fork-proof", *forked(paper), "--root", paper.root, "-o", out)
    assert code == ExitCode.VERIFICATION
    assert "PROVEN: a signed a head of" in text
    assert f"The proof is in {out}." in text
    code, text, _ = run("fork-proof", out, "--root", paper.root, "--format", "json")
    assert code == ExitCode.VERIFICATION
    assert [fork["silo"] for fork in json.loads(text)["proven"]] == ["a"]
    stranger = paper.path / "stranger.root"
    key = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    stranger.write_bytes(paper.anchor.model_copy(update={"operator": key}).to_text())
    code, text, _ = run("fork-proof", out, "--root", stranger)
    assert code == 0
    assert "No fork is proven." in text
    assert "no roster that the operator signed" in text


def test_a_peer_s_head_and_a_bundle_are_enough(paper: Any, run: Run) -> None:
    _, second = forked(paper)
    code, text, _ = run("fork-proof", second, paper.export("c"), "--root", paper.root)
    assert code == ExitCode.VERIFICATION
    assert "PROVEN: a " in text


def test_loose_heads_need_a_roster(paper: Any, run: Run) -> None:
    notes = []
    for name, root in (("one", bytes(32)), ("two", b"x" * 32)):
        note = paper.path / name
        note.write_bytes(sign_head(ORIGIN, 4, root, paper.keys["a"].identity))
        notes.append(note)
    code, text, _ = run("fork-proof", *notes, "--root", paper.root)
    assert (code, "a head was left aside" in text) == (0, True)
    roster = paper.path / "roster.signed"
    roster.write_text(paper.roster.to_json())
    code, text, _ = run("fork-proof", *notes, "--root", paper.root, "--roster", roster)
    assert code == ExitCode.VERIFICATION
    assert "PROVEN: a signed two different heads of 4 leaves." in text


def test_honest_bundles_prove_nothing(paper: Any, run: Run) -> None:
    out = paper.path / "proof.json"
    files = [paper.export(name) for name in paper.ledgers]
    code, text, _ = run("fork-proof", *files, "--root", paper.root, "-o", out)
    assert code == 0
    assert "No fork is proven." in text
    assert "all of which can belong to one log" in text
    assert not out.exists()


def test_a_forged_head_proves_nothing_against_a_silo(paper: Any, run: Run) -> None:
    forged = paper.path / "forged"
    forged.write_bytes(sign_head(ORIGIN, 5, bytes(32), Ed25519PrivateKey.generate()))
    code, text, _ = run("fork-proof", forged, paper.export("a"), "--root", paper.root)
    assert code == 0
    assert "a head was left aside" in text


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"{" * 9999, b'{"format":"feddrm fork proof 1"}', b"\x1b[2J"])
def test_files_that_are_nothing_are_named(paper: Any, run: Run, content: bytes) -> None:
    file = paper.path / "bad"
    file.write_bytes(content)
    code, _, err = run("fork-proof", file, "--root", paper.root)
    assert code == ExitCode.INPUT
    assert str(file) in err
