"""A command that is given somebody else's directory says so and exits with 3: nothing was verified, nothing failed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aggregator.cli import app as aggregator
from feddrm.cli import invoke
from feddrm.contract.identity import Role
from feddrm.query.cli import app as query
from silo.cli import app as silo

APPS = {"feddrm-silo": silo, "feddrm-query": query, "feddrm-aggregator": aggregator}
# Command line, then the directories that it takes: all others are wrong.
COMMANDS = [
    ("feddrm-silo status DIR", {"silo"}),
    ("feddrm-silo serve DIR", {"silo"}),
    ("feddrm-silo stop DIR", {"silo"}),
    ("feddrm-silo preflight DIR", {"silo"}),
    ("feddrm-silo predict DIR TABLE", {"silo"}),
    ("feddrm-silo ledger export DIR -o OUT", {"silo"}),
    ("feddrm-silo ledger evidence DIR -o OUT", {"silo"}),
    ("feddrm-silo roster show --dir DIR", {"silo", "querier"}),
    ("feddrm-silo roster accept --yes --dir DIR", {"silo", "querier"}),
    ("feddrm-query route TABLE --patience 0 --dir DIR", {"querier"}),
    ("feddrm-query ask TABLE --patience 0 --dir DIR", {"querier"}),
    ("feddrm-aggregator status --operator DIR", {"operator"}),
    ("feddrm-aggregator roster show --operator DIR", {"operator"}),
    ("feddrm-aggregator roster publish --operator DIR", {"operator"}),
    ("feddrm-aggregator release list --operator DIR", {"operator"}),
    ("feddrm-aggregator job stop --operator DIR", {"operator"}),
    ("feddrm-aggregator serve DIR", {"server", "both"}),
    ("feddrm-aggregator log DIR", {"server", "both"}),
]
PLACES = ("silo", "querier", "operator", "server", "both", "empty", "missing", "file")


@pytest.fixture
def places(federation, tmp_path: Path) -> dict[str, Path]:
    table, empty = tmp_path / "table.csv", tmp_path / "empty"
    table.write_text("age\n1\n")
    empty.mkdir()
    operator = tmp_path / "operator"
    shutil.copytree(federation.operator, operator)
    return {
        "silo": federation.member("a"),
        "querier": federation.member("desk", Role.QUERIER),
        "operator": operator,
        "server": federation.server,
        "both": federation.server.parent,
        "empty": empty,
        "missing": tmp_path / "missing",
        "file": table,
    }


@pytest.mark.parametrize(("line", "right"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_a_wrong_directory_is_a_wrong_input(
    places: dict[str, Path], tmp_path: Path, line: str, right: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = line.split()
    for place in PLACES:
        if place in right:
            continue
        replaced = {"DIR": places[place], "TABLE": places["file"], "OUT": tmp_path / "out"}
        code = invoke(APPS[program], [str(replaced.get(word, word)) for word in words])
        printed = capsys.readouterr()
        assert code == 3, (place, printed)
        assert str(places[place]) in printed.err, (place, printed)
        assert printed.out == ""
        assert not places["missing"].exists(), "a command that was refused made a directory"
        assert list(places["empty"].iterdir()) == []
