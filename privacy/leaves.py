"""What a ledger may hold: whitelisted leaf types as canonical JSON, each with exactly its fields.

Never here: seeds, exact counts, batch sizes, losses, norms (design section 7). Times are whole hours, reasons are
words of a fixed list, and nothing is free text but the column name that the signed plan fixes, so that no leaf can
carry what it should not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar, Final

from privacy import fields
from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import MalformedError
from privacy.events import Event, canonical, event_from_json
from privacy.handover import Carry, Recovered, Successor
from privacy.rounds import Abort, AbortReason, Commit, Keep, Release, Reserve

__all__ = ["Abort", "AbortReason", "Caps", "Carry", "Commit", "Dataset", "Keep", "Key", "Leaf", "Plan", "Record"]
__all__ += ["Recovered", "Release", "Reserve", "Successor", "coarse_time"]

UNIT: Final = "patient at one silo"
RELATION: Final = "add or remove one"
MAXIMUM_BYTES: Final = 64 << 10
_REMEMBERED_BYTES: Final = 2 << 10


@dataclass(frozen=True, slots=True)
class Caps:
    """The hospital's limits. `job_*` hold for each job, `life_*` for all jobs of this ledger together; `*_alone`
    bound the epsilon against an adversary who sees this silo's vectors unmasked. `rounds_without_release` is how
    many rounds of one job may be charged without a release."""

    job_epsilon: float
    job_epsilon_alone: float
    job_delta: float
    life_epsilon: float
    life_epsilon_alone: float
    life_delta: float
    rounds_without_release: int

    def __post_init__(self) -> None:
        reals = (
            self.job_epsilon,
            self.job_epsilon_alone,
            self.job_delta,
            self.life_epsilon,
            self.life_epsilon_alone,
            self.life_delta,
        )
        if not all(0 <= value < 1e6 for value in reals) or self.rounds_without_release < 0:
            raise ValueError("a cap is out of range")


@dataclass(frozen=True, slots=True)
class Key:
    """First leaf of every ledger: the log's name and the Ed25519 key that signs its heads (32 bytes)."""

    TYPE: ClassVar = "KEY"
    origin: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Dataset:
    """The records that were read for a job, by commitment. Written at every reading, whatever was read: if it were
    left out for unchanged data, the number of leaves would tell whether the data had changed.

    Args:
        plan: hash of the plan for which they were read; every job has such a leaf before its first RESERVE.
        commitment: `privacy.commitments.commit_dataset`, with a fresh nonce.
        schema: hash of the plan's schema.
        patient: name of the column that says whose a record is: the unit of privacy, fixed for the ledger's life.
        public_size: the public approximate number of patients, fixed likewise; never a count of these records.
    """

    TYPE: ClassVar = "DATASET"
    plan: bytes
    commitment: bytes
    schema: bytes
    patient: str
    public_size: int


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


Leaf = Key | Dataset | Plan | Reserve | Commit | Abort | Release | Keep | Successor | Recovered | Carry


@dataclass(frozen=True, slots=True)
class Record:
    """A leaf with its coarse time, as it stands in the log."""

    time: str
    leaf: Leaf

    @staticmethod
    def decode(body: bytes) -> Record:
        """Read the bytes of a leaf.

        Raises:
            MalformedError: not canonical, unknown type, a missing, extra or malformed field.
        """
        return _remembered(body) if len(body) <= _REMEMBERED_BYTES else _decode(body)

    def encode(self) -> bytes:
        """The bytes that enter the tree."""
        values = {field.name: _plain(getattr(self.leaf, field.name)) for field in dataclasses.fields(self.leaf)}
        return canonical_json({"type": self.leaf.TYPE, "time": self.time, **values})


def _decode(body: bytes) -> Record:
    if len(body) > MAXIMUM_BYTES:
        raise MalformedError(f"a leaf of {len(body)} bytes exceeds the limit of {MAXIMUM_BYTES}")
    values = parse_canonical(body)
    if not isinstance(values, dict):
        raise MalformedError("a leaf is a JSON object")
    kind, time = values.pop("type", None), values.pop("time", None)
    leaf_type = _TYPES.get(kind) if isinstance(kind, str) else None
    if leaf_type is None:
        raise MalformedError("unknown leaf type")
    return Record(fields.hour(time), _read(leaf_type, values))


