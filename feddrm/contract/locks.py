"""One command at a time: a lock that the operating system lets go of when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from feddrm.contract.errors import AlreadyRunningError, FeddrmError, InputError
from feddrm.contract.files import file_error


@contextlib.contextmanager
def exclusive(path: Path, *, what: str) -> Iterator[None]:
    """Hold an exclusive lock while the block runs; the operating system lets go of it when the process ends.

    Args:
        path: the lock file; it is created and stays.
        what: who holds it in the error, such as "Another enrolment".

    Raises:
        AlreadyRunningError: another process holds it.
        InputError: its directory does not exist, or it cannot be created.
    """
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a directory.")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise file_error(error, path) from error
    try:
        _lock(descriptor, path, what)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, what: str) -> None:
    failure: FeddrmError = AlreadyRunningError(f"{what} is using {path.parent}.", remedy="Wait for it, or stop it.")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            raise file_error(error, path) from error
        raise failure from error
