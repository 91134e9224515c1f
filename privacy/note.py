"""Tree heads as C2SP signed notes: text that existing transparency tools read (c2sp.org/signed-note and
c2sp.org/tlog-checkpoint). The origin of a log, "feddrm/<federation>/<silo>", is also the name of its key.

The signed text starts with "feddrm/", and every other signature of this system starts with an eight-byte length,
hence a zero byte: a note never verifies as anything else.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.bindings import crypto_sign_BYTES, crypto_sign_open, crypto_sign_PUBLICKEYBYTES
from nacl.exceptions import BadSignatureError

from privacy.errors import MalformedError

MAXIMUM_BYTES: Final = 8 << 10
MAXIMUM_SIGNATURES: Final = 16
MAXIMUM_SIZE: Final = 1 << 48
_ED25519: Final = b"\x01"
_ORIGIN: Final = re.compile(r"feddrm/[a-z0-9-]{1,64}/[a-z0-9-]{1,64}\Z")
_SIZE: Final = re.compile(r"(?:0|[1-9][0-9]{0,14})\Z")
_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f]")
# Heads that are remembered as verified: every round each is opened when it comes, kept, and compared with the next.
_REMEMBERED: Final = 1024


class InvalidNoteError(MalformedError):
    """The note is well-formed but not signed by the expected key, or it is of another log."""


@dataclass(frozen=True, slots=True)
class Head:
    """A verified tree head. `note` is its signed note with that one signature and no others."""

    origin: str
    size: int
    root: bytes
    note: bytes


def check_origin(origin: str) -> str:
    """Return `origin` if it has the form feddrm/<federation>/<silo>.

    Raises:
        MalformedError: it has not.
    """
    if not _ORIGIN.match(origin):
        raise MalformedError("a ledger's origin has the form feddrm/<federation>/<silo>")
    return origin


def sign_head(origin: str, size: int, root: bytes, signer: Ed25519PrivateKey) -> bytes:
    """The signed note of a tree head.

    Raises:
        MalformedError: bad origin, size or root.
    """
    text = _text(origin, size, root)
    return text + _signature_line(origin, signer.public_key().public_bytes_raw(), signer.sign(text))


def head_note(origin: str, size: int, root: bytes, key: bytes, signature: bytes) -> bytes:
    """The note again of a head whose parts are known; verifies nothing.

    Raises:
        MalformedError: bad origin, size or root.
    """
    return _text(origin, size, root) + _signature_line(origin, key, signature)


@lru_cache(maxsize=_REMEMBERED)
def open_head(note: bytes, origin: str, key: bytes) -> Head:
    """Verify a note and read its head. Signatures of unknown keys are ignored, as the specification asks.

    The answer depends on nothing but the arguments, so the same bytes are verified once.

    Args:
        note: the signed note.
        origin: the log that it must be of.
        key: the log's Ed25519 public key (32 bytes).

    Raises:
        MalformedError: not a signed note, or not the text of a tree head.
        InvalidNoteError: another origin, or not signed by `key`.
    """
    text, signatures = _split(note)
    known = _key_id(origin, key)
    for name, blob in signatures:
        if name == origin and blob[:4] == known:
            break
    else:
        raise InvalidNoteError(f"the tree head carries no signature of the key of {origin}")
    if not _signed(text, blob[4:], key):
        raise InvalidNoteError(f"the signature on the tree head of {origin} does not verify")
    lines = text.decode("utf-8").split("\n")
    if len(lines) != 4 or lines[3] or not _SIZE.match(lines[1]):
        raise MalformedError("the text of a tree head is origin, size and root")
    if lines[0] != origin:
        raise InvalidNoteError(f"the tree head is of {lines[0]!r}, not of {origin}")
    root = _base64(lines[2])
    if len(root) != 32:
        raise MalformedError("the root of a tree head is not 32 bytes")
    return Head(origin, int(lines[1]), root, text + _signature_line(origin, key, blob[4:]))


def _signed(text: bytes, signature: bytes, key: bytes) -> bool:
    # By libsodium, in less than half the time of OpenSSL: a silo verifies a head of every peer in every round. What it
    # refuses beyond (keys and points of low order) no signer makes.
    if len(signature) != crypto_sign_BYTES or len(key) != crypto_sign_PUBLICKEYBYTES:
        return False
    try:
        crypto_sign_open(signature + text, key)
    except BadSignatureError:
        return False
    return True


def _text(origin: str, size: int, root: bytes) -> bytes:
    check_origin(origin)
    if not 0 <= size <= MAXIMUM_SIZE or len(root) != 32:
        raise MalformedError("a tree head needs a size and a root of 32 bytes")
    return f"{origin}\n{size}\n{base64.b64encode(root).decode()}\n".encode()


def _split(note: bytes) -> tuple[bytes, list[tuple[str, bytes]]]:
    if len(note) > MAXIMUM_BYTES:
        raise MalformedError(f"a note of {len(note)} bytes exceeds the limit of {MAXIMUM_BYTES}")
    try:
        content = note.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError("a note is UTF-8 text") from error
    if _CONTROL.search(content):
        raise MalformedError("a note holds no control characters")
    text, blank, tail = content.rpartition("\n\n")
    if not blank or not text or not tail.endswith("\n"):
        raise MalformedError("a note is text, a blank line and signature lines")
    lines = tail[:-1].split("\n")
    if len(lines) > MAXIMUM_SIGNATURES:
        raise MalformedError(f"a note has at most {MAXIMUM_SIGNATURES} signatures here")
    return (text + "\n").encode(), [_parse_line(line) for line in lines]


def _parse_line(line: str) -> tuple[str, bytes]:
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != "—":
        raise MalformedError("a signature line is an em dash, a key name and a signature in base64")
    name, blob = parts[1], _base64(parts[2])
    if not name or "+" in name or any(letter.isspace() for letter in name) or len(blob) < 5:
        raise MalformedError("a signature line holds a bad key name or too few bytes")
    return name, blob


def _signature_line(origin: str, key: bytes, signature: bytes) -> bytes:
    return f"\n— {origin} {base64.b64encode(_key_id(origin, key) + signature).decode()}\n".encode()


def _key_id(name: str, key: bytes) -> bytes:
    return sha256(name.encode() + b"\n" + _ED25519 + key).digest()[:4]


def _base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedError("a note holds something that is not base64") from error
    # Python ignores stray trailing bits; another spelling of the same bytes is refused.
    if base64.b64encode(data).decode() != text:
        raise MalformedError("a note holds base64 that is not canonical")
    return data
