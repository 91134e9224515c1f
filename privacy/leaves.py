"""What a ledger may hold: whitelisted leaf types as canonical JSON, each with exactly its fields.

Never here: seeds, exact counts, batch sizes, losses, norms (design section 7). Times are whole hours, reasons are
words of a fixed list, and nothing is free text, so that no leaf can carry what it should not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import MalformedError
from privacy.events import Event, event_from_json

UNIT: Final = "patient at one silo"
RELATION: Final = "add or remove one"
MAXIMUM_BYTES: Final = 64 << 10
_TIME: Final = "%Y-%m-%dT%H:00:00Z"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}\Z")


class AbortReason(StrEnum):
    """Why a charged round ended without a release of which the silo knows."""

    CRASHED = "crashed"
    LOST = "lost"
    DROPPED = "dropped"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Caps:
    """The hospital's limits. `job_*` hold for each job, `life_*` for all jobs of this ledger together; `*_alone`
    bound the epsilon against an adversary who sees this silo's vectors unmasked. `rounds_without_release` is how
    many rounds of one job may be charged without a release."""

    job_epsilon: float
    job_epsilon_alone: float
    life_epsilon: float
    life_epsilon_alone: float
    life_delta: float
    rounds_without_release: int

    def __post_init__(self) -> None:
        reals = (
            self.job_epsilon,
            self.job_epsilon_alone,
            self.life_epsilon,
            self.life_epsilon_alone,
            self.life_delta,
        )
        if not all(0 <= value < 1e6 for value in reals) or self.rounds_without_release < 1:
            raise ValueError("a cap is out of range")


@dataclass(frozen=True, slots=True)
class Key:
    """First leaf of every ledger: the log's name and the Ed25519 key that signs its heads (32 bytes)."""

    TYPE: ClassVar = "KEY"
    origin: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Dataset:
    """The data that the hospital will train on from here, by commitment, and the hash of its schema."""

    TYPE: ClassVar = "DATASET"
    commitment: bytes
    schema: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """A job that the hospital accepted: all that it may cost, claimed and charged for life at this point.

    `epsilon` and `epsilon_alone` are the claims for all of `events` at `delta`; `caps` those in force when the job was
    accepted; `code` the version of the software.
    """

    TYPE: ClassVar = "PLAN"
    plan: bytes
    name: str
    delta: float
    epsilon: float
    epsilon_alone: float
    events: tuple[Event, ...]
    caps: Caps
    code: str
    unit: str = UNIT
    relation: str = RELATION


@dataclass(frozen=True, slots=True)
class Reserve:
    """One round is charged, before anything is read. `model` is the hash of the model that it starts from."""

    TYPE: ClassVar = "RESERVE"
    plan: bytes
    stage: int
    round: int
    event: Event
    model: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """The round's update exists; `reserve` is the leaf number of its reservation, `update` a keyed commitment."""

    TYPE: ClassVar = "COMMIT"
    plan: bytes
    stage: int
    round: int
    reserve: int
    update: bytes


@dataclass(frozen=True, slots=True)
class Abort:
    """A charged round ended without a known release. Stage 0 and round 0 end the job itself."""

    TYPE: ClassVar = "ABORT"
    plan: bytes
    stage: int
    round: int
    reason: AbortReason

    def __post_init__(self) -> None:
        if (self.stage == 0) != (self.round == 0):
            raise ValueError("stage and round are both 0 or neither")

    @property
    def ends_job(self) -> bool:
        """Whether this leaf ends the job rather than a round."""
        return self.stage == 0


@dataclass(frozen=True, slots=True)
class Release:
    """The sum of a round was published and verified: hashes of the sum and of the model that it led to."""

    TYPE: ClassVar = "RELEASE"
    plan: bytes
    stage: int
    round: int
    sum: bytes
    model: bytes


Leaf = Key | Dataset | Plan | Reserve | Commit | Abort | Release


