"""What is left of a lost ledger: heads that others witnessed, leaves that they kept, old exports, signed plans."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from feddrm.contract.errors import FeddrmError, InputError, VerificationError
from feddrm.contract.files import read_bounded
from feddrm.contract.home import SiloHome
from feddrm.contract.roster import Roster, verify_roster
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan, verify_plan
from privacy.bundle import MAXIMUM_BUNDLE, Bundle, parse_bundle
from privacy.errors import LedgerError, MalformedError
from privacy.handover import Carry
from privacy.leaves import Dataset, Leaf, Plan, Record, Reserve
from privacy.ledger import Ledger
from privacy.merkle import Tree
from privacy.note import Head
from privacy.proofs import check_sighting
from privacy.succession import open_any


@dataclass(slots=True)
class Findings:
    """What the files show.

    Attributes:
        heads: of lost logs, with the key that signed each.
        plans: signed for this silo, taken part or not.
        charged: jobs that a leaf of a lost log names, and who shows it, in words.
        began: those of them that this silo took itself (PLAN, RESERVE), and not only carried for an older log.
        sizes, columns: public sizes and patient columns that DATASET and CARRY leaves fixed.
        witnesses: whose exports they are.
    """

    heads: list[tuple[Head, bytes]] = field(default_factory=list)
    plans: dict[bytes, SignedPlan] = field(default_factory=dict)
    charged: dict[bytes, str] = field(default_factory=dict)
    began: set[bytes] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    witnesses: set[str] = field(default_factory=set)


def search(
    member: SiloHome, origin: str, files: Iterable[Path], plans: Iterable[Signed], broken: Iterable[Path]
) -> Findings:
    """Look through files for everything about the logs of this silo under earlier keys.

    Args:
        files: exports of any hospital of the federation, and signed plans.
        plans: the signed plans that this silo remembers.
        broken: ledgers' databases that are not in use any more.

    Raises:
        InputError: a file is neither.
    """
    found, texts, bundles = Findings(), [plan.to_json() for plan in plans], []
    for path in files:
        data = read_bounded(path, limit=MAXIMUM_BUNDLE)
        try:
            bundles.append(parse_bundle(data))
        except MalformedError:
            try:
                texts.append(Signed.from_json(data).to_json())
            except FeddrmError as error:
                raise InputError(f"{path} is neither an exported ledger nor a signed plan.") from error
    rosters = [text for bundle in bundles for text in (bundle.roster, *bundle.rosters)]
    believed = _believed(member, rosters)
    former = tuple(key for key in _keys(believed, member.name) if key != member.keys.identity_public)
    for bundle in bundles:
        texts += bundle.plans
        _look(bundle, origin, former, found)
        witness = bundle.origin.rsplit("/", 1)[1]
        if bundle.origin != origin and _signed_by(bundle, _keys(believed, witness)):
            found.witnesses.add(witness)
    for path in broken:
        _look_into(path, origin, former, found)
    for text in texts:
        try:
            anchor = member.anchor
            signed = verify_plan(Signed.from_json(text), federation=anchor.federation, operator=anchor.operator)
        except FeddrmError:
            continue
        if member.name in signed.plan.silos:
            found.plans.setdefault(signed.hash, signed)
    return found


def _believed(member: SiloHome, rosters: Iterable[str]) -> list[Roster]:
    """Rosters that the operator signed."""
    anchor, believed = member.anchor, []
    texts = [member.signed_roster.to_json(), *(signed.to_json() for signed in member.pin.history()), *rosters]
    for text in texts:
        try:
            roster = verify_roster(Signed.from_json(text), federation=anchor.federation, operator=anchor.operator)
        except FeddrmError:
            continue
        believed.append(roster)
    return believed


def _keys(rosters: Iterable[Roster], name: str) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(one.identity for roster in rosters for one in roster.silos if one.name == name))


def _signed_by(bundle: Bundle, keys: Sequence[bytes]) -> bool:
    """Whether an export is its hospital's own: its head is signed by a key of that hospital, over these leaves."""
    try:
        head, _ = open_any(bundle.head, bundle.origin, keys)
    except MalformedError:
        return False
    tree = Tree(bundle.leaves)
    return (head.size, head.root) == (tree.size, tree.root())


def _look(bundle: Bundle, origin: str, former: Sequence[bytes], found: Findings) -> None:
    notes = list(bundle.witnessed.values())
    if bundle.origin == origin:
        notes.append(bundle.head)
        if _signed_by(bundle, former):
            with contextlib.suppress(MalformedError):
                _charges([Record.decode(body).leaf for body in bundle.leaves], "its own export", found)
    for note in notes:
        try:
            found.heads.append(open_any(note, origin, former))
        except MalformedError:
            continue
    for sighting in bundle.sightings:
        try:
            head, key, leaves = check_sighting(sighting, origin=origin, keys=former)
        except MalformedError:
            continue
        found.heads.append((head, key))
        _charges(leaves.values(), f"what {bundle.origin.rsplit('/', 1)[1]} kept of it", found)


def _look_into(path: Path, origin: str, former: Sequence[bytes], found: Findings) -> None:
    """A ledger's database that was set aside: an older copy is sound as far as it goes."""
    for key in former:
        try:
            ledger = Ledger.read(path, origin, key)
        except LedgerError:
            continue
        found.heads.append(open_any(ledger.head(), origin, (key,)))
        _charges((record.leaf for record in ledger.leaves()), "the older copy", found)


def _charges(leaves: Iterable[Leaf], shown_by: str, found: Findings) -> None:
    for leaf in leaves:
        if isinstance(leaf, Plan | Reserve | Carry):
            found.charged.setdefault(leaf.plan, shown_by)
        if isinstance(leaf, Plan | Reserve):
            found.began.add(leaf.plan)
        if isinstance(leaf, Dataset | Carry):
            found.sizes.add(leaf.public_size)
            found.columns.add(leaf.patient)


def newest(found: Findings) -> list[tuple[Head, bytes]]:
    """The largest head of each lost log, with its key.

    Raises:
        VerificationError: two of them cannot belong to one log.
    """
    best: dict[bytes, Head] = {}
    for head, key in found.heads:
        known = best.setdefault(key, head)
        if known.size == head.size and known.root != head.root:
            raise VerificationError(
                f"Two heads of {head.size} leaves are signed by the lost ledger's key: it had forked.",
                remedy="feddrm-audit fork-proof makes a proof of it. No new ledger can answer for two.",
            )
        if head.size > known.size:
            best[key] = head
    return [(head, key) for key, head in best.items()]
