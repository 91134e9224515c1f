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
    return json.dumps(
        {
            "format": FORMAT,
            "origin": ledger.origin,
            "head": ledger.head().decode(),
            "leaves": [body.decode() for body in ledger.bodies()],
            "witnessed": {check_origin(origin): note.decode() for origin, note in sorted(witnessed.items())},
            "sightings": [one.decode() for one in sightings],
            "roster": roster,
            "rosters": list(rosters),
            "plans": list(plans),
        },
        indent=1,
        ensure_ascii=False,
    )


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
        raise MalformedError("witnessed heads are an object")
    return Bundle(
        check_origin(_text(fields["origin"])),
        tuple(_text(leaf).encode() for leaf in _list(fields["leaves"])),
        _text(fields["head"]).encode(),
        {check_origin(origin): _text(note).encode() for origin, note in witnessed.items()},
        tuple(_text(one).encode() for one in _list(fields["sightings"])),
        _text(fields["roster"]),
        tuple(_text(one) for one in _list(fields["rosters"])),
        tuple(_text(plan) for plan in _list(fields["plans"])),
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise MalformedError("a bundle holds text where it should")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedError("a bundle holds text that is not Unicode") from error
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedError("a bundle holds lists where it should")
    return value
