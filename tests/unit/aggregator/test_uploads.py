"""Uploads of masked inputs as a hostile silo, a full disk and a killed process see them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.uploads import Uploads
from feddrm.contract.chunks import CHUNK_BYTES, blob_hash, iter_chunks
from feddrm.contract.errors import MalformedError
from feddrm.contract.messages import Chunk, UploadReceipt

SIZE = 3 * CHUNK_BYTES + 5
DATA = hashlib.shake_256(b"a masked input").digest(SIZE)
BLOB = blob_hash(DATA)
CHUNKS = tuple(iter_chunks(DATA))


def piece(start: int, end: int) -> Chunk:
    return Chunk(BLOB, SIZE, start, DATA[start:end], blob_hash(DATA[start:end]))


def complete(uploads: Uploads, silo: str = "a") -> None:
    held = uploads.held(silo, BLOB, SIZE).held
    assert any(uploads.add(silo, chunk, SIZE) for chunk in iter_chunks(DATA, held))
    assert uploads.get(silo, BLOB) == DATA


def test_a_part_of_full_length_that_was_not_finished_is_finished(tmp_path: Path) -> None:
    """A process killed between its last write and the rename left a part to which nothing could be added."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"{BLOB.hex()}.part").write_bytes(DATA)
    assert Uploads(tmp_path).held("a", BLOB, SIZE) == UploadReceipt(BLOB, SIZE, True)
    assert Uploads(tmp_path).get("a", BLOB) == DATA


@pytest.mark.parametrize("length", [SIZE, SIZE + 1])
def test_a_damaged_part_of_full_length_is_begun_anew(tmp_path: Path, length: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"{BLOB.hex()}.part").write_bytes(bytes(length))
    uploads = Uploads(tmp_path)
    assert uploads.held("a", BLOB, SIZE) == UploadReceipt(BLOB, 0, False)
    complete(uploads)


def test_a_part_damaged_by_a_power_loss_is_found_at_the_end_and_begun_anew(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    uploads.add("a", CHUNKS[0], SIZE)
    uploads.close()
    part = tmp_path / "a" / f"{BLOB.hex()}.part"
    part.write_bytes(bytes(CHUNK_BYTES))
    again = Uploads(tmp_path)
    for chunk in CHUNKS[1:-1]:
        assert not again.add("a", chunk, SIZE)
    with pytest.raises(MalformedError, match="named by"):
        again.add("a", CHUNKS[-1], SIZE)
    assert again.held("a", BLOB, SIZE).held == 0
    complete(again)


def test_a_chunk_with_a_wrong_digest_changes_nothing(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    uploads.add("a", CHUNKS[0], SIZE)
    with pytest.raises(MalformedError, match="hash it names"):
        uploads.add("a", replace(CHUNKS[1], data=bytes(CHUNK_BYTES)), SIZE)
    assert uploads.held("a", BLOB, SIZE).held == CHUNK_BYTES
    complete(uploads)


@pytest.mark.parametrize("start", [0, 1, CHUNK_BYTES // 2, CHUNK_BYTES])
def test_chunks_may_overlap_what_is_held_but_leave_no_gap(tmp_path: Path, start: int) -> None:
    """Two connections of one silo, of which it takes the first for dead, both go on."""
    uploads = Uploads(tmp_path)
    uploads.add("a", CHUNKS[0], SIZE)
    with pytest.raises(MalformedError, match="goes on at byte"):
        uploads.add("a", piece(CHUNK_BYTES + 1, 2 * CHUNK_BYTES), SIZE)
    uploads.add("a", piece(start, CHUNK_BYTES + 10), SIZE)
    assert uploads.held("a", BLOB, SIZE).held == CHUNK_BYTES + 10
    complete(uploads)


def test_two_uploads_at_once_of_one_silo_are_one(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    problems: list[Exception] = []

    def send() -> None:
        try:
            for chunk in CHUNKS:
                uploads.add("a", chunk, SIZE)
        except MalformedError as error:
            problems.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert uploads.get("a", BLOB) == DATA


def test_silos_do_not_reach_each_others_uploads(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    complete(uploads, "a")
    assert uploads.held("b", BLOB, SIZE) == UploadReceipt(BLOB, 0, False)


def test_what_was_cleared_in_the_middle_of_an_upload_is_begun_anew(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    uploads.add("a", CHUNKS[0], SIZE)
    uploads.clear()
    with pytest.raises(MalformedError, match="goes on at byte 0"):
        uploads.add("a", CHUNKS[1], SIZE)
    complete(uploads)


FULL = """
import resource, sys
from pathlib import Path
from feddrm.transport.status import BusyError
from test_uploads import *

uploads = Uploads(Path(sys.argv[1]))
uploads.add("a", CHUNKS[0], SIZE)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK_BYTES + 1000, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        uploads.add("a", CHUNKS[1], SIZE)
    except BusyError as error:
        print(error)
print(uploads.held("a", BLOB, SIZE).held)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
complete(uploads)
print("complete")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no file size limits on this system")
def test_a_disk_that_takes_no_more_loses_nothing(tmp_path: Path) -> None:
    """A real limit on the size of files, in a process of its own: writing fails in the middle of a chunk."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "uploads"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), str(Path.cwd())))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2:] == [str(CHUNK_BYTES), "complete"]
    assert len(lines) == 4
    assert all("disk does not take" in line for line in lines[:2])
