"""Who witnessed whose ledger: heads in all bundles, taken by what they are and not by what they are filed as."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from feddrm.audit.exhibit import Exhibit
from privacy.errors import MalformedError
from privacy.note import Head, check_origin, open_head
from privacy.verify import Check

SELF = "another export"
KeyOf = Callable[[str], bytes | None]
"""The identity key of a silo by its name, from rosters that the operator signed; None if they list no such silo."""


def origin_of(note: bytes) -> str:
    """The log that a signed note says it is of; nothing is verified.

    Raises:
        MalformedError: it names none.
    """
    return check_origin(note.split(b"\n", 1)[0].decode("utf-8", "replace"))


def check_held(exhibit: Exhibit, key_of: KeyOf) -> Iterator[Check]:
    """Whether each head that a bundle holds of a peer is one, and of the peer under whose name it is filed.

    Agents verify a head before they keep it, so one that fails was put into the bundle later, by its own hospital.
    """
    good = faults = 0
    for filed, note in sorted(exhibit.bundle.witnessed.items()):
        try:
            known = _opened(note, key_of)
        except MalformedError as error:
            faults += 1
            yield Check("peers", False, None, f"the head filed under {filed} proves nothing: {error}")
            continue
        if known is None:
            message = f"the head filed under {filed} is of {origin_of(note)}, which no roster here lists: not checked"
            yield Check("peers", True, None, message, note=True)
        elif known.origin != filed:
            faults += 1
            yield Check("peers", False, None, f"the head filed under {filed} is of {known.origin}")
        else:
            good += 1
    if not exhibit.bundle.witnessed:
        yield Check("peers", True, None, "holds no head of a peer, so it witnesses nobody", note=True)
    elif not faults:
        yield Check("peers", True, None, f"holds heads of {good} peers, each signed by the silo it is filed under")


def witnesses_of(exhibit: Exhibit, key: bytes, exhibits: Sequence[Exhibit]) -> Mapping[str, bytes]:
    """The heads of this ledger in all other bundles, by who holds them. A head counts by its signature: filed under
    another name it witnesses this ledger all the same (and its holder fails, see `check_held`)."""
    origin = exhibit.bundle.origin
    witnessed: dict[str, bytes] = {}
    for other in exhibits:
        if other is exhibit:
            continue
        if other.bundle.origin == origin:
            # A second export speaks against this one only where both reach: a longer one is later.
            head = _open(other.bundle.head, origin, key)
            if head is not None and head.size <= len(exhibit.bundle.leaves):
                witnessed[f"{SELF} ({other.path.name})"] = other.bundle.head
            continue
        for filed, note in other.bundle.witnessed.items():
            if _open(note, origin, key) is not None:
                witnessed[other.silo if filed == origin else f"{other.silo} (filed under {filed})"] = note
    return witnessed


def only_itself(witnessed: Mapping[str, bytes]) -> bool:
    """Whether there are witnesses, and all of them are exports of the same ledger."""
    return bool(witnessed) and all(name.startswith(f"{SELF} (") for name in witnessed)


def _opened(note: bytes, key_of: KeyOf) -> Head | None:
    origin = origin_of(note)
    key = key_of(origin.rsplit("/", 1)[1])
    return None if key is None else open_head(note, origin, key)


def _open(note: bytes, origin: str, key: bytes) -> Head | None:
    try:
        return open_head(note, origin, key)
    except MalformedError:
        return None
