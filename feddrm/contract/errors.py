"""Errors that say whose fault it is, and the exit codes that all commands share.

An error carries the sentence a person reads. Whoever raises one names the file, the key and the remedy where
there is one; whoever prints it (feddrm.cli) adds nothing.
"""

from __future__ import annotations

import shlex
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit codes of every feddrm command."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    INPUT = 3
    NOT_AUTHORISED = 4
    BUDGET = 5
    VERIFICATION = 6
    UNREACHABLE = 7
    ALREADY_RUNNING = 8


class FeddrmError(Exception):
    """Base of all errors that are meant for a person.

    Args:
        message: one clear sentence; names file and key where there is one.
        remedy: what the reader can do about it, or empty.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class UsageError(FeddrmError):
    """The command line itself is wrong."""

    exit_code = ExitCode.USAGE


class InputError(FeddrmError):
    """A file, key or value that the user gave is refused."""

    exit_code = ExitCode.INPUT


class MissingExtraError(InputError):
    """A command needs an optional dependency group that is not installed."""

    def __init__(self, command: str, extra: str, missing: str) -> None:
        super().__init__(
            f"{command} needs {missing}, which is not installed.", remedy=f"Run: pip install 'feddrm[{extra}]'"
        )


class NotAuthorisedError(FeddrmError):
    """The other side, or this side, may not do what was asked."""

    exit_code = ExitCode.NOT_AUTHORISED


class BudgetError(FeddrmError):
    """A privacy budget or a policy limit would be passed."""

    exit_code = ExitCode.BUDGET


class VerificationError(FeddrmError):
    """A signature, hash, proof or sum does not verify."""

    exit_code = ExitCode.VERIFICATION


class UnreachableError(FeddrmError):
    """The other side cannot be reached, or did not answer in time."""

    exit_code = ExitCode.UNREACHABLE


class AlreadyRunningError(FeddrmError):
    """Another process holds this directory or port."""

    exit_code = ExitCode.ALREADY_RUNNING


class MalformedError(FeddrmError):
    """Bytes from a peer do not have the agreed form (a peer's fault, never the local user's)."""

    exit_code = ExitCode.VERIFICATION


def in_shell(path: Path | str) -> str:
    """A path as a shell takes it, for a remedy or hint that names a command."""
    return shlex.quote(str(path))
