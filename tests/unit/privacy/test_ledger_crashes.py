"""A ledger whose process or disk fails at a bad moment loses nothing that was acknowledged."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, EVENT, NOW, ORIGIN, PLAN, WHOLE

from privacy.accounting import epsilon
from privacy.errors import LedgerCorrupt, LedgerError
from privacy.gate import Gate
from privacy.leaves import Abort, AbortReason, Dataset
from privacy.ledger import Ledger

LEAF = Dataset(bytes(32), bytes(32), bytes(32), "id", 1000)


def test_a_full_disk_stops_the_ledger_and_loses_nothing(path: Path, signer: Ed25519PrivateKey, key: bytes) -> None:
    ledger = Ledger.open(path, ORIGIN, signer, now_ms=NOW)
    assert ledger._database is not None
    pages = ledger._database.execute("PRAGMA page_count").fetchone()[0]
    ledger._database.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        for number in range(1000):
            ledger.append(Dataset(bytes(32), number.to_bytes(32), bytes(32), "id", 1000), now_ms=NOW)

    with pytest.raises(LedgerError, match="cannot be written"):
        fill()
    written = ledger.size
    assert written < 900
    with pytest.raises(LedgerError, match="not open"):
        ledger.append(LEAF, now_ms=NOW)
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as again:
        assert again.size == written
        again.append(LEAF, now_ms=NOW)


def test_threads_append_without_a_gap(ledger: Ledger, key: bytes) -> None:
    def work(start: int) -> None:
        for number in range(20):
            ledger.append(Dataset(bytes(32), (start + number).to_bytes(32), bytes(32), "id", 1000), now_ms=NOW)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Ledger.read(ledger.path, ORIGIN, key).size == 81


def test_a_crash_while_beginning_leaves_no_half_ledger(path: Path, signer: Ed25519PrivateKey) -> None:
    path.with_name("ledger.db.new").write_bytes(b"left over from a crash")
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        assert ledger.size == 1
    assert not path.with_name("ledger.db.new").exists()


def test_a_deleted_ledger_is_no_fresh_budget(grown: Path, signer: Ed25519PrivateKey) -> None:
    content = grown.read_bytes()
    grown.unlink()
    with pytest.raises(LedgerCorrupt, match="gone"):
        Ledger.open(grown, ORIGIN, signer, now_ms=NOW)
    grown.write_bytes(content)
    Ledger.open(grown, ORIGIN, signer, now_ms=NOW).close()


def test_an_older_copy_opens_since_only_peers_can_tell(
    grown: Path, signer: Ed25519PrivateKey, tmp_path: Path, key: bytes
) -> None:
    # Documents the limit that witnesses are for (test_witness, test_verify).
    copy = tmp_path / "copy.db"
    shutil.copy(grown, copy)
    with Ledger.open(grown, ORIGIN, signer, now_ms=NOW) as ledger:
        ledger.append(LEAF, now_ms=NOW)
    shutil.copy(copy, grown)
    assert Ledger.read(grown, ORIGIN, key).size == 6


CRASHING = """
import os, sys
sys.path[:0] = [sys.argv[2]]
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, EVENT, NOW, ORIGIN, PLAN, WHOLE, note_data
from privacy.gate import Gate
from privacy.ledger import Ledger
ledger = Ledger.open(sys.argv[1], ORIGIN, Ed25519PrivateKey.from_private_bytes(b"s" * 32), now_ms=NOW)
gate = Gate(ledger, CAPS)
gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
note_data(gate)
done = gate.reserve(PLAN, 1, 1, EVENT, model=bytes(32), now_ms=NOW)
gate.commit(done, bytes(32), now_ms=NOW)
gate.release(PLAN, 1, 1, sum=bytes(32), model=bytes(32), now_ms=NOW)
gate.reserve(PLAN, 1, 2, EVENT, model=bytes(32), now_ms=NOW)
print("reserved", flush=True)
sys.stdin.read()
"""


def test_kill_between_reserve_and_commit_keeps_the_spend(path: Path, signer: Ed25519PrivateKey) -> None:

    process = subprocess.Popen(
        [sys.executable, "-c", CRASHING, str(path), str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"reserved\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        gate = Gate(ledger, CAPS)
        left = gate.unresolved
        assert left is not None
        assert (left.plan, left.stage, left.round) == (PLAN, 1, 2)
        assert gate.spent(PLAN) == epsilon([EVENT, EVENT], 1e-5)
        gate.abort(PLAN, 1, 2, AbortReason.CRASHED, now_ms=NOW)
        assert gate.spent(PLAN) == epsilon([EVENT, EVENT], 1e-5)
        assert ledger.leaves()[-1].leaf == Abort(PLAN, 1, 2, AbortReason.CRASHED)
        assert gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW) == 1


APPENDING = """
import sys
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy.leaves import Dataset
from privacy.ledger import Ledger
ledger = Ledger.open(sys.argv[1], "feddrm/retina/hospital-a", Ed25519PrivateKey.from_private_bytes(b"s" * 32), now_ms=1)
while True:
    print(ledger.append(Dataset(bytes(32), ledger.size.to_bytes(32), bytes(32), "id", 1000), now_ms=1), flush=True)
"""


@pytest.mark.parametrize("lines", [1, 7, 40])
def test_kill_in_the_middle_of_appending_loses_no_acknowledged_leaf(
    path: Path, signer: Ed25519PrivateKey, lines: int
) -> None:
    process = subprocess.Popen([sys.executable, "-c", APPENDING, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(lines):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split(b"\n")
    process.wait()
    process.stdout.close()
    acknowledged = lines + len(rest) - 1
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        # One more may be durable whose number was not printed any more.
        assert ledger.size - 1 in (acknowledged, acknowledged + 1)


def test_opening_twice_in_one_process_after_close(
    path: Path, signer: Ed25519PrivateKey, play: Callable[..., None]
) -> None:

    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        play(Gate(ledger, CAPS), range(1, 3))
        head = ledger.head()
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        assert ledger.head() == head
    ledger.close()
