"""Whether a directory lies where SQLite's write-ahead log and file locks hold: on a disk of this machine (design 10).

SQLite's own documentation (wal.html, section 1; faq.html, question 5) excludes network file systems: the log's index is
memory that all processes share, and a lock or an fsync that only one host knows of loses a ledger's leaf.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from feddrm.contract.errors import InputError

MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "drvfs",
        "glusterfs",
        "gfs2",
        "gpfs",
        "lustre",
        "moosefs",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "prl_fs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
    }
)
# A file system in user space says its kind after a dot, if it does. These are local: the rest may be anything.
_LOCAL_FUSE: Final = frozenset({"fuse.ext2", "fuse.fuse-overlayfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.zfs", "fuseblk"})
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, mounts: str) -> str:
    """The kind of file system that `path` lies on, or "" if the table does not say.

    Args:
        path: absolute, without symbolic links.
        mounts: the text of /proc/self/mountinfo (proc_pid_mountinfo(5)).
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:] or len(fields) < fields.index("-", 6) + 2:
            continue
        point = Path(_ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        # Of several mounts on one point the last covers the others.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[fields.index("-", 6) + 1]
    return kind


def is_network(kind: str) -> bool:
    """Whether locks or writes may be lost on a file system of this kind, as another machine may share it."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def refuse_network(directory: Path, mounts: Path = MOUNTS) -> None:
    """Refuse to keep a database on a network file system. Where the system has no table of mounts, nothing is refused.

    Raises:
        InputError: it lies on one.
    """
    try:
        table = mounts.read_text(encoding="utf-8", errors="surrogateescape")
        place = Path(os.path.realpath(directory))
    except OSError:
        return
    kind = file_system(place, table)
    if is_network(kind):
        raise InputError(
            f"{directory} lies on a network file system ({kind}), where a lock or a write may be lost.",
            remedy="Move it to a disk of this machine; back it up by exports, never by sharing it.",
        )
