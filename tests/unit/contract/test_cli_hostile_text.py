"""What a plan, a peer or an operating system says reaches a terminal and a log as plain sentences."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from feddrm.cli import Format, confirm, emit, invoke, make_app
from feddrm.contract.errors import ExitCode, InputError
from feddrm.contract.files import atomic_write, private_write, write_new
from feddrm.contract.plan import Plan
from feddrm.contract.policy import Policy, objections

HOSTILE = "ill\n2026-01-01 00:00:00 INFO Round 9: fine\x1b]0;owned\x07\x1b[2J\x9b31m"


def test_text_for_people_steers_no_terminal_and_json_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    emit(Format.TEXT, {"label": HOSTILE}, f"row 1: {HOSTILE}")
    shown = capsys.readouterr().out
    assert "ill" in shown
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}
    emit(Format.JSON, {"label": HOSTILE}, "")
    assert json.loads(capsys.readouterr().out) == {"label": HOSTILE}
    assert confirm(HOSTILE, "?", yes=True)
    assert "\x1b" not in capsys.readouterr().err


def test_the_classes_of_a_plan_forge_no_line_of_a_hospitals_log(plan: Plan) -> None:
    own = {"kind": "classes", "column": "stage", "values": [HOSTILE, "b"]}
    hostile = plan.model_validate({**plan.model_dump(by_alias=True), "own_targets": {plan.silos[0]: own}})
    found = objections(Policy(), hostile, 0.1, 0.1, operator=bytes(32), silo=plan.silos[0])
    assert any("own_target" in phrase for phrase in found)
    assert all(phrase.isprintable() for phrase in found)


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.EROFS, errno.EACCES, errno.EEXIST, errno.EMFILE])
def test_what_the_system_says_of_a_named_file_is_no_bug(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app("x", "x")

    @app.command()
    def one() -> None:
        raise OSError(number, os.strerror(number), "some/place")

    @app.command()
    def two() -> None:
        raise OSError(number, os.strerror(number))

    assert invoke(app, ["one"]) == ExitCode.INPUT
    assert capsys.readouterr().err.startswith("some/place ")
    with pytest.raises(OSError, match=os.strerror(number)):
        invoke(app, ["two"])


@pytest.mark.parametrize("name", ["", "."])
def test_a_file_without_a_name_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for write in (atomic_write, write_new, private_write):
        with pytest.raises(InputError, match="is a directory"):
            write(Path(name), b"x")
    assert list(tmp_path.iterdir()) == []


def test_an_output_replaces_no_device_pipe_or_directory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name in ("pipe", "stdout", "folder", "link"):
        with pytest.raises(InputError, match="is not a regular file"):
            atomic_write(tmp_path / name, b"x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "stdout").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe", "stdout"]
