"""Readers of single leaf fields: each returns the value or raises MalformedError, and none repairs anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Final

from privacy.accounting import MINIMUM_DELTA
from privacy.errors import MalformedError

HOUR_FORMAT: Final = "%Y-%m-%dT%H:00:00Z"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}\Z")


def hour(value: object) -> str:
    """A whole hour, UTC, in exactly one spelling."""
    if isinstance(value, str) and _is_hour(value):
        return value
    raise MalformedError("a leaf's time is a whole hour such as 2026-01-31T09:00:00Z")


# The leaves of a round are of one hour or two.
@lru_cache(maxsize=64)
def _is_hour(text: str) -> bool:
    try:
        return datetime.strptime(text, HOUR_FORMAT).strftime(HOUR_FORMAT) == text
    except ValueError:
        return False


def digest(value: object) -> bytes:
    """A hash, key or commitment: 32 bytes as 64 lower-case hexadecimal digits."""
    # A proof holds hundreds of these, so without a regular expression: only lower-case digits come back as they were.
    if isinstance(value, str) and len(value) == 64:
        try:
            found = bytes.fromhex(value)
        except ValueError:
            found = b""
        if found.hex() == value:
            return found
    raise MalformedError("a hash, key or commitment is 64 lower-case hexadecimal digits")


def signature(value: object) -> bytes:
    """An Ed25519 signature: 64 bytes as 128 lower-case hexadecimal digits."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{128}", value):
        raise MalformedError("a signature is 128 lower-case hexadecimal digits")
    return bytes.fromhex(value)


def name(value: object) -> str:
    """The name of a job or a software version."""
    if not isinstance(value, str) or not _NAME.match(value):
        raise MalformedError("a name is up to 64 of a-z, 0-9, dot, plus and hyphen")
    return value


def origin(value: object) -> str:
    """The name of a log."""
    if not isinstance(value, str) or not re.fullmatch(r"feddrm/[a-z0-9-]{1,64}/[a-z0-9-]{1,64}", value):
        raise MalformedError("a ledger's origin has the form feddrm/<federation>/<silo>")
    return value


def count(value: object) -> int:
    """A whole number from 0 to 2**48."""
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise MalformedError("a number in a leaf is a whole number that is not negative")
    return value


def positive(value: object) -> int:
    """A whole number from 1 to 2**48."""
    if (number := count(value)) == 0:
        raise MalformedError("stages and rounds are counted from 1")
    return number


def real(value: object) -> float:
    """A number from 0 to 1e12."""
    if type(value) not in (int, float) or not 0 <= value < 1e12:  # type: ignore[operator]
        raise MalformedError("a real number in a leaf is finite and not negative")
    return float(value)  # type: ignore[arg-type]


def delta(value: object) -> float:
    """A number from `accounting.MINIMUM_DELTA` to below 1."""
    if not MINIMUM_DELTA <= (result := real(value)) < 1:
        raise MalformedError(f"delta is at least {MINIMUM_DELTA:g} and below 1")
    return result


def column(value: object) -> str:
    """The name of a column as a plan's schema may give it."""
    if not isinstance(value, str) or not 1 <= len(value) <= 128 or not value.isprintable() or value != value.strip():
        raise MalformedError("a column's name has 1 to 128 printable characters, without blanks around it")
    return value


def exactly(text: str) -> Callable[[object], str]:
    """A reader that takes nothing but `text`."""

    def read(value: object) -> str:
        if value != text or not isinstance(value, str):
            raise MalformedError(f"this must say {text!r}")
        return value

    return read
