from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import NOW, ORIGIN

from privacy.errors import LedgerCorrupt, LedgerError, LedgerLocked, MalformedError
from privacy.leaves import Dataset, Key
from privacy.ledger import Ledger
from privacy.merkle import consistency_valid, inclusion_valid
from privacy.note import open_head

LEAF = Dataset(bytes(32), bytes(32), bytes(32), "id", 1000)


TRIGGERS = ("leaves_in_order", "heads_in_order", "leaves_stay", "leaves_keep", "heads_stay", "heads_keep")


def tamper(path: Path, *statements: str) -> None:
    """What somebody with the file can do: drop the triggers, then anything."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for name in TRIGGERS:
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)


def test_a_new_ledger_begins_with_its_key(ledger: Ledger, key: bytes) -> None:
    assert ledger.size == 1
    assert ledger.leaves()[0].leaf == Key(ORIGIN, key)
    assert open_head(ledger.head(), ORIGIN, key).size == 1
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_leaves_survive_closing(grown: Path, signer: Ed25519PrivateKey, key: bytes) -> None:
    before = Ledger.read(grown, ORIGIN, key)
    with Ledger.open(grown, ORIGIN, signer, now_ms=NOW) as again:
        assert (again.bodies(), again.head()) == (before.bodies(), before.head())
        assert again.append(LEAF, now_ms=NOW) == 6


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE leaves SET body = x'00' WHERE number = 2",
        "DELETE FROM leaves WHERE number = 5",
        "DELETE FROM leaves",
        "INSERT OR REPLACE INTO leaves SELECT number, x'00' FROM leaves WHERE number = 2",
        "REPLACE INTO leaves VALUES (2, x'00')",
        "INSERT INTO leaves VALUES (9, x'00')",
        "INSERT INTO leaves VALUES (NULL, x'00')",
        "INSERT INTO leaves VALUES (6, NULL)",
        "UPDATE heads SET note = x'00'",
        "DELETE FROM heads WHERE size = 6",
        "REPLACE INTO heads VALUES (6, x'00')",
        "INSERT INTO heads VALUES (8, x'00')",
    ],
)
def test_the_database_refuses_change(grown: Path, statement: str) -> None:
    with closing(sqlite3.connect(grown)) as database:
        before = database.execute("SELECT * FROM leaves").fetchall()
        with pytest.raises(sqlite3.IntegrityError):
            database.execute(statement)
        assert database.execute("SELECT * FROM leaves").fetchall() == before


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE leaves SET body = replace(CAST(body AS TEXT), '0101', '0102') WHERE number = 2"],
        ["UPDATE leaves SET body = CAST(replace(CAST(body AS TEXT), '0101', '0102') AS BLOB) WHERE number = 2"],
        ["DELETE FROM leaves WHERE number = 5"],
        ["DELETE FROM leaves WHERE number = 2"],
        ["DELETE FROM heads WHERE size = 6"],
        ["DELETE FROM heads WHERE size = 3"],
        ["DELETE FROM leaves", "DELETE FROM heads"],
        [
            "UPDATE leaves SET number = -1 WHERE number = 2",
            "UPDATE leaves SET number = 2 WHERE number = 3",
            "UPDATE leaves SET number = 3 WHERE number = -1",
        ],
        ["UPDATE heads SET note = (SELECT note FROM heads WHERE size = 5) WHERE size = 6"],
        ["UPDATE heads SET note = x'00' WHERE size = 3"],
        ["INSERT INTO leaves SELECT 6, body FROM leaves WHERE number = 5"],
        ["PRAGMA user_version = 2"],
        ["DROP TABLE heads"],
    ],
)
def test_tampering_is_found_on_opening(
    grown: Path, signer: Ed25519PrivateKey, key: bytes, statements: list[str]
) -> None:
    try:
        tamper(grown, *statements)
    except sqlite3.IntegrityError:
        return  # STRICT tables refuse text where bytes belong.
    with pytest.raises(LedgerError):
        Ledger.open(grown, ORIGIN, signer, now_ms=NOW)
    with pytest.raises(LedgerError):
        Ledger.read(grown, ORIGIN, key)
    # The refused opening has let go of the lock.
    with pytest.raises(LedgerError) as again:
        Ledger.open(grown, ORIGIN, signer, now_ms=NOW)
    assert not isinstance(again.value, LedgerLocked)


def test_every_changed_byte_of_a_leaf_is_corruption(grown: Path, signer: Ed25519PrivateKey) -> None:
    content = grown.read_bytes()
    start = content.index(b'{"commitment":"0303')
    for place in (start, start + 17, start + 100, start + 150, start + 200):
        grown.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(LedgerCorrupt):
            Ledger.open(grown, ORIGIN, signer, now_ms=NOW)
    grown.write_bytes(content)
    Ledger.open(grown, ORIGIN, signer, now_ms=NOW).close()


@pytest.mark.parametrize("damage", [b"", b"not a database", b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_file_that_is_no_ledger_is_refused(path: Path, signer: Ed25519PrivateKey, damage: bytes) -> None:
    path.write_bytes(damage)
    with pytest.raises(LedgerCorrupt):
        Ledger.open(path, ORIGIN, signer, now_ms=NOW)
    assert path.read_bytes() == damage


def test_a_truncated_file_is_refused(grown: Path, signer: Ed25519PrivateKey) -> None:
    content = grown.read_bytes()
    for length in (len(content) // 2, len(content) - 1000):
        grown.write_bytes(content[:length])
        with pytest.raises(LedgerError):
            Ledger.open(grown, ORIGIN, signer, now_ms=NOW)


def test_another_key_or_origin_is_refused(grown: Path, signer: Ed25519PrivateKey) -> None:
    with pytest.raises(LedgerCorrupt):
        Ledger.open(grown, ORIGIN, Ed25519PrivateKey.from_private_bytes(b"o" * 32), now_ms=NOW)
    with pytest.raises(LedgerCorrupt):
        Ledger.open(grown, "feddrm/retina/hospital-b", signer, now_ms=NOW)


def test_a_second_agent_is_locked_out(ledger: Ledger, signer: Ed25519PrivateKey) -> None:
    with pytest.raises(LedgerLocked):
        Ledger.open(ledger.path, ORIGIN, signer, now_ms=NOW)
    code = (
        "import sys\nfrom cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey as K\n"
        "from privacy.ledger import Ledger\nfrom privacy.errors import LedgerLocked\n"
        f"try:\n    Ledger.open(sys.argv[1], {ORIGIN!r}, K.from_private_bytes(b's' * 32), now_ms=1)\n"
        "except LedgerLocked:\n    sys.exit(8)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(ledger.path)]).returncode == 8
    ledger.close()
    assert subprocess.run([sys.executable, "-c", code, str(ledger.path)]).returncode == 0


def test_a_writer_that_ignores_the_lock_is_noticed(ledger: Ledger, signer: Ed25519PrivateKey) -> None:
    ledger.path.with_name("ledger.db.lock").unlink()
    with Ledger.open(ledger.path, ORIGIN, signer, now_ms=NOW) as second:
        second.append(LEAF, now_ms=NOW)
    with pytest.raises(LedgerCorrupt, match="somebody else"):
        ledger.append(Dataset(bytes(32), b"x" * 32, bytes(32), "id", 1000), now_ms=NOW)
    with pytest.raises(LedgerError, match="not open"):
        ledger.append(LEAF, now_ms=NOW)


def test_reading_works_beside_a_writer(ledger: Ledger, key: bytes) -> None:
    ledger.append(LEAF, now_ms=NOW)
    snapshot = Ledger.read(ledger.path, ORIGIN, key)
    ledger.append(Dataset(bytes(32), b"y" * 32, bytes(32), "id", 1000), now_ms=NOW)
    assert (snapshot.size, ledger.size) == (2, 3)
    assert Ledger.read(ledger.path, ORIGIN, key).size == 3
    with pytest.raises(LedgerError, match="not open"):
        snapshot.append(LEAF, now_ms=NOW)


def test_nothing_to_read(tmp_path: Path, key: bytes) -> None:
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger.read(tmp_path / "none.db", ORIGIN, key)


def test_time_never_runs_backwards(ledger: Ledger) -> None:
    ledger.append(LEAF, now_ms=NOW + 7_200_000)
    ledger.append(LEAF, now_ms=NOW)
    times = [record.time for record in ledger.leaves()]
    assert times == sorted(times)
    assert times[2] == times[1] != times[0]


def test_a_malformed_leaf_never_enters(ledger: Ledger) -> None:
    for leaf in (Dataset(bytes(32), b"short", bytes(32), "id", 1000), Key("nowhere", bytes(32))):
        with pytest.raises(MalformedError):
            ledger.append(leaf, now_ms=NOW)
    assert ledger.size == 1
    ledger.append(LEAF, now_ms=NOW)


def test_proofs_of_a_ledger_verify(grown: Path, key: bytes) -> None:
    ledger = Ledger.read(grown, ORIGIN, key)
    head = open_head(ledger.head(), ORIGIN, key)
    for number, body in enumerate(ledger.bodies()):
        assert inclusion_valid(body, number, head.size, ledger.prove_inclusion(number), head.root)
    shorter = Ledger.read(grown, ORIGIN, key)
    assert consistency_valid(3, shorter._tree.root(3), head.size, head.root, ledger.prove_consistency(3))
