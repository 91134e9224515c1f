"""How every command line fails, answers and is interrupted; most of it in real processes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feddrm.cli import invoke, make_app, printable, require_extra, table
from feddrm.contract.errors import BudgetError, InputError, MissingExtraError

PROGRAM = """
import sys, time
from feddrm.cli import FormatOption, Format, confirm, emit, make_app, progress, run
from feddrm.contract.errors import BudgetError
app = make_app("feddrm-test", "A test.")
@app.command()
def good(form: FormatOption = Format.TEXT) -> None:
    emit(form, {"answer": 42}, "the answer is 42")
@app.command()
def budget(form: FormatOption = Format.TEXT) -> None:
    raise BudgetError("Over the cap\\x1b[31m.", remedy="Raise it.")
@app.command()
def bug(form: FormatOption = Format.TEXT) -> None:
    secret = "patient 17"
    raise KeyError("x")
@app.command()
def many() -> None:
    for number in range(100000): print(number)
@app.command()
def wait() -> None:
    print("waiting", flush=True); time.sleep(60)
@app.command()
def ask(yes: bool = False) -> None:
    print("yes" if confirm("shown", "Really?", yes=yes) else "no")
@app.command()
def slow() -> None:
    with progress("Working", 3) as bar:
        for step in range(3): time.sleep(0.9); bar.advance(note=f"step {step}")
run(app)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return [sys.executable, str(path)]


def _run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


