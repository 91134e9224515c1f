"""What several of the operator's and the coordinator's commands are given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OperatorOption = Annotated[Path, typer.Option("--operator", metavar="DIR", help="The operator's directory.")]


def server_in(directory: Path) -> Path:
    """The server's directory: the one given, or `server` in it where that is what `init` made."""
    inside = directory / "server"
    return inside if inside.is_dir() else directory
