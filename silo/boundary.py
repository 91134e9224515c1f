"""What the agent survives: everything that a peer, a querier or the coordinator can bring about (design 9).

Each place where their bytes arrive has one boundary: it logs the traceback here, refuses that session, round or query
with a constant reason, and goes on. A disk that cannot be written is no such thing: nothing may leave that rests on it.
"""

from __future__ import annotations

import logging
import sqlite3
import traceback
from typing import Final

from privacy.errors import LedgerError
from silo.effects import Log

logger = logging.getLogger("silo")

# Not sqlite3.Error: a value that a statement refuses may come from outside.
_FATAL: Final = (sqlite3.OperationalError, LedgerError)
INTERNAL: Final = "internal error"


def survivable(error: Exception, what: str) -> None:
    """Log an unexpected error and return, so that the caller refuses `what` and goes on.

    Raises:
        the error itself, when this silo's own files cannot be written or read.
    """
    if is_fatal(error):
        raise error
    logger.error("An internal error in %s; it is refused.", what, exc_info=error)


def is_fatal(error: Exception) -> bool:
    """Whether the error means that this silo's own files fail it."""
    # sqlite3 raises DatabaseError itself, no subclass of it, for a damaged file.
    return isinstance(error, _FATAL) or type(error) is sqlite3.DatabaseError


def internal_error(error: Exception, what: str) -> Log:
    """What went wrong, with its traceback, for the hospital's own log.

    Raises:
        the error itself, when this silo's own files fail it.
    """
    if is_fatal(error):
        raise error
    trace = "".join(traceback.format_exception(error))
    return Log(f"An internal error in {what}; it is refused.\n{trace}", warning=True)