def test_results_go_to_stdout_in_either_form(program: list[str]) -> None:
    done = _run([*program, "good"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "the answer is 42\n", "")
    assert json.loads(_run([*program, "good", "--format", "json"]).stdout) == {"answer": 42}


def test_a_fault_is_one_sentence_an_exit_code_and_an_object(program: list[str]) -> None:
    done = _run([*program, "budget"])
    assert (done.returncode, done.stdout) == (5, "")
    # The escape sequence in the message does not reach the terminal.
    assert done.stderr == "Over the cap?[31m. Raise it.\n"
    for option in (["--format", "json"], ["--format=json"]):
        done = _run([*program, "budget", *option])
        assert done.returncode == 5
        assert json.loads(done.stdout)["error"]["kind"] == "budget"
        assert json.loads(done.stdout)["error"]["code"] == 5


def test_a_bug_leaves_no_traceback_but_a_private_file(program: list[str], tmp_path: Path) -> None:
    done = _run([*program, "bug", "--format", "json"], env=os.environ | {"TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(done.stdout)["error"]["kind"] == "internal"
    (log,) = tmp_path.glob("feddrm-crash-*.log")
    assert str(log) in done.stderr
    assert log.stat().st_mode & 0o777 == 0o600
    assert "KeyError" in log.read_text()
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bogus"], "No such command 'bogus'."),
        (["good", "--bogus"], "No such option"),
        (["good", "--format", "xml"], "'xml' is not one of 'text', 'json'"),
        (["good", "--format"], "requires an argument"),
        (["good", "extra"], "unexpected extra argument"),
    ],
)
def test_usage_errors(program: list[str], arguments: list[str], message: str) -> None:
    done = _run([*program, *arguments])
    assert done.returncode == 2
    assert message in done.stderr
    assert "--help" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Value error" not in done.stderr


def test_no_command_shows_the_help_and_help_is_no_error(program: list[str]) -> None:
    done = _run(program)
    assert done.returncode == 2
    assert "Commands:" in done.stderr
    done = _run([*program, "--help"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "Commands:" in done.stdout


def test_a_reader_that_leaves_is_no_error_of_ours(program: list[str]) -> None:
    with subprocess.Popen([*program, "many"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["good"], 3, "Standard output cannot be written: no space left on device."),
        (["good", "--format", "json"], 3, "Standard output cannot be written: no space left on device."),
        (["many"], 3, "Standard output cannot be written: no space left on device."),
        (["--help"], 3, "Standard output cannot be written: no space left on device."),
        (["budget", "--format", "json"], 5, "Over the cap"),
    ],
)
def test_a_full_disk_under_the_output_is_no_bug_of_ours(
    program: list[str], arguments: list[str], code: int, words: str
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*program, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == code
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1, "neither a traceback nor Python's own complaint at exit"


@pytest.mark.parametrize(("arguments", "code"), [(["good"], 0), (["budget"], 5), (["budget", "--format", "json"], 5)])
def test_an_output_that_was_closed_changes_no_exit_code(program: list[str], arguments: list[str], code: int) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *program, *arguments]
    done = _run(command)
    assert done.returncode == code
    assert "Internal error" not in done.stderr


def test_an_error_for_a_reader_that_has_left_keeps_its_exit_code(program: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*program, "budget", "--format", "json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert done.returncode == 5
    assert done.stderr == "Over the cap?[31m. Raise it.\n"


def test_ctrl_c_is_one_line(program: list[str]) -> None:
    with subprocess.Popen(
        [*program, "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Whoever runs the tests in the background of a shell hands an ignored SIGINT down to every process.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"Interrupted.\n"
        assert process.wait(30) == 130


def test_nobody_confirms_what_nobody_can_see(program: list[str]) -> None:
    done = _run([*program, "ask"], stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "needs a person's confirmation" in done.stderr
    done = _run([*program, "ask"], input="y\n")
    assert done.returncode == 2
    done = _run([*program, "ask", "--yes"], stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "yes\n", "shown\n")


@pytest.mark.parametrize(("typed", "answer"), [("y", "yes"), ("YES", "yes"), ("", "no"), ("n", "no"), ("yy", "no")])
def test_a_person_at_a_terminal_is_asked(program: list[str], typed: str, answer: str) -> None:
    controller, terminal = pty.openpty()
    try:
        with subprocess.Popen([*program, "ask"], stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            os.write(controller, typed.encode() + b"\n")
            out, err = p.communicate(timeout=30)
    finally:
        os.close(controller)
        os.close(terminal)
    assert out.decode() == answer + "\n"
    assert err.decode() == "shown\nReally? [y/N] "


def test_progress_without_a_terminal_is_plain_and_rare(program: list[str]) -> None:
    done = _run([*program, "slow"])
    assert done.stdout == ""
    *lines, last = done.stderr.splitlines()
    # On a slow machine the first line is not the last step's.
    assert 1 <= len(lines) <= 2
    assert all(re.fullmatch(r"Working: (1 of 3 step 0|2 of 3 step 1|3 of 3 step 2)", line) for line in lines)
    assert re.fullmatch(r"Working: done in \d+ s", last)


def test_progress_at_a_terminal_is_a_bar_that_goes_away(program: list[str]) -> None:
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*program, "slow"], stdout=subprocess.PIPE, stderr=terminal, env=os.environ | {"TERM": "xterm"}
    ) as process:
        os.close(terminal)
        seen = b""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                part = os.read(controller, 4096)
            except OSError:
                break
            if not part:
                break
            seen += part
        os.close(controller)
    assert process.returncode == 0
    assert b"Working" in seen
    assert b"\x1b[" in seen


def test_a_missing_extra_names_the_line_that_installs_it() -> None:
    require_extra("feddrm-silo serve", "silo", ["json"])
    with pytest.raises(MissingExtraError) as caught:
        require_extra("feddrm-silo serve", "silo", ["json", "no_such_module_at_all"])
    assert "pip install 'feddrm[silo]'" in str(caught.value)
    assert "no_such_module_at_all" in str(caught.value)


def test_tables_align() -> None:
    text = table(("silo", "epsilon"), [("a", 1.5), ("hospital", 12.25)])
    assert text.splitlines() == ["silo      epsilon", "--------  -------", "a             1.5", "hospital    12.25"]
    assert table(("a",), []) == "a\n-"


def test_printable_keeps_text_and_drops_control() -> None:
    assert printable("Grüße …\n\tx\x1b]0;evil\x07\x9b") == "Grüße …\n\tx?]0;evil??"


def test_invoke_returns_codes_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app("x", "x")

    @app.command()
    def one(code: int) -> None:
        raise (InputError if code == 3 else BudgetError)("No.")

    @app.command()
    def two() -> None:
        return None

    assert [invoke(app, ["one", "3"]), invoke(app, ["one", "5"]), invoke(app, ["two"])] == [3, 5, 0]
    assert capsys.readouterr().err == "No.\nNo.\n"
