"""Files that survive a crash, private files that stay private, and bounded reads.

A file is either its old or its new self: content goes to a temporary neighbour, is flushed, then takes the name. Every
failure becomes one sentence that names the file and the remedy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar, cast

from pydantic import ValidationError

from feddrm.contract.documents import explain, parse_toml
from feddrm.contract.errors import InputError, NotAuthorisedError
from feddrm.contract.names import Document

D = TypeVar("D", bound=Document)

MAXIMUM_DOCUMENT: Final = 4 << 20
MAXIMUM_KEY: Final = 64 << 10

_REMEDIES: Final = {
    errno.ENOENT: "does not exist",
    errno.EACCES: "may not be accessed by this user",
    errno.EPERM: "may not be accessed by this user",
    errno.EEXIST: "exists already",
    errno.EISDIR: "is a directory",
    errno.ENOTDIR: "lies below something that is no directory",
    errno.EROFS: "lies on a read-only file system",
    errno.ENOSPC: "cannot be written: the disk is full",
    errno.EDQUOT: "cannot be written: the disk quota is used up",
    errno.EFBIG: "cannot be written: it would exceed the largest allowed file size",
    errno.ELOOP: "is a loop of symbolic links",
    errno.ENAMETOOLONG: "has too long a name",
}


def file_error(error: OSError, path: Path) -> InputError:
    """The sentence for a failed file operation."""
    reason = _REMEDIES.get(error.errno or 0, f"cannot be used: {error.strerror or error}")
    remedy = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Free some space and run the command again; nothing was changed."
    return InputError(f"{path} {reason}.", remedy=remedy)


def full_sync(descriptor: int) -> None:
    """Make an open file's content durable."""
    os.fsync(descriptor)
    if sys.platform == "darwin":
        import fcntl

        # macOS: fsync leaves data in the drive's cache; file systems without F_FULLFSYNC refuse it.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable (a no-op on Windows, which cannot)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_neighbour(path: Path, data: bytes, mode: int) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            full_sync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _refuse_nameless(path: Path) -> None:
    if not path.name:
        raise InputError(f"{path} is a directory, and no name of a file.")


def _refuse_special(path: Path) -> None:
    """Whoever may write in /dev would put a file in the place of /dev/null or /dev/stdout."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise file_error(error, path) from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is not a regular file, and is not replaced.", remedy="Name a file.")


def atomic_write(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file's content durably and all at once.

    Args:
        mode: permissions of the new file, less the umask.

    Raises:
        InputError: the file cannot be written (disk full, permissions, ...); the old content is intact.
    """
    _refuse_nameless(path)
    _refuse_special(path)
    try:
        temporary = _write_neighbour(path, data, mode)
        try:
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise file_error(error, path) from error


def write_new(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Create a file durably and all at once; never replaces one.

    Raises:
        InputError: it exists already, or cannot be written.
    """
    _refuse_nameless(path)
    try:
        temporary = _write_neighbour(path, data, mode)
        try:
            _claim(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
    except FileExistsError as error:
        raise InputError(
            f"{path} exists already and is not overwritten.",
            remedy="Choose another directory, or move the file away if it is not needed any more.",
        ) from error
    except OSError as error:
        raise file_error(error, path) from error


def _claim(temporary: Path, path: Path) -> None:
    """Give `temporary` the name `path` unless it is taken, without a window between check and write."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK):
            raise
        # A file system without hard links: reserve the name, then replace the empty file. A crash in between
        # leaves an empty one, which no reader takes for a key.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        temporary.replace(path)


def private_write(path: Path, data: bytes) -> None:
    """Create a file that only its owner may read (0600); never replaces one.

    Raises:
        InputError: it exists already, or cannot be written.
    """
    write_new(path, data, mode=0o600)


def make_directory(path: Path, *, mode: int = 0o755) -> None:
    """Create a directory and its parents, durably; one that exists is left as it is.

    Raises:
        InputError: it cannot be created.
    """
    try:
        if path.is_dir():
            return
        if path.parent != path:
            make_directory(path.parent)
        path.mkdir(mode=mode, exist_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise file_error(error, path) from error


def _read(path: Path, limit: int, *, private: bool) -> bytes:
    try:
        # O_NONBLOCK: a named pipe in the place of a file must not stall the command.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path} is not a regular file.")
            if private:
                _refuse_exposed(path, status)
            data = stream.read(limit + 1)
    except OSError as error:
        raise file_error(error, path) from error
    if len(data) > limit:
        raise InputError(f"{path} is larger than the {limit} bytes that are allowed.")
    return data


def _refuse_exposed(path: Path, status: os.stat_result) -> None:
    if os.name == "nt":
        return  # Permission bits mean nothing there; access lists of the user's profile protect the file.
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise NotAuthorisedError(
            f"{path} holds a private key and can be read or changed by other users.", remedy=f"Run: chmod 600 {path}"
        )
    if os.geteuid() and status.st_uid not in (0, os.geteuid()):
        raise NotAuthorisedError(f"{path} holds a private key and belongs to another user.")


def read_bounded(path: Path, *, limit: int = MAXIMUM_DOCUMENT) -> bytes:
    """Read a whole regular file of at most `limit` bytes.

    Raises:
        InputError: missing, unreadable, no regular file, or larger.
    """
    return _read(path, limit, private=False)


def read_private(path: Path, *, limit: int = MAXIMUM_KEY) -> bytes:
    """Read a private key file.

    Raises:
        InputError: as `read_bounded`.
        NotAuthorisedError: group or others may access it, or it belongs to another user.
    """
    return _read(path, limit, private=True)


def read_text(path: Path, *, limit: int = MAXIMUM_DOCUMENT) -> str:
    """Read a UTF-8 file.

    Raises:
        InputError: as `read_bounded`, or not UTF-8.
    """
    try:
        return read_bounded(path, limit=limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8.") from error


# A silo reads its policy again before everything that it does. The same text means the same, and documents are frozen.
@lru_cache(maxsize=16)
def _parsed(text: str, model: type[Document]) -> Document:
    return parse_toml(text, model)


def load_document(path: Path, model: type[D]) -> D:
    """Load a TOML file into a contract document.

    Raises:
        InputError: names the file, the key and the remedy.
    """
    text = read_text(path)
    try:
        return cast("D", _parsed(text, model))
    except ValidationError as error:
        problem, remedy = explain(error, tomllib.loads(text), model)
        raise InputError(f"{path}: {problem}.", remedy=remedy) from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {str(error)[:1].lower()}{str(error)[1:]}.") from error
    except RecursionError as error:
        raise InputError(f"{path} is not valid TOML: it is nested too deeply.") from error
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: dates and times are not used in this file.", remedy="Put them in quotes.") from error
