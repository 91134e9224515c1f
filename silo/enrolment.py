"""The silo's enrolment commands."""

from __future__ import annotations

import typer

from feddrm.contract.identity import Role
from feddrm.enrolment import register_member


def register(app: typer.Typer) -> None:
    """Add `init`, `join` and `roster show|accept` to `feddrm-silo`."""
    register_member(app, Role.SILO, "feddrm-silo")
