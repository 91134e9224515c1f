"""What a single protobuf field may hold; codec_records.py composes these into messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from feddrm.contract.errors import MalformedError
from feddrm.contract.names import check_name


class FieldError(MalformedError):
    """One field is wrong; the text lacks its subject, which the converter around it adds."""


class Kind(Protocol):
    """What one field may hold, and how it is written to and read from a protobuf message; raises FieldError."""

    def put(self, message: Any, name: str, value: Any) -> None:
        """Write `value`, checked, into the field `name`."""

    def get(self, message: Any, name: str) -> Any:
        """Read and check the field `name`."""


class Scalar(ABC):
    """A field that protobuf carries as the value itself."""

    __slots__ = ()

    @abstractmethod
    def check(self, value: Any) -> Any:
        """Return `value` if it may stand here, else raise FieldError."""

    def put(self, message: Any, name: str, value: Any) -> None:
        """Write `value`, checked, into the field `name`."""
        setattr(message, name, self.check(value))

    def get(self, message: Any, name: str) -> Any:
        """Read and check the field `name`."""
        return self.check(getattr(message, name))


@dataclass(frozen=True, slots=True)
class Bytes(Scalar):
    """Bytes of a bounded length."""

    minimum: int
    maximum: int
    multiple: int = 1
    or_empty: bool = False

    def check(self, value: Any) -> bytes:
        """Return `value` if its length is allowed."""
        length = len(value)
        if self.or_empty and length == 0:
            return b""
        if not self.minimum <= length <= self.maximum or length % self.multiple:
            raise FieldError(f"has {length} bytes, not {self.minimum} to {self.maximum}")
        return bytes(value)


@dataclass(frozen=True, slots=True)
class Int(Scalar):
    """An integer between two bounds, both included."""

    minimum: int
    maximum: int

    def check(self, value: Any) -> int:
        """Return `value` if it is in range."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise FieldError(f"is not an integer from {self.minimum} to {self.maximum}")
        return value


@dataclass(frozen=True, slots=True)
class Real(Scalar):
    """A finite number between two bounds, both included."""

    minimum: float
    maximum: float

    def check(self, value: Any) -> float:
        """Return `value` if it is in range; a NaN is not."""
        if not isinstance(value, float) or not self.minimum <= value <= self.maximum:
            raise FieldError(f"is not a number from {self.minimum:g} to {self.maximum:g}")
        return value


class Flag(Scalar):
    """A boolean."""

    __slots__ = ()

    def check(self, value: Any) -> bool:
        """Return `value`."""
        if not isinstance(value, bool):
            raise FieldError("is not a boolean")
        return value


@dataclass(frozen=True, slots=True)
class NameField(Scalar):
    """A member's or federation's name (feddrm.contract.names)."""

    or_empty: bool = False

    def check(self, value: Any) -> str:
        """Return `value` if it may be a name."""
        if self.or_empty and value == "":
            return ""
        try:
            return check_name(value)
        except ValueError as error:
            raise FieldError("is not a name") from error


@dataclass(frozen=True, slots=True)
class Sentence(Scalar):
    """Printable text for a person. What we send is cleaned and cut to fit; what we receive must already be so, or a
    peer could write control sequences into a terminal or a log."""

    maximum: int

    def put(self, message: Any, name: str, value: Any) -> None:
        """Write `value`, with what is not printable replaced, cut to the limit."""
        clean = "".join(c if c.isprintable() else " " for c in value[: self.maximum])
        setattr(message, name, clean)

    def check(self, value: Any) -> str:
        """Return `value` if it is printable and short enough."""
        if len(value) > self.maximum or not value.isprintable():
            raise FieldError(f"is not printable text of at most {self.maximum} characters")
        return str(value)


@dataclass(frozen=True, slots=True)
class Word(Scalar):
    """A word made of given characters only."""

    characters: frozenset[str]
    minimum: int
    maximum: int

    def check(self, value: Any) -> str:
        """Return `value` if length and characters are allowed."""
        if not self.minimum <= len(value) <= self.maximum or not self.characters.issuperset(value):
            raise FieldError("is not a word of the agreed form")
        return str(value)


@dataclass(frozen=True, slots=True)
class EnumField(Scalar):
    """A known member of an enum; 0 stands for None where that is allowed."""

    members: type[IntEnum]
    or_none: bool = False

    def put(self, message: Any, name: str, value: Any) -> None:
        """Write `value`."""
        self.check(value or 0)
        setattr(message, name, int(value or 0))

    def check(self, value: Any) -> IntEnum | None:
        """Return the member of that number."""
        if value == 0 and self.or_none:
            return None
        try:
            return self.members(value)
        except ValueError as error:
            raise FieldError("is not a known value") from error