# In one round all silos log the same RESERVE, and each reads everybody's.
_remembered: Final = lru_cache(maxsize=16)(_decode)


def coarse_time(now_ms: int) -> str:
    """The hour of `now_ms` (milliseconds since the epoch), UTC, as leaves carry it."""
    return datetime.fromtimestamp(now_ms // 3_600_000 * 3600, UTC).strftime(fields.HOUR_FORMAT)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Caps):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_json() if isinstance(value, Event) else value


def _read(leaf_type: type[Leaf], values: Mapping[str, Any]) -> Leaf:
    readers = _FIELDS[leaf_type]
    if set(values) != set(readers):
        raise MalformedError(f"a {leaf_type.TYPE} leaf has exactly the fields {', '.join(sorted(readers))}")
    try:
        return leaf_type(**{name: read(values[name]) for name, read in readers.items()})
    except ValueError as error:
        raise MalformedError(f"a {leaf_type.TYPE} leaf has a field out of range: {error}") from error


def _events(value: object) -> tuple[Event, ...]:
    if not isinstance(value, list) or len(value) > 64:
        raise MalformedError("events are a list of at most 64")
    events = tuple(event_from_json(item) for item in value)
    if canonical(events) != events:
        raise MalformedError("events are sorted, and their steps summed")
    return events


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > 100:
        raise MalformedError("names are a list of at most 100")
    names = tuple(fields.name(item) for item in value)
    if list(names) != sorted(set(names)):
        raise MalformedError("names are sorted, each once")
    return names


def _caps(value: object) -> Caps:
    if not isinstance(value, dict) or set(value) != {field.name for field in dataclasses.fields(Caps)}:
        raise MalformedError("caps have exactly their fields")
    rounds = fields.count(value["rounds_without_release"])
    reals = {name: fields.real(value[name]) for name in value if name != "rounds_without_release"}
    return Caps(rounds_without_release=rounds, **reals)


def _reason(value: object) -> AbortReason:
    if not isinstance(value, str):
        raise MalformedError("an abort's reason is a word")
    return AbortReason(value)


_PLACE: Final[dict[str, Callable[[object], Any]]] = {
    "plan": fields.digest,
    "stage": fields.positive,
    "round": fields.positive,
}
_COST: Final[dict[str, Callable[[object], Any]]] = {
    "plan": fields.digest,
    "name": fields.name,
    "delta": fields.delta,
    "epsilon": fields.real,
    "epsilon_alone": fields.real,
    "events": _events,
}
_FIELDS: Final[dict[type[Leaf], dict[str, Callable[[object], Any]]]] = {
    Key: {"origin": fields.origin, "key": fields.digest},
    Dataset: {
        "plan": fields.digest,
        "commitment": fields.digest,
        "schema": fields.digest,
        "patient": fields.column,
        "public_size": fields.positive,
    },
    Plan: {
        **_COST,
        "caps": _caps,
        "code": fields.name,
        "unit": fields.exactly(UNIT),
        "relation": fields.exactly(RELATION),
    },
    Reserve: {**_PLACE, "event": event_from_json, "model": fields.digest},
    Commit: {**_PLACE, "reserve": fields.count, "update": fields.digest},
    Abort: {"plan": fields.digest, "stage": fields.count, "round": fields.count, "reason": _reason},
    Release: {**_PLACE, "sum": fields.digest, "model": fields.digest},
    Keep: _PLACE,
    Successor: {
        "old": fields.digest,
        "key": fields.digest,
        "root": fields.digest,
        "old_signature": fields.signature,
        "key_signature": fields.signature,
    },
    Recovered: {
        "key": fields.digest,
        "size": fields.count,
        "root": fields.digest,
        "signature": fields.signature,
        "without": _names,
    },
    Carry: {**_COST, "patient": fields.column, "public_size": fields.positive},
}
_TYPES: Final[dict[str, type[Leaf]]] = {leaf_type.TYPE: leaf_type for leaf_type in _FIELDS}
