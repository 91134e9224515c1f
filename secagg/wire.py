"""Frames, and the one binary encoding that every body uses.

Integers are unsigned, big-endian and of fixed width; byte strings are prefixed by a 4-byte length; names are ASCII with
a 1-byte length. There is exactly one encoding of every value, and a reader refuses trailing bytes, so equal meaning
is equal bytes. The bodies of the steps are in secagg.bodies.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from secagg.errors import WireError

MAXIMUM_SILOS: Final = 100
MAXIMUM_BODY: Final = 64 << 10
# Together with a frame or two of a step it fits into the evidence of an abort, and 100 of them into one message.
MAXIMUM_PROOF: Final = 192 << 10
MAXIMUM_EVIDENCE: Final = 256 << 10
MAXIMUM_ATTACHMENT: Final = 2 << 30
SIGNATURE_SIZE: Final = 64
HASH_SIZE: Final = 32
COORDINATOR: Final = ""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")


class Step(IntEnum):
    """The steps of a session: R0 to R6, and ABORT at any time."""

    ANNOUNCE = 0
    KEYS = 1
    SHARES = 2
    MASKED = 3
    CONSISTENCY = 4
    UNMASK = 5
    PUBLISH = 6
    ABORT = 7


# A set of integers, since looking through the members of an IntEnum costs more than all other checks of a frame.
_STEPS: Final = frozenset(int(step) for step in Step)


@dataclass(frozen=True, slots=True)
class Frame:
    """One signed message. `sender` is a silo's name, or empty for the coordinator.

    The signature (Ed25519, 64 bytes) is over the label of the step and `body`, never over `attachment`, which the body
    binds by its hash (secagg.hashing). Holding a frame says nothing about its validity.

    Raises:
        WireError: a field is outside its limits.
    """

    step: int
    sender: str
    body: bytes
    signature: bytes
    attachment: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if self.step not in _STEPS:
            raise WireError(f"there is no step {self.step}")
        if self.sender != COORDINATOR:
            check_name(self.sender)
        if len(self.body) > MAXIMUM_BODY:
            raise WireError(f"a body of {len(self.body)} bytes exceeds the limit of {MAXIMUM_BODY}")
        if len(self.signature) != SIGNATURE_SIZE:
            raise WireError(f"a signature has {SIGNATURE_SIZE} bytes, not {len(self.signature)}")
        if len(self.attachment) > MAXIMUM_ATTACHMENT:
            raise WireError(f"an attachment of {len(self.attachment)} bytes exceeds the limit")

    def says_the_same(self, other: Frame) -> bool:
        """Whether both are one signed message, byte for byte, whatever is attached."""
        return (self.step, self.sender, self.body, self.signature) == (
            other.step,
            other.sender,
            other.body,
            other.signature,
        )

    def without_attachment(self) -> Frame:
        """The same signed message without the bytes that its body binds by hash."""
        return Frame(self.step, self.sender, self.body, self.signature) if self.attachment else self


def check_name(name: str) -> str:
    """Return `name` if it may name a federation or a silo.

    Raises:
        WireError: not 1 to 32 of a-z, 0-9 and inner hyphens.
    """
    if not _NAME.match(name):
        raise WireError("a name has 1 to 32 characters of a-z, 0-9 and inner hyphens")
    return name


class Writer:
    """Builds a body; every method returns the writer."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def uint(self, value: int, size: int) -> Writer:
        """An unsigned integer of `size` bytes."""
        try:
            self._parts.append(value.to_bytes(size))
        except OverflowError as error:
            raise WireError(f"{value} does not fit {size} unsigned bytes") from error
        return self

    def fixed(self, value: bytes, size: int) -> Writer:
        """A byte string whose length the format fixes."""
        if len(value) != size:
            raise WireError(f"expected {size} bytes, not {len(value)}")
        self._parts.append(value)
        return self

    def blob(self, value: bytes) -> Writer:
        """A byte string with its length before it."""
        return self.uint(len(value), 4).fixed(value, len(value))

    def text(self, value: str) -> Writer:
        """UTF-8 text with its length before it."""
        return self.blob(value.encode())

    def name(self, value: str) -> Writer:
        """A silo's or federation's name."""
        raw = check_name(value).encode("ascii")
        return self.uint(len(raw), 1).fixed(raw, len(raw))

    def names(self, values: Sequence[str]) -> Writer:
        """A list of names, in order."""
        self.uint(len(values), 2)
        for value in values:
            self.name(value)
        return self

    def hashes(self, entries: Sequence[tuple[str, bytes]]) -> Writer:
        """A list of names, each with a hash, in order."""
        self.names([name for name, _ in entries])
        for _, value in entries:
            self.fixed(value, HASH_SIZE)
        return self

    def frame(self, value: Frame) -> Writer:
        """A signed frame without its attachment."""
        self.uint(value.step, 1).blob(value.sender.encode("ascii")).blob(value.body)
        return self.fixed(value.signature, SIGNATURE_SIZE)

    def done(self) -> bytes:
        """The finished body."""
        return b"".join(self._parts)


class Reader:
    """Takes a body apart. Every method raises WireError where a strict reader must."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fixed(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self._at + size
        if end > len(self._data):
            raise WireError("truncated")
        value = self._data[self._at : end]
        self._at = end
        return value

    def rows(self, count: int, *sizes: int) -> list[tuple[bytes, ...]]:
        """`count` rows of byte strings of these sizes."""
        return list(struct.iter_unpack("".join(f"{size}s" for size in sizes), self.fixed(count * sum(sizes))))

    def uint(self, size: int) -> int:
        """An unsigned integer of `size` bytes."""
        return int.from_bytes(self.fixed(size))

    def truth(self) -> bool:
        """A truth value of one byte."""
        value = self.uint(1)
        if value > 1:
            raise WireError("a truth value that is neither 0 nor 1")
        return bool(value)

    def blob(self, limit: int) -> bytes:
        """A byte string of at most `limit` bytes."""
        size = self.uint(4)
        if size > limit:
            raise WireError(f"a field of {size} bytes exceeds its limit of {limit}")
        return self.fixed(size)

    def text(self, limit: int) -> str:
        """UTF-8 text of at most `limit` bytes."""
        try:
            return self.blob(limit).decode()
        except UnicodeDecodeError as error:
            raise WireError("text that is not UTF-8") from error

    def name(self) -> str:
        """A silo's or federation's name."""
        raw = self.fixed(self.uint(1))
        if not raw.isascii():
            raise WireError("a name that is not ASCII")
        return check_name(raw.decode("ascii"))

    def names(self) -> tuple[str, ...]:
        """A list of distinct names, at most MAXIMUM_SILOS."""
        count = self.uint(2)
        if count > MAXIMUM_SILOS:
            raise WireError(f"{count} names exceed the limit of {MAXIMUM_SILOS}")
        values = tuple(self.name() for _ in range(count))
        if len(set(values)) != count:
            raise WireError("a name appears twice")
        return values

    def hashes(self) -> tuple[tuple[str, bytes], ...]:
        """A list of distinct names, each with a hash."""
        names = self.names()
        return tuple((name, self.fixed(HASH_SIZE)) for name in names)

    def frame(self) -> Frame:
        """A signed frame without its attachment; nothing of it is verified."""
        step, sender = self.uint(1), self.text(32)
        return Frame(step, sender, self.blob(MAXIMUM_BODY), self.fixed(SIGNATURE_SIZE))

    def end(self) -> None:
        """Refuse what is left."""
        if self._at != len(self._data):
            raise WireError(f"{len(self._data) - self._at} trailing bytes")
