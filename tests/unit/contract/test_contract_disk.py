"""Databases on file systems that other machines share are refused: a lock or a write may be lost there."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.store import Store
from feddrm.contract import disk
from feddrm.contract.disk import file_system, is_network, refuse_network
from feddrm.contract.errors import ExitCode, InputError
from silo.home import Home, exclusive

TABLE = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /proc rw - proc proc rw
40 22 0:44 / /mnt/hospital\040share rw,relatime shared:2 master:1 - nfs4 server:/export rw,vers=4.2
41 40 0:45 / /mnt/hospital\040share/local rw - xfs /dev/sdb1 rw
42 22 0:46 / /mnt/ssh rw - fuse.sshfs host:/ rw
43 22 0:47 / /mnt/cover rw - ext4 /dev/sdc1 rw
44 43 0:48 / /mnt/cover rw - cifs //host/share rw
45 22 0:49 / /mnt/ntfs rw - fuseblk /dev/sdd1 rw
46 22 0:50 / /mnt/rclone rw - fuse.rclone remote: rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/var/lib/feddrm", "ext4", False),
        ("/mnt/hospital share/silo", "nfs4", True),
        ("/mnt/hospital share", "nfs4", True),
        ("/mnt/hospital shared/silo", "ext4", False),
        ("/mnt/hospital share/local/silo", "xfs", False),
        ("/mnt/ssh/silo", "fuse.sshfs", True),
        ("/mnt/cover/silo", "cifs", True),
        ("/mnt/ntfs/silo", "fuseblk", False),
        ("/mnt/rclone/silo", "fuse.rclone", True),
    ],
)
def test_the_innermost_and_last_mount_decides(path: str, kind: str, network: bool) -> None:
    assert file_system(Path(path), TABLE) == kind
    assert is_network(kind) is network


def test_a_link_into_a_share_is_followed(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "silo").symlink_to(share)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 0 8:1 / / rw - ext4 x rw\n2 1 0:9 / {share} rw - smb3 //host/share rw\n")
    with pytest.raises(InputError, match=r"network file system \(smb3\)") as refused:
        refuse_network(tmp_path / "silo", mounts)
    assert refused.value.exit_code == ExitCode.INPUT
    assert "disk of this machine" in refused.value.remedy
    refuse_network(tmp_path, mounts)
    refuse_network(tmp_path, tmp_path / "no such table")


def test_silo_and_coordinator_refuse_before_they_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"2 1 0:9 / {tmp_path} rw - nfs server:/ rw\n")
    monkeypatch.setattr(disk.refuse_network, "__defaults__", (mounts,))
    (tmp_path / "silo" / "local").mkdir(parents=True)
    with pytest.raises(InputError, match="nfs"), exclusive(Home(tmp_path / "silo")):
        pass
    assert not (tmp_path / "silo" / "state").exists()
    (tmp_path / "server").mkdir()
    with pytest.raises(InputError, match="nfs"):
        Store.open(tmp_path / "server")
    assert not list((tmp_path / "server").iterdir())
