"""Converters: the machinery of codec.py.

A converter pairs a frozen dataclass with a protobuf message and says of every field what it may hold. Both directions
run the same checks: what a peer sends wrongly is a MalformedError, what we would send wrongly is a ValueError (a bug
of ours, never on the wire).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from feddrm.contract.codec_kinds import FieldError, Kind, Scalar
from feddrm.contract.errors import MalformedError
from secagg.errors import WireError

MAXIMUM_MESSAGE: Final = 32 << 20

T = TypeVar("T")


class Converter(Protocol[T]):
    """Turns one native type into protobuf and back."""

    @property
    def native(self) -> type[T]:
        """The dataclass."""

    def to_wire(self, value: T) -> Any:
        """The protobuf message; ValueError if `value` may not be sent."""

    def from_wire(self, message: Any) -> T:
        """The dataclass; MalformedError if the message is not of the agreed form."""


@dataclass(frozen=True, slots=True)
class One:
    """A sub-message, required unless `or_none`."""

    converter: Converter[Any]
    or_none: bool = False

    def put(self, message: Any, name: str, value: Any) -> None:
        """Write the sub-message."""
        if value is None and self.or_none:
            return
        if value is None:
            raise FieldError("is missing")
        getattr(message, name).CopyFrom(self.converter.to_wire(value))

    def get(self, message: Any, name: str) -> Any:
        """Read the sub-message."""
        if not message.HasField(name):
            if self.or_none:
                return None
            raise FieldError("is missing")
        return self.converter.from_wire(getattr(message, name))


@dataclass(frozen=True, slots=True)
class Many:
    """A tuple of sub-messages or scalars with a bounded count; `distinct` refuses repetitions of a key."""

    item: Converter[Any] | Scalar
    maximum: int
    minimum: int = 0
    distinct: Callable[[Any], Any] | None = None

    def _count(self, values: Any) -> None:
        if not self.minimum <= len(values) <= self.maximum:
            raise FieldError(f"has {len(values)} entries, not {self.minimum} to {self.maximum}")

    def _distinct(self, values: tuple[Any, ...]) -> None:
        if self.distinct is not None and len({self.distinct(value) for value in values}) != len(values):
            raise FieldError("names an entry twice")

    def put(self, message: Any, name: str, value: Any) -> None:
        """Write the entries."""
        self._count(value)
        self._distinct(value)
        item = self.item
        convert = item.check if isinstance(item, Scalar) else item.to_wire
        getattr(message, name).extend([convert(entry) for entry in value])

    def get(self, message: Any, name: str) -> Any:
        """Read the entries; the count is checked before any entry is looked at."""
        entries = getattr(message, name)
        self._count(entries)
        item = self.item
        convert = item.check if isinstance(item, Scalar) else item.from_wire
        values = tuple([convert(entry) for entry in entries])
        self._distinct(values)
        return values


class _ByteForm(ABC, Generic[T]):
    """Byte-level functions on top of to_wire and from_wire."""

    wire: type[Message]

    @abstractmethod
    def to_wire(self, value: T) -> Any:
        """The protobuf message; ValueError if `value` may not be sent."""

    @abstractmethod
    def from_wire(self, message: Any) -> T:
        """The dataclass; MalformedError if the message is not of the agreed form."""

    def encode(self, value: T) -> bytes:
        """Serialise; ValueError if `value` may not be sent."""
        return bytes(self.to_wire(value).SerializeToString(deterministic=True))

    def decode(self, data: bytes) -> T:
        """Parse bytes from a peer.

        Raises:
            MalformedError: not of the agreed form.
        """
        if len(data) > MAXIMUM_MESSAGE:
            raise MalformedError(f"A message of {len(data)} bytes exceeds the limit of {MAXIMUM_MESSAGE}.")
        message = self.wire()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise MalformedError(f"These bytes are no {self.wire.DESCRIPTOR.name}.") from error
        return self.from_wire(message)


def _no_unknown(message: Any) -> None:
    if len(UnknownFieldSet(message)):
        raise MalformedError(f"{message.DESCRIPTOR.name} has an unknown field.")


class Record(_ByteForm[T]):
    """Converter of one dataclass whose fields have the names of the message's fields."""

    def __init__(
        self,
        native: type[T],
        wire: type[Message],
        *,
        sound: Callable[[T], str | None] | None = None,
        **kinds: Kind,
    ) -> None:
        self.native = native
        self.wire = wire
        self.kinds: Mapping[str, Kind] = kinds
        self.sound = sound
        # Of a plain scalar only the check is called: a round converts thousands of fields.
        self._puts = [
            (name, kind.check if isinstance(kind, Scalar) and type(kind).put is Scalar.put else None, kind)
            for name, kind in kinds.items()
        ]
        self._gets = [
            (name, kind.check if isinstance(kind, Scalar) and type(kind).get is Scalar.get else None, kind)
            for name, kind in kinds.items()
        ]
        ours = {field.name for field in fields(native)}  # type: ignore[arg-type]
        theirs = {field.name for field in wire.DESCRIPTOR.fields}
        if not ours == theirs == set(kinds):
            raise TypeError(f"{native.__name__}, {wire.DESCRIPTOR.name} and their kinds name different fields")

    def _sound(self, value: T) -> None:
        reason = self.sound(value) if self.sound is not None else None
        if reason is not None:
            raise MalformedError(f"{self.wire.DESCRIPTOR.name} {reason}.")

    def to_wire(self, value: T) -> Any:
        """The protobuf message; ValueError if `value` may not be sent."""
        message = self.wire()
        for name, check, kind in self._puts:
            try:
                if check is None:
                    kind.put(message, name, getattr(value, name))
                else:
                    setattr(message, name, check(getattr(value, name)))
            except FieldError as error:
                raise ValueError(f"{self.native.__name__}.{name} {error.message}") from error
        try:
            self._sound(value)
        except MalformedError as error:
            raise ValueError(error.message) from error
        return message

    def from_wire(self, message: Any) -> T:
        """The dataclass; MalformedError if the message is not of the agreed form."""
        _no_unknown(message)
        values = {}
        for name, check, kind in self._gets:
            try:
                values[name] = kind.get(message, name) if check is None else check(getattr(message, name))
            except FieldError as error:
                raise MalformedError(f"{self.wire.DESCRIPTOR.name}.{name} {error.message}.") from error
        try:
            value = self.native(**values)
        except (ValueError, WireError) as error:
            raise MalformedError(f"{self.wire.DESCRIPTOR.name} contradicts itself.") from error
        self._sound(value)
        return value


