"""Proof that a hospital forked its ledger: found among bundles and heads, kept in a file that needs only the root.

The file holds the proof (`privacy.forks`) and the roster that gives the hospital's key, signed by the operator.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feddrm.audit.court import identities_of
from feddrm.audit.exhibit import Exhibit
from feddrm.audit.heads import origin_of
from feddrm.audit.sightings import heads_in
from feddrm.contract.errors import FeddrmError, InputError
from feddrm.contract.files import MAXIMUM_DOCUMENT, read_bounded
from feddrm.contract.kit import FederationRoot
from feddrm.contract.roster import Roster, verify_roster
from feddrm.contract.signed import Signed
from privacy.bundle import MAXIMUM_BUNDLE, parse_bundle
from privacy.errors import MalformedError
from privacy.forks import check_fork_proof, find_fork
from privacy.merkle import Tree
from privacy.note import Head
from privacy.succession import open_any

FORMAT: Final = "feddrm fork proof 1"
_Place = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Fork:
    """A proven fork: of which log, what it shows in words, and the file that proves it."""

    origin: str
    shows: str
    file: str

    @property
    def silo(self) -> str:
        """The hospital."""
        return self.origin.rsplit("/", 1)[1]


@dataclass(slots=True)
class Findings:
    """What was read: bundles, loose signed heads, and proofs with the rosters they bring."""

    exhibits: list[Exhibit]
    notes: list[bytes]
    proofs: list[tuple[str, bytes]]
    rosters: list[Signed]


def read_findings(paths: Sequence[Path], roster: Path | None) -> Findings:
    """Read bundles, signed heads and proof files, told apart by content.

    Raises:
        InputError: a file is none of these.
    """
    findings = Findings([], [], [], [])
    if roster is not None:
        try:
            findings.rosters.append(Signed.from_json(read_bounded(roster)))
        except FeddrmError as error:
            raise InputError(f"{roster} is not a signed roster: {error.message}") from error
    for path in paths:
        data = read_bounded(path, limit=MAXIMUM_BUNDLE)
        try:
            findings.exhibits.append(Exhibit(path, parse_bundle(data)))
        except MalformedError:
            _read_other(path, data, findings)
    return findings


def _read_other(path: Path, data: bytes, findings: Findings) -> None:
    if data.lstrip().startswith(b"{"):
        try:
            parts = json.loads(data[:MAXIMUM_DOCUMENT])
            if parts.get("format") != FORMAT or set(parts) != {"format", "origin", "proof", "roster"}:
                raise ValueError("format")
            findings.proofs.append((parts["origin"], parts["proof"].encode()))
            findings.rosters.append(Signed.from_json(parts["roster"]))
            return
        except (ValueError, AttributeError, TypeError, RecursionError, FeddrmError) as error:
            raise InputError(f"{path} is neither a ledger bundle nor a fork proof.") from error
    try:
        origin_of(data)
    except MalformedError as error:
        raise InputError(
            f"{path} is no ledger bundle, signed head or fork proof.",
            remedy="A head is the text of a signed note, which begins with feddrm/<federation>/<silo>.",
        ) from error
    findings.notes.append(data)


def judge_forks(anchor: FederationRoot, findings: Findings) -> tuple[tuple[Fork, ...], tuple[str, ...]]:
    """Look for forks in all that was read.

    Returns:
        the forks, one a log, and in words what was looked at and proves nothing.
    """
    rosters = _rosters(anchor, findings)
    believed = sorted((roster for roster, _ in rosters), key=lambda roster: roster.version, reverse=True)
    heads, logs, remarks = _collect(believed, findings)
    forks: dict[str, Fork] = {}
    for origin, proof in findings.proofs:
        try:
            forks[origin] = _fork_of_any(origin, proof, _keys(believed, origin), rosters)
        except MalformedError as error:
            remarks.append(f"a proof about {origin} proves nothing: {error}")
    # Under another key there may be another ledger: one that answers for this one, which was lost.
    for place in sorted({*heads, *logs}):
        origin, key = place
        proof_found = find_fork(heads.get(place, ()), logs.get(place, ()))
        if proof_found is not None and origin not in forks:
            forks[origin] = _fork(origin, proof_found, key, rosters)
        elif proof_found is None and origin not in forks:
            count = len({head.note for head in heads.get(place, ())})
            remarks.append(f"{origin}: {count} signed heads, all of which can belong to one log")
    return tuple(forks.values()), tuple(remarks)


def _rosters(anchor: FederationRoot, findings: Findings) -> list[tuple[Roster, str]]:
    found = []
    texts = [text for exhibit in findings.exhibits for text in (exhibit.bundle.roster, *exhibit.bundle.rosters)]
    texts += [signed.to_json() for signed in findings.rosters]
    for text in texts:
        try:
            roster = verify_roster(Signed.from_json(text), federation=anchor.federation, operator=anchor.operator)
            found.append((roster, text))
        except FeddrmError:
            continue
    return found


def _collect(
    believed: Sequence[Roster], findings: Findings
) -> tuple[dict[_Place, list[Head]], dict[_Place, list[tuple[Head, Sequence[bytes]]]], list[str]]:
    heads: dict[_Place, list[Head]] = {}
    logs: dict[_Place, list[tuple[Head, Sequence[bytes]]]] = {}
    remarks = []
    notes = [
        note for exhibit in findings.exhibits for note in (exhibit.bundle.head, *exhibit.bundle.witnessed.values())
    ]
    notes += [note for exhibit in findings.exhibits for _, note in heads_in(exhibit)]
    for note in (*notes, *findings.notes):
        try:
            origin = origin_of(note)
            head, key = open_any(note, origin, _keys(believed, origin))
            heads.setdefault((origin, key), []).append(head)
        except MalformedError as error:
            remarks.append(f"a head was left aside: {error}")
    for exhibit in findings.exhibits:
        origin, leaves = exhibit.bundle.origin, exhibit.bundle.leaves
        tree = Tree(leaves)
        for place, known in heads.items():
            for head in known if place[0] == origin else ():
                if head.note == exhibit.bundle.head and (head.size, head.root) == (tree.size, tree.root()):
                    logs.setdefault(place, []).append((head, leaves))
                    break
    return heads, logs, remarks


def _keys(believed: Sequence[Roster], origin: str) -> tuple[bytes, ...]:
    keys = identities_of(origin.rsplit("/", 1)[-1], believed)
    if not keys:
        raise MalformedError(f"no roster that the operator signed lists the silo of {origin}")
    return keys


def _fork_of_any(origin: str, proof: bytes, keys: Sequence[bytes], rosters: Sequence[tuple[Roster, str]]) -> Fork:
    """A fork under one of the keys that the silo ever had; if there is none, the error about the newest."""
    for key in keys[1:]:
        try:
            return _fork(origin, proof, key, rosters)
        except MalformedError:
            continue
    return _fork(origin, proof, keys[0], rosters)


def _fork(origin: str, proof: bytes, key: bytes, rosters: Sequence[tuple[Roster, str]]) -> Fork:
    shows = check_fork_proof(proof, origin=origin, key=key)
    silo = origin.rsplit("/", 1)[1]
    text = next(text for roster, text in rosters if any(m.name == silo and m.identity == key for m in roster.silos))
    document = {"format": FORMAT, "origin": origin, "proof": proof.decode(), "roster": text}
    return Fork(origin, shows, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
