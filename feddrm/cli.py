"""What the command lines share: output formats, exit codes, one-sentence errors, confirmation, progress.

A command prints its result on stdout and everything else on stderr. Errors that are somebody's fault are one sentence
and an exit code (feddrm.contract.errors); anything else is a bug of ours, whose traceback goes to a private file.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, NoReturn

import typer

from feddrm.contract.errors import ExitCode, FeddrmError, MissingExtraError, UsageError

# Read by gRPC when it is imported; its C core would print a line for every refused handshake over progress and JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
_FIRST_LINE_SECONDS: Final = 2.0
_LINE_SECONDS: Final = 5.0
# Typer's parser carries its own copy of click in some versions and uses the package in others.
_PARSER_ERROR: Final[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class Format(StrEnum):
    """How a command prints its result."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="Print text for people, or one JSON object.")]


def make_app(name: str, about: str) -> typer.Typer:
    """The typer application of one command line."""
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def run(app: typer.Typer, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and leave the process with its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Closed by whoever started this command (`>&-`): what it prints is not wanted.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (lives as long as the process)
        # A terminal that cannot show a character shows another one; that is no reason to fail.
        with contextlib.suppress(AttributeError):
            getattr(sys, name).reconfigure(errors="replace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.excepthook = _crash_hook(arguments)
    sys.exit(invoke(app, arguments))


def invoke(app: typer.Typer, argv: Sequence[str]) -> int:
    """Run a command line.

    Returns:
        the exit code: `ExitCode`, or 128 plus the signal's number for Ctrl-C and a closed pipe. A full disk under
        stdout is the user's to mend (INPUT), not a bug.
    """
    arguments = list(argv)
    command = typer.main.get_command(app)
    try:
        try:
            with command.make_context(app.info.name or "feddrm", arguments) as context:
                command.invoke(context)
        except typer.Exit as done:
            sys.stdout.flush()
            return done.exit_code
        except FeddrmError as error:
            _report(argv, error.exit_code, error.message, error.remedy)
            return error.exit_code
        except _PARSER_ERROR as error:
            return _usage(argv, error, app.info.name or "feddrm")
        except (KeyboardInterrupt, EOFError, typer.Abort):
            print("Interrupted.", file=sys.stderr)
            return INTERRUPTED
        sys.stdout.flush()
    except MemoryError:
        _report(argv, ExitCode.INPUT, "What was asked for does not fit in this machine's memory.", "")
        return ExitCode.INPUT
    except BrokenPipeError:
        # The reader has left, as in `... | head`.
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.filename is not None:
            # What the system says of a file that somebody named, or of a directory that cannot be written, is no bug.
            found = _file_error(error)
            _report(argv, found.exit_code, found.message, found.remedy)
            return found.exit_code
        # All files are written by feddrm.contract.files, which translates; an error without a file's name is stdout's.
        if error.errno not in _UNWRITABLE:
            raise
        _discard_output()
        _report(
            argv,
            ExitCode.INPUT,
            f"Standard output cannot be written: {(error.strerror or str(error)).lower()}.",
            "What the command did stands, but its result was not printed in full; see to the output and repeat it.",
        )
        return ExitCode.INPUT
    return ExitCode.DONE


def _file_error(error: OSError) -> FeddrmError:
    # Not above: `--help` loads no validator.
    from feddrm.contract.files import file_error

    return file_error(error, Path(os.fsdecode(error.filename)))


def _discard_output() -> None:
    """Let what stdout still holds go, or Python would complain once more when it closes it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(argv: Sequence[str], error: Any, program: str) -> int:
    message = str(error.format_message()).replace("Value error, ", "")
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message, file=sys.stderr)
        return ExitCode.USAGE
    context = getattr(error, "ctx", None)
    command = program if context is None else context.command_path
    _report(argv, ExitCode.USAGE, message, f"Try: {command} --help")
    return ExitCode.USAGE


def _wants_json(argv: Sequence[str]) -> bool:
    # Read from the raw arguments, as an error may come before they are parsed.
    return "--format=json" in argv or ("--format", "json") in itertools.pairwise(argv)


def _report(argv: Sequence[str], code: ExitCode, message: str, remedy: str) -> None:
    try:
        sys.stdout.flush()
    except OSError:
        # The error in hand is the one to report.
        _discard_output()
    with contextlib.suppress(OSError):
        print(printable(f"{message} {remedy}".strip()), file=sys.stderr, flush=True)
    if _wants_json(argv):
        entry = {"code": int(code), "kind": code.name.lower(), "message": message, "remedy": remedy}
        try:
            print(json.dumps({"error": entry}), flush=True)
        except OSError:
            _discard_output()


def printable(text: str) -> str:
    """Text without control characters: what a peer or a file wrote must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _crash_hook(argv: Sequence[str]) -> Callable[[type[BaseException], BaseException, TracebackType | None], None]:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        descriptor, name = tempfile.mkstemp(prefix="feddrm-crash-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
            traceback.print_exception(kind, error, trace, file=stream)
        _report(
            argv,
            ExitCode.INTERNAL,
            f"Internal error ({kind.__name__}): this is a bug in feddrm, not a mistake of yours.",
            f"The details are in {name}; look it through before you send it to anybody.",
        )

    return hook


def emit(form: Format, document: Mapping[str, object], text: str) -> None:
    """Print a result: one JSON object, or text for people."""
    print(json.dumps(document) if form is Format.JSON else printable(text))


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as aligned text; columns of numbers are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in (list(headers), *cells)) for i in range(len(headers))]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(headers))]

    def line(parts: Sequence[str]) -> str:
        padded = (p.rjust(w) if r else p.ljust(w) for p, w, r in zip(parts, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    return "\n".join((line(headers), line(["-" * w for w in widths]), *map(line, cells)))


def confirm(shown: str, question: str, *, yes: bool) -> bool:
    """Show a person something and ask; `--yes` answers for them.

    Args:
        shown: goes to stderr, as does the question: stdout holds the result only.

    Raises:
        UsageError: nobody can be asked.
    """
    print(printable(shown), file=sys.stderr)
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            "This needs a person's confirmation, and the input is no terminal.",
            remedy="Run it in a terminal, or add --yes after you have compared what it shows.",
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return input().strip().lower() in {"y", "yes"}


def require_extra(command: str, extra: str, modules: Sequence[str]) -> None:
    """Check, without importing, that an optional dependency group is installed.

    Raises:
        MissingExtraError: it is not; names the line that installs it.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(command, extra, module)


def now_ms() -> int:
    """This machine's clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def existing_directory(path: Path, *, what: str) -> Path:
    """`path` if it is a directory.

    Raises:
        UsageError: it is not.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory.", remedy=f"Name {what}.")
    return path


class Progress:
    """Steps done out of `total`; see `progress`."""

    def __init__(self, show: Callable[[int, str], None]) -> None:
        self._show = show
        self.done = 0

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Say that `steps` more are done."""
        self.done += steps
        self._show(self.done, note)


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Progress]:
    """Show progress on stderr: a bar when a person is watching, else a plain line every few seconds."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield Progress(lambda done, note: bar.update(task, completed=done, description=f"{what} {note}".strip()))
        return
    start = time.monotonic()
    due = start + _FIRST_LINE_SECONDS

    def show(done: int, note: str) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + _LINE_SECONDS
            print(f"{what}: {done} of {total} {note}".rstrip(), file=sys.stderr, flush=True)

    yield Progress(show)
    elapsed = time.monotonic() - start
    if elapsed >= _FIRST_LINE_SECONDS:
        print(f"{what}: done in {elapsed:.0f} s", file=sys.stderr, flush=True)
