"""What the agent adds to a silo's directory (feddrm.contract.home): settings, state/, and the lock against a second."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from feddrm.contract.disk import refuse_network
from feddrm.contract.errors import AlreadyRunningError, InputError, in_shell
from feddrm.contract.files import file_error, load_document
from feddrm.contract.names import Document
from feddrm.contract.schema import ColumnName


class AgentSettings(Document):
    """local/agent.toml; every key has a default, and a missing file means all defaults.

    Attributes:
        torch_threads: threads of one training step. More than one makes several processes on one machine fight.
        capacity: queries answered at once.
        answers_per_day: what one querier may ask in a day (UTC); an answer maps a decision boundary.
        slot_seconds: answers to a plan, and the message after training, leave this long after they were asked for, or
            twice, four, eight ... times as long, so that the time they took tells little about the records.
    """

    torch_threads: Annotated[int, Field(ge=1, le=256)] = 1
    capacity: Annotated[int, Field(ge=0, le=4096)] = 8
    answers_per_day: Annotated[int, Field(ge=0)] = 1000
    slot_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.5


class DataSettings(Document):
    """local/data.toml.

    Attributes:
        records: table file, relative to local/ unless absolute.
        patient: the column that names the patient, the unit of privacy. A plan that takes another column for it (a
            visit, say) would protect less than it claims, and is declined. Fixed for life.
        public_size: approximate number of patients, from a public fact or a charged noisy count; fixed for life.
        extractor: file of the public feature extractor, for plans with a "frozen" model; a path as that of `records`.
    """

    records: Annotated[str, Field(min_length=1)]
    patient: ColumnName
    public_size: Annotated[int, Field(ge=1, le=10**9)]
    extractor: Annotated[str, Field(min_length=1)] | None = None


DATA_FILE: Final = "data.toml"


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of a silo's directory."""

    root: Path

    @property
    def local(self) -> Path:
        """The hospital's own, editable files."""
        return self.root / "local"

    @property
    def state(self) -> Path:
        """What the agent writes."""
        return self.root / "state"

    @property
    def database(self) -> Path:
        """The agent's memory."""
        return self.state / "agent.db"

    @property
    def ledger(self) -> Path:
        """The privacy ledger."""
        return self.state / "ledger.db"

    @property
    def ledger_note(self) -> Path:
        """Says that a ledger was begun, outside of state/, so that who wipes that wipes no memory of what was spent."""
        return self.root / "startup" / "ledger.begun"

    @property
    def lock(self) -> Path:
        """Locked while an agent runs; holds its process id."""
        return self.state / "agent.pid"

    def check(self) -> None:
        """Refuse a directory that is not a silo's at all.

        Raises:
            InputError: it is not.
        """
        if not self.local.is_dir():
            raise InputError(
                f"{self.root} is not a silo's directory.", remedy="Make one: feddrm-silo init DIR --name NAME"
            )

    def settings(self) -> AgentSettings:
        """Read local/agent.toml.

        Raises:
            InputError: malformed.
        """
        path = self.local / "agent.toml"
        return load_document(path, AgentSettings) if path.exists() else AgentSettings()

    def data_settings(self) -> DataSettings:
        """Read local/data.toml.

        Raises:
            InputError: missing or malformed.
        """
        return load_document(self.local / DATA_FILE, DataSettings)


@contextmanager
def exclusive(home: Home) -> Iterator[None]:
    """Hold the directory for this process; the lock dies with the process, however it dies.

    Raises:
        AlreadyRunningError: another process holds it.
        InputError: there is no such directory, or it lies on a network file system, whose locks do not hold.
    """
    home.check()
    refuse_network(home.state if home.state.exists() else home.root)
    _make_private(home.state)
    descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunningError(
                f"Another agent (process {_pid(home) or 'unknown'}) runs on {home.root}.",
                remedy=f"Stop it first: feddrm-silo stop {in_shell(home.root)}.",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _make_private(state: Path) -> None:
    """Updates before masking lie there: nobody else on the machine may list or read it."""
    try:
        state.mkdir(mode=0o700, exist_ok=True)
        found = state.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise InputError(
                f"{state} is no directory of the user who runs the agent.", remedy="Run the agent as its owner."
            )
        if found.st_mode & 0o077:
            state.chmod(0o700)
    except OSError as error:
        raise file_error(error, state) from error


def running(home: Home) -> int | None:
    """The process id of the agent that holds the directory, or None."""
    if not home.lock.exists():
        return None
    descriptor = os.open(home.lock, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid(home)
    finally:
        os.close(descriptor)
    return None


def _pid(home: Home) -> int | None:
    text = home.lock.read_text(encoding="ascii").strip()
    return int(text) if text.isdecimal() else None