@dataclass(frozen=True, slots=True)
class Record:
    """A leaf with its coarse time, as it stands in the log."""

    time: str
    leaf: Leaf

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read the bytes of a leaf.

        Raises:
            MalformedError: not canonical, unknown type, a missing, extra or malformed field.
        """
        if len(body) > MAXIMUM_BYTES:
            raise MalformedError(f"a leaf of {len(body)} bytes exceeds the limit of {MAXIMUM_BYTES}")
        values = parse_canonical(body)
        if not isinstance(values, dict):
            raise MalformedError("a leaf is a JSON object")
        kind, time = values.pop("type", None), values.pop("time", None)
        leaf_type = _TYPES.get(kind) if isinstance(kind, str) else None
        if leaf_type is None:
            raise MalformedError("unknown leaf type")
        return cls(_hour(time), _read(leaf_type, values))

    def encode(self) -> bytes:
        """The bytes that enter the tree."""
        values = {field.name: _plain(getattr(self.leaf, field.name)) for field in fields(self.leaf)}
        return canonical_json({"type": self.leaf.TYPE, "time": self.time, **values})


def coarse_time(now_ms: int) -> str:
    """The hour of `now_ms` (milliseconds since the epoch), UTC, as leaves carry it."""
    return datetime.fromtimestamp(now_ms // 3_600_000 * 3600, UTC).strftime(_TIME)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Caps):
        return {name: getattr(value, name) for name in Caps.__dataclass_fields__}
    if isinstance(value, tuple):
        return [event.to_json() for event in value]
    return value.to_json() if isinstance(value, Event) else value


def _read(leaf_type: type[Leaf], values: Mapping[str, Any]) -> Leaf:
    readers = _FIELDS[leaf_type]
    if set(values) != set(readers):
        raise MalformedError(f"a {leaf_type.TYPE} leaf has exactly the fields {', '.join(sorted(readers))}")
    try:
        return leaf_type(**{name: read(values[name]) for name, read in readers.items()})
    except ValueError as error:
        raise MalformedError(f"a {leaf_type.TYPE} leaf has a field out of range: {error}") from error


def _hour(value: object) -> str:
    if isinstance(value, str):
        try:
            if datetime.strptime(value, _TIME).strftime(_TIME) == value:
                return value
        except ValueError:
            pass
    raise MalformedError("a leaf's time is a whole hour such as 2026-01-31T09:00:00Z")


def _hash(value: object) -> bytes:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise MalformedError("a hash, key or commitment is 64 lower-case hexadecimal digits")
    return bytes.fromhex(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.match(value):
        raise MalformedError("a name is up to 64 of a-z, 0-9, dot, plus and hyphen")
    return value


def _origin(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"feddrm/[a-z0-9-]{1,64}/[a-z0-9-]{1,64}", value):
        raise MalformedError("a ledger's origin has the form feddrm/<federation>/<silo>")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise MalformedError("a number in a leaf is a whole number that is not negative")
    return value


def _positive(value: object) -> int:
    if (count := _count(value)) == 0:
        raise MalformedError("stages and rounds are counted from 1")
    return count


def _real(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e12:  # type: ignore[operator]
        raise MalformedError("a real number in a leaf is finite and not negative")
    return float(value)  # type: ignore[arg-type]


def _delta(value: object) -> float:
    if not 0 < (delta := _real(value)) < 1:
        raise MalformedError("delta is between 0 and 1")
    return delta


def _events(value: object) -> tuple[Event, ...]:
    if not isinstance(value, list) or len(value) > 64:
        raise MalformedError("events are a list of at most 64")
    return tuple(event_from_json(item) for item in value)


def _caps(value: object) -> Caps:
    if not isinstance(value, dict) or set(value) != set(Caps.__dataclass_fields__):
        raise MalformedError("caps have exactly their fields")
    rounds = _count(value["rounds_without_release"])
    reals = {name: _real(value[name]) for name in value if name != "rounds_without_release"}
    return Caps(rounds_without_release=rounds, **reals)


def _exactly(text: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value != text or not isinstance(value, str):
            raise MalformedError(f"this must say {text!r}")
        return value

    return read


def _reason(value: object) -> AbortReason:
    if not isinstance(value, str):
        raise MalformedError("an abort's reason is a word")
    return AbortReason(value)


_PLACE: Final[dict[str, Callable[[object], Any]]] = {"plan": _hash, "stage": _positive, "round": _positive}
_FIELDS: Final[dict[type[Leaf], dict[str, Callable[[object], Any]]]] = {
    Key: {"origin": _origin, "key": _hash},
    Dataset: {"commitment": _hash, "schema": _hash},
    Plan: {
        "plan": _hash,
        "name": _name,
        "delta": _delta,
        "epsilon": _real,
        "epsilon_alone": _real,
        "events": _events,
        "caps": _caps,
        "code": _name,
        "unit": _exactly(UNIT),
        "relation": _exactly(RELATION),
    },
    Reserve: {**_PLACE, "event": event_from_json, "model": _hash},
    Commit: {**_PLACE, "reserve": _count, "update": _hash},
    Abort: {"plan": _hash, "stage": _count, "round": _count, "reason": _reason},
    Release: {**_PLACE, "sum": _hash, "model": _hash},
}
_TYPES: Final[dict[str, type[Leaf]]] = {leaf_type.TYPE: leaf_type for leaf_type in _FIELDS}
