"""Who witnessed whose ledger: heads in all bundles, taken by what they are and not by what they are filed as."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from feddrm.audit.exhibit import Exhibit, KeysOf
from feddrm.audit.sightings import heads_in
from privacy.account import Account
from privacy.checks import Check
from privacy.errors import LedgerCorrupt, MalformedError
from privacy.leaves import Record, Reserve
from privacy.merkle import Tree
from privacy.note import Head, check_origin
from privacy.proofs import check_alone, check_sighting
from privacy.succession import Charged, open_any

SELF = "another export"


def origin_of(note: bytes) -> str:
    """The log that a signed note says it is of; nothing is verified.

    Raises:
        MalformedError: it names none.
    """
    return check_origin(note.split(b"\n", 1)[0].decode("utf-8", "replace"))


def check_held(exhibit: Exhibit, keys_of: KeysOf, listed: Iterable[str] = ()) -> Iterator[Check]:
    """Whether each head that a bundle holds of a peer is one, and of the peer under whose name it is filed.

    Agents verify a head before they keep it, so one that fails was put into the bundle later, by its own hospital.

    Args:
        listed: the silos of its roster. Nobody can be made to keep a head of a peer: which are not there is said.
    """
    good = faults = 0
    for filed, note in sorted(exhibit.bundle.witnessed.items()):
        try:
            known = _opened(note, keys_of)
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
    federation = exhibit.bundle.origin.rsplit("/", 1)[0]
    absent = {f"{federation}/{silo}" for silo in listed} - {exhibit.bundle.origin, *exhibit.bundle.witnessed}
    if absent and exhibit.bundle.witnessed:
        message = f"holds no head of {', '.join(sorted(absent))}, which its roster lists, so it witnesses none of them"
        yield Check("peers", True, None, message, note=True)


def witnesses_of(exhibit: Exhibit, keys: Sequence[bytes], exhibits: Sequence[Exhibit]) -> Mapping[str, bytes]:
    """The heads of this silo's ledger in all other bundles, by who holds them. A head counts by its signature: filed
    under another name it witnesses this ledger all the same (and its holder fails, see `check_held`).

    Args:
        keys: the key that signs this ledger, and those that the silo had before.
    """
    origin = exhibit.bundle.origin
    witnessed: dict[str, bytes] = {}
    for other in exhibits:
        if other is exhibit:
            continue
        if other.bundle.origin == origin:
            # A second export speaks against this one only where both reach: a longer one is later.
            # A log under an earlier key may be one that was lost: it is longer than what answers for it.
            head, signer = _open(other.bundle.head, origin, keys)
            if head is not None and (signer != keys[0] or head.size <= len(exhibit.bundle.leaves)):
                witnessed[f"{SELF} ({other.path.name})"] = other.bundle.head
            continue
        for filed, note in other.bundle.witnessed.items():
            if _open(note, origin, keys)[0] is not None:
                witnessed[other.silo if filed == origin else f"{other.silo} (filed under {filed})"] = note
        for number, note in heads_in(other):
            if _open(note, origin, keys)[0] is not None and note not in witnessed.values():
                witnessed[f"{other.silo} (entry {number} of its sightings)"] = note
    return witnessed


def only_itself(witnessed: Mapping[str, bytes]) -> bool:
    """Whether there are witnesses, and all of them are exports of the same ledger."""
    return bool(witnessed) and all(name.startswith(f"{SELF} (") for name in witnessed)


def charged_by(exhibit: Exhibit, keys: Sequence[bytes], exhibits: Sequence[Exhibit]) -> Iterator[Charged]:
    """What other bundles prove that this silo charged in logs under one of `keys`: leaves that peers kept, with their
    place in a signed tree, and exports of those logs."""
    origin = exhibit.bundle.origin
    for other in exhibits:
        bundle = other.bundle
        for sighting in bundle.sightings:
            try:
                _, key, leaves = check_sighting(sighting, origin=origin, keys=keys)
            except MalformedError:
                continue
            yield from (Charged(key, leaf.plan, other.silo) for leaf in leaves.values() if isinstance(leaf, Reserve))
        if other is exhibit or bundle.origin != origin:
            continue
        head, key = _open(bundle.head, origin, keys)
        tree = Tree(bundle.leaves)
        if head is None or (head.size, head.root) != (tree.size, tree.root()):
            continue
        try:
            leaves = dict(enumerate(Record.decode(body).leaf for body in bundle.leaves))
        except MalformedError:
            continue
        account = Account()
        with suppress(LedgerCorrupt):
            for number, leaf in leaves.items():
                account.apply(number, leaf)
        plans = [*account.carried, *(plan for plan, job in account.jobs.items() if job.charged)]
        yield from (Charged(key, plan, other.path.name) for plan in plans)


def _opened(note: bytes, keys_of: KeysOf) -> Head | None:
    origin = origin_of(note)
    keys = keys_of(origin.rsplit("/", 1)[1])
    if not keys:
        return None
    head = open_any(note, origin, keys)[0]
    check_alone(note, head)
    return head


def _open(note: bytes, origin: str, keys: Sequence[bytes]) -> tuple[Head | None, bytes]:
    try:
        return open_any(note, origin, keys)
    except MalformedError:
        return None, b""
