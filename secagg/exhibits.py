"""Evidence as bytes: one type for each kind of proof, with its only encoding. secagg.evidence judges it.

A proof holds what convinces a third party who knows R0 and the roster, and not more: of most frames their hashes are
enough (secagg.checks.roll_of), so the largest is some 30 KiB at 100 silos and fits into an abort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from secagg import labels
from secagg.bodies import SALT_SIZE, SHARE_SIZE, Opening
from secagg.checks import Roll
from secagg.errors import WireError
from secagg.wire import HASH_SIZE, MAXIMUM_EVIDENCE, Frame, Reader, Writer

MAXIMUM_CIPHERTEXT: Final = 1024


@dataclass(frozen=True, slots=True)
class Loose:
    """Signed frames for people to look at, mostly the coordinator's; they are no proof against a silo."""

    frames: tuple[Frame, ...]

    def write(self, writer: Writer) -> None:
        """Append the fields."""
        writer.uint(len(self.frames), 1)
        for frame in self.frames:
            writer.frame(frame)

    @classmethod
    def read(cls, reader: Reader) -> Loose:
        """Read the fields. Raises WireError."""
        return cls(tuple(reader.frame() for _ in range(reader.uint(1))))


@dataclass(frozen=True, slots=True)
class WrongFrame:
    """A frame whose signed body is a fault by itself. `roll` names U1 from R2 on; it is empty for R1."""

    frame: Frame
    roll: Roll

    def write(self, writer: Writer) -> None:
        """Append the fields."""
        writer.frame(self.frame).hashes(self.roll)

    @classmethod
    def read(cls, reader: Reader) -> WrongFrame:
        """Read the fields. Raises WireError."""
        return cls(reader.frame(), reader.hashes())


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two frames of one silo of which an honest one signs at most one: two of a step, R4 and R5 on different survivors,
    R5 and an abort that denies it. In order of their steps; `roll` as in WrongFrame."""

    first: Frame
    second: Frame
    roll: Roll

    def write(self, writer: Writer) -> None:
        """Append the fields."""
        writer.frame(self.first).frame(self.second).hashes(self.roll)

    @classmethod
    def read(cls, reader: Reader) -> Conflict:
        """Read the fields. Raises WireError."""
        return cls(reader.frame(), reader.frame(), reader.hashes())


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a silo was dealt does not open, or not to what the dealer signed; `private` lets anybody look.

    It is the accuser's transport key for the dealer and for nobody else. `shares` is R2 of the dealer. The roll binds
    both R1 to the sid that the dealer encrypted under: otherwise an accuser could show a second R1 that the dealer
    never saw.
    """

    dealer_keys: Frame
    accuser_keys: Frame
    shares: Frame
    roll: Roll
    ciphertext: bytes
    private: bytes = field(repr=False)

    def write(self, writer: Writer) -> None:
        """Append the fields."""
        writer.frame(self.dealer_keys).frame(self.accuser_keys).frame(self.shares).hashes(self.roll)
        writer.blob(self.ciphertext).fixed(self.private, HASH_SIZE)

    @classmethod
    def read(cls, reader: Reader) -> Complaint:
        """Read the fields. Raises WireError."""
        dealer, accuser, shares = reader.frame(), reader.frame(), reader.frame()
        return cls(dealer, accuser, shares, reader.hashes(), reader.blob(MAXIMUM_CIPHERTEXT), reader.fixed(HASH_SIZE))


@dataclass(frozen=True, slots=True)
class WrongOpening:
    """An R5 that opens shares of another set than U2, or another share than `shares` (R2 of its owner) says.

    `roll` names U1, `dealt` U2 with its R2 hashes, `masked` U3 with its vector hashes: all that the agreement which the
    R5 names is made of. `shares` is the R5 itself again where only the number of openings is wrong.
    """

    unmask: Frame
    shares: Frame
    roll: Roll
    dealt: Roll
    masked: Roll

    def write(self, writer: Writer) -> None:
        """Append the fields."""
        writer.frame(self.unmask).frame(self.shares).hashes(self.roll).hashes(self.dealt).hashes(self.masked)

    @classmethod
    def read(cls, reader: Reader) -> WrongOpening:
        """Read the fields. Raises WireError."""
        return cls(reader.frame(), reader.frame(), reader.hashes(), reader.hashes(), reader.hashes())


@dataclass(frozen=True, slots=True)
class WrongSecret:
    """Shares of one silo's secret that do not give what it committed to in R1, though each is what its R2 says.

    t openings with their holders, of s where `mask_key`, of b otherwise. Nobody need sign them: what opens a salted
    hash is what the dealer made it of.
    """

    keys: Frame
    shares: Frame
    roll: Roll
    mask_key: bool
    openings: tuple[tuple[str, Opening], ...] = field(repr=False)

    def write(self, writer: Writer) -> None:
        """Append the fields."""
        writer.frame(self.keys).frame(self.shares).hashes(self.roll).uint(self.mask_key, 1)
        writer.names([name for name, _ in self.openings])
        for _, opening in self.openings:
            writer.fixed(opening.share, SHARE_SIZE).fixed(opening.salt, SALT_SIZE)

    @classmethod
    def read(cls, reader: Reader) -> WrongSecret:
        """Read the fields. Raises WireError."""
        keys, shares, roll, mask_key = reader.frame(), reader.frame(), reader.hashes(), reader.truth()
        holders = reader.names()
        openings = tuple((name, Opening(reader.fixed(SHARE_SIZE), reader.fixed(SALT_SIZE))) for name in holders)
        return cls(keys, shares, roll, mask_key, openings)


Exhibit = Loose | WrongFrame | Conflict | Complaint | WrongOpening | WrongSecret

_KINDS: Final[tuple[type[Exhibit], ...]] = (Loose, WrongFrame, Conflict, Complaint, WrongOpening, WrongSecret)


def encode_exhibit(exhibit: Exhibit) -> bytes:
    """Label, kind, fields."""
    writer = Writer().fixed(labels.EVIDENCE, len(labels.EVIDENCE)).uint(_KINDS.index(type(exhibit)), 1)
    exhibit.write(writer)
    return writer.done()


def loose(frames: Sequence[Frame]) -> bytes:
    """Frames for people, encoded."""
    return encode_exhibit(Loose(tuple(frames)))


def is_exhibit(data: bytes) -> bool:
    """Whether this begins as evidence of this package does. Aborts carry other evidence too, of ledgers for one."""
    return data.startswith(labels.EVIDENCE)


def decode_exhibit(data: bytes) -> Exhibit:
    """Read evidence; nothing of it is verified.

    Raises:
        WireError: not of that form, or over MAXIMUM_EVIDENCE.
    """
    if len(data) > MAXIMUM_EVIDENCE:
        raise WireError("evidence exceeds its limit")
    reader = Reader(data)
    if reader.fixed(len(labels.EVIDENCE)) != labels.EVIDENCE:
        raise WireError("this is no evidence of a session")
    kind = reader.uint(1)
    if kind >= len(_KINDS):
        raise WireError(f"there is no evidence of kind {kind}")
    exhibit = _KINDS[kind].read(reader)
    reader.end()
    return exhibit
