"""Leaves in readable form, and two bundles held against each other. Nothing here is verified."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from feddrm.audit.exhibit import Exhibit
from feddrm.cli import printable
from privacy.errors import MalformedError
from privacy.handover import Carry, Recovered, Successor
from privacy.leaves import Abort, Commit, Dataset, Keep, Key, Leaf, Plan, Record, Release, Reserve
from privacy.merkle import Tree


def describe(leaf: Leaf) -> str:
    """What a leaf says, in one line."""
    match leaf:
        case Key():
            return f"{leaf.origin} signs with {short(leaf.key)}"
        case Dataset():
            return (
                f"data {short(leaf.commitment)} read for plan {short(leaf.plan)}, patients by column "
                f"{leaf.patient}, about {leaf.public_size}"
            )
        case Plan():
            return (
                f"job {leaf.name} (plan {short(leaf.plan)}): epsilon {leaf.epsilon:.6g}, without secure "
                f"aggregation {leaf.epsilon_alone:.6g}, at delta {leaf.delta:.3g}; unit: {leaf.unit}; caps: job "
                f"{leaf.caps.job_epsilon:g} ({leaf.caps.job_epsilon_alone:g}), life {leaf.caps.life_epsilon:g} "
                f"({leaf.caps.life_epsilon_alone:g})"
            )
        case Reserve():
            return f"{_place(leaf)}: {mechanism(leaf.event.to_json())}"
        case Commit():
            return f"{_place(leaf)}: update {short(leaf.update)}, charged by leaf {leaf.reserve}"
        case Abort() if leaf.ends_job:
            return f"the job of plan {short(leaf.plan)} ends: {leaf.reason}"
        case Abort():
            return f"{_place(leaf)}: no release ({leaf.reason}); stays charged"
        case Release():
            return f"{_place(leaf)}: sum {short(leaf.sum)} led to model {short(leaf.model)}"
        case Keep():
            return f"{_place(leaf)}: the result stays in the hospital"
        case _:
            return _succession(leaf)


def _succession(leaf: Leaf) -> str:
    match leaf:
        case Successor():
            return f"the log goes over from key {short(leaf.old)} to {short(leaf.key)}, signed by both"
        case Recovered():
            absent = f", without the exports of {', '.join(leaf.without)}" if leaf.without else ""
            return f"answers for a lost log: {leaf.size} leaves under key {short(leaf.key)}{absent}"
        case Carry():
            return (
                f"job {leaf.name} (plan {short(leaf.plan)}) of a lost log: epsilon {leaf.epsilon:.6g}, without secure "
                f"aggregation {leaf.epsilon_alone:.6g}, at delta {leaf.delta:.3g}, charged in full"
            )
        case _:
            return ", ".join(f"{name} {_value(value)}" for name, value in dataclasses.asdict(leaf).items())


def mechanism(event: dict[str, object]) -> str:
    """An event's parameters in words, from its JSON form."""
    words = {name.replace("_", " "): value for name, value in event.items() if name != "type"}
    steps = words.pop("steps", None)
    first = f"{event['type']}" if steps is None else f"{event['type']}, {steps} steps"
    return ", ".join([first, *(f"{name} {value:g}" for name, value in words.items() if isinstance(value, int | float))])


def short(digest: bytes) -> str:
    """The beginning of a hash."""
    return f"{digest.hex()[:16]}…"


def line(body: bytes) -> str:
    """A leaf as a line: time, type and what it says; or why it cannot be read."""
    try:
        record = Record.decode(body)
    except MalformedError as error:
        return f"unreadable: {error}"
    return f"{record.time[:13]}h  {record.leaf.TYPE:<8} {describe(record.leaf)}"


def show_text(exhibit: Exhibit) -> str:
    """All leaves, one a line."""
    lines = [f"{exhibit.bundle.origin}: {len(exhibit.bundle.leaves)} leaves, NOT verified (feddrm-audit verify does)"]
    lines += [f"{number:>6}  {line(body)}" for number, body in enumerate(exhibit.bundle.leaves)]
    lines += [f"{'':>6}  holds a head of {origin}" for origin in sorted(exhibit.bundle.witnessed)]
    return printable("\n".join(lines))


def show_json(exhibit: Exhibit) -> dict[str, Any]:
    """The bundle's leaves: as they stand, and (where they can be read) as objects with their number and a sentence."""
    return {
        "origin": exhibit.bundle.origin,
        "verified": False,
        "leaves": [body.decode() for body in exhibit.bundle.leaves],
        "readable": [_readable(number, body) for number, body in enumerate(exhibit.bundle.leaves)],
        "head": exhibit.bundle.head.decode(),
        "witnessed": {origin: note.decode() for origin, note in exhibit.bundle.witnessed.items()},
    }


class Relation(StrEnum):
    """How two logs of one ledger stand to each other."""

    SAME = "same"
    FIRST_EXTENDS = "first extends second"
    SECOND_EXTENDS = "second extends first"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class Difference:
    """Two bundles compared. `leaf` is the number of the first leaf that differs or that one of them lacks, `said` the
    two leaves as lines (empty: no such leaf), `fits` whether each one's leaves give the root in its own head."""

    relation: Relation
    leaf: int | None
    said: tuple[str, str]
    sizes: tuple[int, int]
    fits: tuple[bool, bool]

    @property
    def sound(self) -> bool:
        """Whether both can be exports of one append-only ledger."""
        return self.relation is not Relation.DIVERGED and all(self.fits)


def compare(first: Exhibit, second: Exhibit) -> Difference:
    """Hold two bundles of one ledger against each other."""
    a, b = first.bundle.leaves, second.bundle.leaves
    common = next((n for n, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
    if common < min(len(a), len(b)):
        relation = Relation.DIVERGED
    elif len(a) == len(b):
        relation = Relation.SAME
    else:
        relation = Relation.FIRST_EXTENDS if len(a) > len(b) else Relation.SECOND_EXTENDS
    return Difference(
        relation,
        None if relation is Relation.SAME else common,
        (_at(a, common), _at(b, common)),
        (len(a), len(b)),
        (_fits(first), _fits(second)),
    )


def _fits(exhibit: Exhibit) -> bool:
    """Whether the size and root in the head are those of the leaves; its signature is another matter."""
    tree = Tree(exhibit.bundle.leaves)
    parts = exhibit.bundle.head.decode("utf-8", "replace").split("\n")
    return parts[1:3] == [str(tree.size), base64.b64encode(tree.root()).decode()]


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def _at(leaves: Sequence[bytes], number: int) -> str:
    return line(leaves[number]) if number < len(leaves) else ""


def _readable(number: int, body: bytes) -> dict[str, Any]:
    try:
        record = Record.decode(body)
    except MalformedError as error:
        return {"number": number, "unreadable": str(error)}
    return {"number": number, "text": describe(record.leaf), **json.loads(body)}


def _value(value: object) -> str:
    return short(value) if isinstance(value, bytes) else str(value)


def _place(leaf: Reserve | Commit | Abort | Release | Keep) -> str:
    return f"stage {leaf.stage} round {leaf.round}"
