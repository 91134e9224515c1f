"""The export of one hospital's ledger for auditors: text, with everything a verification needs and no private key.

Nothing in a bundle vouches for itself: leaves are held against the signed head, the head and the roster against keys
that the auditor has from elsewhere, truncation against what other bundles witnessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from privacy.errors import MalformedError
from privacy.ledger import Ledger
from privacy.note import check_origin

FORMAT: Final = "feddrm ledger bundle 2"
MAXIMUM_BUNDLE: Final = 256 << 20
_FIELDS: Final = frozenset(
    {"format", "origin", "leaves", "head", "witnessed", "sightings", "roster", "rosters", "plans"}
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A parsed bundle; nothing in it is verified.

    Args:
        origin: the log.
        leaves: bytes of all leaves in order.
        head: signed note.
        witnessed: by origin, the newest head that this silo saw of each peer (signed notes).
        sightings: proofs that peers charged jobs (privacy.proofs).
        roster: the signed roster, as the text it was stored in.
        rosters: those that this silo had pinned before, likewise.
        plans: the signed plans, likewise.
    """

    origin: str
    leaves: tuple[bytes, ...]
    head: bytes
    witnessed: Mapping[str, bytes]
    sightings: tuple[bytes, ...]
    roster: str
    rosters: tuple[str, ...]
    plans: tuple[str, ...]


def export_bundle(
    ledger: Ledger,
    *,
    witnessed: Mapping[str, bytes],
    roster: str,
    plans: Sequence[str],
    sightings: Sequence[bytes] = (),
    rosters: Sequence[str] = (),
) -> str:
    """The bundle of `ledger` as text.

    Args:
        ledger: `Ledger.read` is enough.
        witnessed: by origin (feddrm/<federation>/<silo>), the newest head held of each peer (signed notes).
        roster: the signed roster in its text form.
        plans: the signed plans of all jobs in the ledger, in their text form.
        sightings: proofs that peers charged jobs (privacy.proofs).
        rosters: signed rosters that were pinned before, in their text form.

    Raises:
        MalformedError: an origin among `witnessed` is none.
    """
    heads = {check_origin(origin): note for origin, note in witnessed.items()}
    return render_bundle(
        Bundle(
            ledger.origin,
            ledger.bodies(),
            ledger.head(),
            heads,
            tuple(sightings),
            roster,
            tuple(rosters),
            tuple(plans),
        )
    )


def render_bundle(bundle: Bundle) -> str:
    """The one text of a bundle: what `parse_bundle` read renders to the same bytes, or somebody wrote it anew."""
    return json.dumps(
        {
            "format": FORMAT,
            "origin": bundle.origin,
            "head": bundle.head.decode(),
            "leaves": [body.decode() for body in bundle.leaves],
            "witnessed": {origin: note.decode() for origin, note in sorted(bundle.witnessed.items())},
            "sightings": [one.decode() for one in bundle.sightings],
            "roster": bundle.roster,
            "rosters": list(bundle.rosters),
            "plans": list(bundle.plans),
        },
        indent=1,
        ensure_ascii=False,
    )


def check_form(text: bytes, bundle: Bundle) -> None:
    """Whether `text`, from which `bundle` was read, is as `export_bundle` writes it: no byte of it goes unread.

    Raises:
        MalformedError: it is not; says in which line and part.
    """
    lines, expected = text.split(b"\n"), render_bundle(bundle).encode().split(b"\n")
    if lines == expected:
        return
    pairs = enumerate(zip(lines, expected, strict=False))
    first = next((number for number, (one, other) in pairs if one != other), min(len(lines), len(expected)))
    starts = [line for line in expected[: first + 1] if line.startswith(b' "')]
    where = " in the part " + starts[-1].split(b'"')[1].decode() if starts else ""
    raise MalformedError(f"it is not written as it was exported: line {first + 1}{where} is written otherwise")


def parse_bundle(text: bytes) -> Bundle:
    """Read a bundle's form; verify nothing.

    Raises:
        MalformedError: not a bundle of this format.
    """
    if len(text) > MAXIMUM_BUNDLE:
        raise MalformedError(f"a bundle of {len(text)} bytes exceeds the limit of {MAXIMUM_BUNDLE}")
    try:
        fields = json.loads(text.decode("utf-8"), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise MalformedError("this is not JSON") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT or set(fields) != _FIELDS:
        raise MalformedError(f"this is not a {FORMAT}")
    witnessed = fields["witnessed"]
    if not isinstance(witnessed, dict):
        raise MalformedError("the part witnessed is no object")
    return Bundle(
        _origin(fields["origin"], "origin"),
        tuple(one.encode() for one in _texts(fields, "leaves")),
        _text(fields["head"], "head").encode(),
        {
            _origin(origin, "witnessed"): _text(note, f"witnessed, entry {origin}").encode()
            for origin, note in witnessed.items()
        },
        tuple(one.encode() for one in _texts(fields, "sightings")),
        _text(fields["roster"], "roster"),
        _texts(fields, "rosters"),
        _texts(fields, "plans"),
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _origin(value: Any, part: str) -> str:
    try:
        return check_origin(_text(value, part))
    except MalformedError as error:
        raise MalformedError(f"the part {part}: {error}") from error


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise MalformedError(f"the part {where} is no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedError(f"the part {where} is not Unicode") from error
    return value


def _texts(fields: dict[str, Any], part: str) -> tuple[str, ...]:
    if not isinstance(fields[part], list):
        raise MalformedError(f"the part {part} is no list")
    return tuple(_text(one, f"{part}, entry {number}") for number, one in enumerate(fields[part], start=1))
