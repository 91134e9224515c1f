"""Joining with a kit."""

from __future__ import annotations

from pathlib import Path

from feddrm.contract.home import join_member
from feddrm.contract.identity import Role


def join_with(federation, kit: Path, name: str = "a", role: Role = Role.SILO, now: int | None = None, fp: str = ""):
    return join_member(
        federation.path / name, kit, fp or federation.anchor.fingerprint, role, federation.now if now is None else now
    )


def nothing_joined(federation, name: str = "a") -> bool:
    return not (federation.path / name / "startup").exists()