class Wrapped(Generic[T]):
    """A dataclass of one attribute whose wire form is that attribute's own."""

    def __init__(self, native: type[T], attribute: str, inner: Converter[Any]) -> None:
        self.native = native
        self.attribute = attribute
        self.inner = inner

    def to_wire(self, value: T) -> Any:
        """The protobuf message of the attribute."""
        return self.inner.to_wire(getattr(value, self.attribute))

    def from_wire(self, message: Any) -> T:
        """The dataclass around the attribute."""
        return self.native(**{self.attribute: self.inner.from_wire(message)})


class OneOf(_ByteForm[T]):
    """A union of dataclasses, carried by a message whose only content is one oneof."""

    def __init__(self, wire: type[Message], **cases: Converter[Any]) -> None:
        self.wire = wire
        self.cases: Mapping[str, Converter[Any]] = cases
        (group,) = wire.DESCRIPTOR.oneofs
        self.group = group.name
        if {field.name for field in wire.DESCRIPTOR.fields} != set(cases) or len(group.fields) != len(cases):
            raise TypeError(f"{wire.DESCRIPTOR.name} and its cases name different fields")
        self._field_of = {converter.native: name for name, converter in cases.items()}

    def to_wire(self, value: T) -> Any:
        """The protobuf message; ValueError if `value` may not be sent."""
        name = self._field_of[type(value)]
        message = self.wire()
        getattr(message, name).CopyFrom(self.cases[name].to_wire(value))
        return message

    def from_wire(self, message: Any) -> T:
        """The dataclass; MalformedError if the message is not of the agreed form."""
        _no_unknown(message)
        name = message.WhichOneof(self.group)
        if name is None:
            raise MalformedError(f"{self.wire.DESCRIPTOR.name} holds nothing.")
        value: T = self.cases[name].from_wire(getattr(message, name))
        return value
