"""Documents from files and from peers: strict parsing, and errors that a person understands.

Two doors. `load_document` (feddrm.contract.files) reads a user's TOML file and blames the user with file, key and
remedy; `parse_body` reads the verified body of a signed document and blames the peer. Both refuse unknown keys and
silent conversions ("3" is not 3, true is not 1).
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import re
import tomllib
from functools import lru_cache
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError
from pydantic_core import ErrorDetails

from feddrm.contract.errors import MalformedError
from feddrm.contract.names import Document
from privacy.canonical import canonical_json
from privacy.errors import MalformedError as NotRepresentable

D = TypeVar("D", bound=Document)
_REMEMBERED_BYTES: Final = 256 << 10

_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "string_type": 'a text in quotes, such as "abc"',
    "bool_type": "true or false",
    "tuple_type": "a list in square brackets",
    "list_type": "a list in square brackets",
    "dict_type": "a table",
    "model_type": "a table",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _from_hex(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("must be 64 hexadecimal digits in lower case")
    return bytes.fromhex(value)


def _from_base64(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        raw = base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError("must be base64") from error
    # The decoder passes over unused bits and what follows the padding: one value would have many signed texts.
    if base64.b64encode(raw).decode() != value:
        raise ValueError("must be base64, written in its one way")
    return raw


def _hex(value: bytes) -> str:
    return value.hex()


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


Hash = Annotated[
    bytes, BeforeValidator(_from_hex), Field(min_length=32, max_length=32), PlainSerializer(_hex, return_type=str)
]
"""32 bytes, lower-case hexadecimal in files: a SHA-256 hash or an Ed25519 public key."""

Base64 = Annotated[
    bytes, BeforeValidator(_from_base64), Field(max_length=1 << 16), PlainSerializer(_base64, return_type=str)
]
"""Longer bytes, base64 in files."""

Pem = Annotated[str, Field(max_length=16 << 10)]
"""A PEM text."""


def canonical(document: Document) -> bytes:
    """The RFC 8785 bytes of a document, made once and then signed as they are."""
    return canonical_json(document.model_dump(mode="json", by_alias=True))


def parse_body(body: bytes, model: type[D], *, what: str) -> D:
    """Parse the body of a document whose signature has been verified.

    Only canonical JSON (RFC 8785) is accepted: duplicate keys or odd number forms would let two readers understand
    the same signed bytes differently. And every key must be there: two signed texts would mean the same, and a default
    that changes one day would change what an old signature means.

    Args:
        what: names the document in the error, such as "The roster".

    Raises:
        MalformedError: not of the agreed form.
    """
    # The same plan, roster and acks are read again and again, and what is read is frozen.
    return cast(D, (_remembered if len(body) <= _REMEMBERED_BYTES else _parse)(body, model, what))


def _parse(body: bytes, model: type[Document], what: str) -> Document:
    try:
        raw = json.loads(body)
        if canonical_json(raw) != body:
            raise MalformedError(f"{what} is not in canonical form.")
        document = model.model_validate_json(body, strict=True)
        if canonical(document) != body:
            raise MalformedError(f"{what} leaves something to defaults.")
        return document
    except ValidationError as error:
        raise MalformedError(f"{what} is malformed: {explain(error, raw, model)[0]}.") from error
    except (ValueError, RecursionError, NotRepresentable) as error:
        raise MalformedError(f"{what} is not a JSON document.") from error


_remembered: Final = lru_cache(maxsize=64)(_parse)


def validate(raw: object, model: type[D]) -> D:
    """Validate plain data (from TOML) as strictly as JSON.

    Raises:
        ValidationError: explain it with `explain`.
        TypeError: holds something that JSON does not know, such as a date.
    """
    return model.model_validate_json(json.dumps(raw), strict=True)


def parse_toml(text: str, model: type[D]) -> D:
    """Validate a TOML text as `validate` does.

    Raises:
        tomllib.TOMLDecodeError, RecursionError: no TOML.
        ValidationError, TypeError: as `validate`.
    """
    # A hospital's policy is read from its file before every round, and the same text is the same frozen document.
    return cast(D, (_remembered_toml if len(text) <= _REMEMBERED_BYTES else _parse_toml)(text, model))


def _parse_toml(text: str, model: type[Document]) -> Document:
    return validate(tomllib.loads(text), model)


_remembered_toml: Final = lru_cache(maxsize=16)(_parse_toml)


def explain(error: ValidationError, raw: object, model: type[Document]) -> tuple[str, str]:
    """Say what is wrong in words, without the validator's vocabulary.

    Returns:
        (problem, remedy): the problem names the key and has no full stop; the remedy may be empty.
    """
    details = error.errors(include_url=False)
    # A misspelt key is reported as missing and as unknown; the second says more.
    first = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
    key = _key(first, raw)
    problem, remedy = _problem(first, key, model)
    if len(details) > 1:
        problem += f" (and {len(details) - 1} more)"
    return problem, remedy


def _key(detail: ErrorDetails, raw: object) -> str:
    """The key as the file's author wrote it: list positions in brackets, and no union tags, which pydantic adds."""
    key = ""
    here: Any = raw
    names_absent = detail["type"] == "missing"
    location = detail["loc"]
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(part, int):
            key += f"[{part + 1}]"
            here = here[part] if isinstance(here, list) and part < len(here) else None
            continue
        present = isinstance(here, dict) and part in here
        if not present and not (last and names_absent):
            continue
        key += f".{part}" if key else part
        here = here[part] if present else None
    return key


def _problem(detail: ErrorDetails, key: str, model: type[Document]) -> tuple[str, str]:
    kind = detail["type"]
    context = detail.get("ctx", {})
    prefix = f"{key}: " if key else ""
    if kind == "extra_forbidden":
        return f"unknown key {key}", _suggestion(key, detail, model)
    if kind == "missing":
        return f"key {key} is missing", f"Add {key}."
    if kind == "value_error":
        return prefix + str(context.get("error", detail["msg"])), ""
    if kind in _TYPES:
        return f"{key or 'the document'} must be {_TYPES[kind]}", ""
    if kind in _BOUNDS:
        word, bound = _BOUNDS[kind]
        return f"{key} must be {word} {context[bound]}", ""
    if kind in ("literal_error", "enum"):
        return f"{key} must be {context['expected']}", ""
    if kind == "union_tag_invalid":
        return f"{key}.kind must be one of {context['expected_tags']}", ""
    if kind == "union_tag_not_found":
        return f"key {key}.kind is missing", ""
    if kind.endswith(("too_short", "too_long")):
        limit = context.get("min_length", context.get("max_length"))
        return f"{key} must have {'at least' if kind.endswith('short') else 'at most'} {limit} entries", ""
    return prefix + detail["msg"][:1].lower() + detail["msg"][1:], ""


def _suggestion(key: str, detail: ErrorDetails, model: type[Document]) -> str:
    known = _known_keys(model)
    close = difflib.get_close_matches(str(detail["loc"][-1]), sorted(known), n=1)
    return f"Did you mean {close[0]}?" if close else f"Remove {key}, or correct its name."


def _known_keys(model: type[Document]) -> set[str]:
    keys: set[str] = set()
    schema = model.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        keys |= set(part.get("properties", {}))
    return keys
