"""What a bundle holds of jobs that peers charged: each proof is checked, as the peers' agents checked it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from feddrm.audit.exhibit import Exhibit, KeysOf
from privacy.canonical import parse_canonical
from privacy.checks import Check
from privacy.errors import MalformedError
from privacy.leaves import Commit, Leaf, Reserve
from privacy.note import check_origin
from privacy.proofs import check_sighting, read_object, read_text


def check_sightings(exhibit: Exhibit, keys_of: KeysOf) -> Iterator[Check]:
    """Whether each proof is one, by a peer, and stands where exports put it; and which proofs one would expect are
    not there, since nobody can be made to keep what speaks about others."""
    federation, faults = exhibit.bundle.origin.rsplit("/", 1)[0], 0
    held: list[tuple[str, frozenset[bytes]]] = []
    for number, sighting in enumerate(exhibit.bundle.sightings, start=1):
        where = f"entry {number} of sightings"
        try:
            origin = origin_of_sighting(sighting)
            where = f"{where}, about {origin}"
            if origin == exhibit.bundle.origin or origin.rsplit("/", 1)[0] != federation:
                raise MalformedError("it is about no peer of this silo")
            keys = keys_of(origin.rsplit("/", 1)[1])
            if not keys:
                yield Check("sightings", True, None, f"{where}: no roster here lists that silo, not checked", note=True)
                continue
            _, _, leaves = check_sighting(sighting, origin=origin, keys=keys)
            jobs = _charged(leaves)
            if sighting in exhibit.bundle.sightings[: number - 1] or (held and _misplaced((origin, jobs), held[-1])):
                raise MalformedError("it does not stand in its place, by peer and job, each once")
        except MalformedError as error:
            faults += 1
            yield Check("sightings", False, None, f"{where}, proves nothing: {error}")
            continue
        held.append((origin, jobs))
    if not faults:
        count, peers = len(exhibit.bundle.sightings), len({origin for origin, _ in held})
        yield Check("sightings", True, None, f"holds {count} proofs that peers charged jobs, of {peers} peers")
    yield from _missing(exhibit, held)


def heads_in(exhibit: Exhibit) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and head (a signed note) of each sighting that has one; nothing is verified."""
    for number, sighting in enumerate(exhibit.bundle.sightings, start=1):
        with suppress(MalformedError):
            yield number, _note(sighting)


def origin_of_sighting(sighting: bytes) -> str:
    """The log that a sighting says it is of. Raises MalformedError: it names none."""
    return check_origin(_note(sighting).split(b"\n", 1)[0].decode("utf-8", "replace"))


def _note(sighting: bytes) -> bytes:
    return read_text(read_object(parse_canonical(sighting), {"head", "leaves"})["head"])


def _charged(leaves: dict[int, Leaf]) -> frozenset[bytes]:
    """The jobs that a proof is about: agents keep it for a round that is charged and committed."""
    reserves = {number: leaf.plan for number, leaf in leaves.items() if isinstance(leaf, Reserve)}
    commits = [leaf for leaf in leaves.values() if isinstance(leaf, Commit)]
    jobs = frozenset(reserves[leaf.reserve] for leaf in commits if leaf.reserve in reserves)
    if not jobs:
        raise MalformedError("it shows no round that was charged and committed")
    return jobs


def _misplaced(one: tuple[str, frozenset[bytes]], before: tuple[str, frozenset[bytes]]) -> bool:
    # A peer may have shown rounds of several jobs in one proof: which of them it was kept for is then not known.
    if one[0] != before[0] or len(one[1]) > 1 or len(before[1]) > 1:
        return one[0] < before[0]
    return min(one[1]) <= min(before[1])


def _missing(exhibit: Exhibit, held: Sequence[tuple[str, frozenset[bytes]]]) -> Iterator[Check]:
    witnessed = set(exhibit.bundle.witnessed)
    # Agents write head and proof in one transaction.
    lacking = {
        "a head, but no proof of a charged job": witnessed - {origin for origin, _ in held},
        "a proof, but no head": {origin for origin, _ in held} - witnessed,
    }
    for what, origins in lacking.items():
        if origins:
            message = f"holds {what}, of {', '.join(sorted(origins))}: agents write both at once"
            yield Check("sightings", True, None, message, note=True)
    for job in sorted(frozenset().union(*(jobs for _, jobs in held))):
        absent = {origin for origin, _ in held} - {origin for origin, jobs in held if job in jobs}
        if absent:
            message = (
                f"holds no proof that {', '.join(sorted(absent))} charged job {job.hex()[:16]}, which others did: it "
                "took no part with this silo, or the proof was taken out"
            )
            yield Check("sightings", True, None, message, note=True)
