from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from feddrm.contract import files, locks
from feddrm.contract.errors import AlreadyRunningError, InputError, NotAuthorisedError


def test_a_failing_write_leaves_the_old_content_and_no_leftovers(tmp_path: Path) -> None:
    """A real failure: the process may write no file beyond 4096 bytes."""
    target = tmp_path / "state"
    target.write_bytes(b"old")
    code = (
        "import resource, sys; from pathlib import Path; from feddrm.contract.files import atomic_write\n"
        "from feddrm.contract.errors import InputError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: atomic_write(Path(sys.argv[1]), b'x' * 10000)\n"
        "except InputError as error: print(error); sys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert str(target) in done.stdout
    assert "largest allowed file size" in done.stdout
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_a_full_disk_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    for write in (files.atomic_write, files.private_write):
        with pytest.raises(InputError, match=r"disk is full\. Free some space"):
            write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_sigkill_never_leaves_half_a_file(tmp_path: Path) -> None:
    target = tmp_path / "state"
    code = (
        "import sys; from pathlib import Path; from feddrm.contract.files import atomic_write\n"
        "i = 0\n"
        "while True:\n"
        "    i += 1\n"
        "    atomic_write(Path(sys.argv[1]), bytes([i % 251]) * 300_000)\n"
    )
    for attempt in range(5):
        process = subprocess.Popen([sys.executable, "-c", code, str(target)])
        deadline = time.monotonic() + 30
        while not target.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.011 * (attempt + 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        data = target.read_bytes()
        assert len(data) == 300_000
        assert len(set(data)) == 1
        target.unlink()


def test_private_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files.private_write(tmp_path / "key", b"secret")
    finally:
        os.umask(before)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert files.read_private(tmp_path / "key") == b"secret"


@pytest.mark.parametrize("links", [True, False])
def test_of_many_writers_of_one_new_file_exactly_one_wins(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    won, lost = [], []

    def write(number: int) -> None:
        try:
            files.private_write(tmp_path / "key", bytes([number]) * 1000)
            won.append(number)
        except InputError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "key").read_bytes() == bytes(won) * 1000
    assert all("exists already and is not overwritten" in message for message in lost)
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o601, 0o644, 0o666])
def test_an_exposed_key_is_refused_with_the_command_that_mends_it(tmp_path: Path, mode: int) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"secret")
    key.chmod(mode)
    with pytest.raises(NotAuthorisedError, match=f"chmod 600 {key}"):
        files.read_private(key)


def test_reads_are_bounded_and_of_regular_files_only(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * 101)
    assert len(files.read_bounded(big, limit=101)) == 101
    with pytest.raises(InputError, match="larger than the 100 bytes"):
        files.read_bounded(big, limit=100)
    with pytest.raises(InputError, match=r"is a directory|not a regular file"):
        files.read_bounded(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        files.read_bounded(tmp_path / "absent")
    with pytest.raises(InputError, match="below something that is no directory"):
        files.read_bounded(big / "x")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        files.read_bounded(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="loop of symbolic links"):
        files.read_bounded(tmp_path / "loop")
    with pytest.raises(InputError, match="not a regular file"):
        files.read_bounded(Path("/dev/zero"))


def test_text_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a text file in UTF-8"):
        files.read_text(tmp_path / "t")
    (tmp_path / "t").write_bytes(b"\xef\xbb\xbfa = 1")
    assert files.read_text(tmp_path / "t") == "a = 1"


def test_a_lock_keeps_others_out_and_dies_with_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path; from feddrm.contract.locks import exclusive\n"
        "with exclusive(Path(sys.argv[1]), what='X'): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with (
            pytest.raises(AlreadyRunningError, match="Another enrolment is using"),
            locks.exclusive(lock, what="Another enrolment"),
        ):
            pytest.fail("two holders")
        process.kill()
    with locks.exclusive(lock, what="Another enrolment"):
        pass
    with pytest.raises(InputError, match="is not a directory"), locks.exclusive(tmp_path / "no" / "lock", what="X"):
        pytest.fail("no directory")
