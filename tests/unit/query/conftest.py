from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from query_service import Running
from query_world import ROWS, Run, World

from feddrm.cli import invoke
from feddrm.query.cli import app


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with Running(world) as port:
        world.join(port)
        yield world


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command on a table of four patients: (exit code, JSON, what went to stderr)."""
    table = world.directory / "patients.csv"
    table.write_text("age,sex,ignored\n" + "".join(f"{age},{sex},x\n" for age, sex in ROWS))

    def run(command: str, *arguments: str, file: Path = table) -> tuple[int, Any, str]:
        code = invoke(app, [command, str(file), "--dir", str(world.querier), "--format", "json", *arguments])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else None, captured.err

    return run
