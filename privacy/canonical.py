"""Canonical JSON (RFC 8785): one value, one byte string, so that what was hashed is what is read."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

import rfc8785

from privacy.errors import MalformedError

MAXIMUM_BYTES: Final = 8 << 20
# Bytes that UTF-8 has in characters up to U+FFFF, which sort alike as code points and as UTF-16.
_WITHIN_BMP: Final = bytes(range(0xF0))
_SAFE_INTEGER: Final = 2**53 - 1
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical_json(value: Any) -> bytes:
    """Serialise dicts with string keys, lists, tuples, strings, booleans, None, integers and reals.

    Raises:
        MalformedError: another type, an integer beyond 2**53, a real that is not finite, or text that is not Unicode.
    """
    try:
        plain = _is_plain(value)
        narrow = value if plain else _narrowed(value)
        if plain or _is_plain(narrow):
            data = _plain_json(narrow)
            if not data.translate(None, _WITHIN_BMP):
                return data
        return rfc8785.dumps(value)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not representable as canonical JSON: {error}") from error


def parse_canonical(data: bytes) -> Any:
    """Parse bytes that are exactly the canonical form of one value. Reals without a fraction come back as integers.

    Raises:
        MalformedError: too long, not UTF-8, not JSON, a repeated key, or any other spelling of the value.
    """
    if len(data) > MAXIMUM_BYTES:
        raise MalformedError(f"{len(data)} bytes of JSON exceed the limit of {MAXIMUM_BYTES}")
    plain = not data.translate(None, _WITHIN_BMP)

    def whole(text: str) -> int | float:
        nonlocal plain
        value = _number(text)
        plain = plain and isinstance(value, int)
        return value

    def real(text: str) -> float:
        nonlocal plain
        value = float(text)
        plain = plain and _is_plain_real(value)
        return value

    try:
        value = json.loads(data.decode("utf-8"), parse_int=whole, parse_float=real, parse_constant=_refuse)
        # A repeated key, white space, another order or another spelling of a number or a letter all show here.
        same = (_plain_json(value) if plain else canonical_json(value)) == data
    except (ValueError, RecursionError) as error:
        raise MalformedError("not JSON") from error
    if not same:
        raise MalformedError("JSON, but not in its canonical form")
    return value


def _is_plain(value: Any) -> bool:
    """Whether a value holds no reals but plain ones and nothing that only looks like what JSON knows; text is not
    looked at."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_SAFE_INTEGER <= value <= _SAFE_INTEGER)
    if kind is float:
        return _is_plain_real(value)
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))
    return kind is dict and all(type(key) is str for key in value) and all(map(_is_plain, value.values()))


def _narrowed(value: Any) -> Any:
    """A value with its whole reals as integers, which is how ECMAScript writes them up to 2**53."""
    kind = type(value)
    if kind is float:
        return int(value) if abs(value) <= _SAFE_INTEGER and value.is_integer() else value
    if kind is list or kind is tuple:
        return [_narrowed(item) for item in value]
    return {name: _narrowed(item) for name, item in value.items()} if kind is dict else value


def _is_plain_real(value: float) -> bool:
    """Whether Python writes a real as ECMAScript does: the same shortest digits, and with a fraction and no exponent in
    both. (Python takes to exponents below 1e-4, ECMAScript below 1e-6; beyond 2**53 there are no fractions.)"""
    return 1e-4 <= abs(value) <= _SAFE_INTEGER and not value.is_integer()


def _plain_json(value: Any) -> bytes:
    """RFC 8785 with plain reals only and without characters of four UTF-8 bytes: there it is what the standard
    library's encoder writes, twenty times faster. How numbers are written and keys are ordered differs only beyond
    that."""
    return _ENCODER.encode(value).encode()


def _number(text: str) -> int | float:
    # Reals from 2**53 to 1e21 have no fraction when written, and integers that large are outside the format.
    if len(text) > 22:
        raise ValueError("a number has too many digits")
    value = int(text)
    return value if abs(value) <= _SAFE_INTEGER else float(value)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
