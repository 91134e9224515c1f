"""What peers check of a silo's ledger in every round: it charged and committed this round, and it still extends
what they saw of it before. A silo that deletes, edits or rolls back leaves shows here; one that keeps two ledgers
signs two heads of one size, which is a proof that convinces anybody (`check_fork`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import ForkFault, LedgerFault, MalformedError, UnaskedFault
from privacy.events import Event
from privacy.leaves import Commit, Leaf, Reserve
from privacy.ledger import Ledger
from privacy.merkle import consistency_valid
from privacy.note import MAXIMUM_SIZE, Head, open_head
from privacy.proofs import (
    MAXIMUM_LEAVES,
    MAXIMUM_PROOF,
    check_alone,
    read_leaves,
    read_list,
    read_number,
    read_object,
    read_path,
    read_text,
)
from privacy.succession import Owed, answers_for, links, understates

MAXIMUM_ASKED: Final = 104
MAXIMUM_SIZES: Final = 128


def asked_sizes(sizes: Iterable[int]) -> tuple[int, ...]:
    """What a silo that is asked for `sizes` says it was asked for: those that a ledger can have, the 104 largest."""
    return tuple(sorted({size for size in sizes if 1 <= size <= MAXIMUM_SIZE}))[-MAXIMUM_ASKED:]


def make_proof(ledger: Ledger, indices: Iterable[int], asked: Iterable[int], shown: Iterable[int] = ()) -> bytes:
    """The proof that a silo puts into its R1.

    It says what the silo was asked for, and R1 signs its hash: who leaves out what it was asked for is told from one
    that was not asked, and a coordinator cannot make a peer blame an honest silo by not asking it.

    Args:
        ledger: the silo's own.
        indices: leaf numbers to show: those of the round's RESERVE and COMMIT, and the ledger's `succession`, of
            which the last ones matter most.
        asked: sizes of this ledger's heads that peers hold, as the coordinator names them. For those that this ledger
            never had there is no proof (whoever named them will refuse), so that an invention does not stop the
            honest ones.
        shown: other sizes that peers may hold, at most 24.

    Returns:
        Canonical JSON: the newest head, the leaves with their inclusion, the sizes asked for, consistency from each
        size.

    Raises:
        ValueError: there is no such leaf, or more than 32 leaves or 24 other sizes are wanted.
    """
    named, others = sorted(set(indices)), set(shown)
    if len(named) > MAXIMUM_LEAVES or len(others) > MAXIMUM_SIZES - MAXIMUM_ASKED:
        raise ValueError(f"a proof shows at most {MAXIMUM_LEAVES} leaves")
    size, bodies, sizes = ledger.size, ledger.bodies(), asked_sizes(asked)
    return canonical_json(
        {
            "head": ledger.head().decode(),
            "leaves": [
                {
                    "number": number,
                    "path": [digest.hex() for digest in ledger.prove_inclusion(number)],
                    "leaf": bodies[number].decode(),
                }
                for number in named
            ],
            "asked": list(sizes),
            "consistency": [
                {"size": old, "path": [digest.hex() for digest in ledger.prove_consistency(old)]}
                for old in sorted({*sizes, *others})
                if 1 <= old < size
            ],
        }
    )


def check_answer(proof: bytes, *, origin: str, key: bytes, asked: Iterable[int]) -> int:
    """What a coordinator, which holds nobody's heads, checks of a proof: it answers what the silo was asked for.

    Args:
        proof: from the silo's R1.
        origin: the silo's log.
        key: its identity key (32 bytes).
        asked: the sizes that were sent to it.

    Returns:
        the size of its newest head.

    Raises:
        LedgerFault: malformed, not signed, says it was asked for others, or does not answer one.
    """
    try:
        parsed = _parse(proof, origin, key)
    except MalformedError as error:
        raise LedgerFault(f"its ledger proof is not acceptable: {error}", proof) from error
    if parsed.asked != asked_sizes(asked):
        raise LedgerFault("its ledger proof is an answer to another question", proof)
    missing = [size for size in parsed.asked if size < parsed.head.size and size not in parsed.paths]
    if missing:
        raise LedgerFault(f"it does not prove that its ledger extends its head of {missing[0]} leaves", proof)
    return parsed.head.size


def check_proof(
    proof: bytes,
    *,
    origin: str,
    key: bytes,
    witnessed: bytes | None,
    plan: bytes,
    stage: int,
    round: int,  # noqa: A002
    event: Event,
    model: bytes,
    witnessed_key: bytes | None = None,
    owed: Iterable[Owed] = (),
) -> bytes:
    """Check a peer's proof; returns the head to witness from now on (a signed note, with that one signature).

    Args:
        proof: from the peer's R1.
        origin: the peer's log, feddrm/<federation>/<silo>.
        key: the peer's identity key from the signed roster (32 bytes).
        witnessed: the newest head of this log held so far, as returned here, or None.
        plan: hash of the signed plan (32 bytes).
        stage: of the announced round.
        round: of the announced round.
        event: what the signed plan says that this round costs.
        model: hash of the model that the announcement names (32 bytes).
        witnessed_key: the key that signed `witnessed`, where the roster has given the peer another one since. The
            proof must then show that the old key handed the log over, or that this is a new log which answers for
            the witnessed head of the one that was lost.
        owed: jobs that this log was seen to charge, which a new log in its place must carry in full.

    Raises:
        ForkFault: another head of the size that was witnessed, or of a size that was: its evidence convinces anybody.
        LedgerFault: malformed, not signed, rolled back, not an extension, or the round is not charged and committed.
        UnaskedFault: it does not show that it extends `witnessed`, and does not say that it was asked to.
    """
    try:
        parsed = _parse(proof, origin, key)
        head, leaves = parsed.head, parsed.leaves
        if witnessed is not None:
            old = witnessed_key or key
            _check_witnessed(parsed, open_head(witnessed, origin, old), old, key, proof, owed)
    except MalformedError as error:
        raise LedgerFault(f"the ledger proof of {origin} is not acceptable: {error}", proof) from error
    reserves = {
        number
        for number, leaf in leaves.items()
        if isinstance(leaf, Reserve) and leaf == Reserve(plan, stage, round, event, model)
    }
    if not reserves:
        raise LedgerFault(
            f"{origin} does not show that it charged this round, from the announced model, as the plan says", proof
        )
    if not any(
        isinstance(leaf, Commit)
        and (leaf.plan, leaf.stage, leaf.round) == (plan, stage, round)
        and leaf.reserve in reserves
        for leaf in leaves.values()
    ):
        raise LedgerFault(f"{origin} does not show that it committed to its update", proof)
    return head.note


def make_fork(first: bytes, second: bytes) -> bytes:
    """Evidence of a fork: two signed heads, as canonical JSON."""
    return canonical_json({"first": first.decode(), "second": second.decode()})


def check_fork(evidence: bytes, *, origin: str, key: bytes) -> int:
    """Judge evidence of a fork without trusting whoever brought it; returns the size at which the log forked.

    Raises:
        MalformedError: it proves nothing: not two heads of this log, signed by `key`, of one size with two roots.
    """
    heads = read_object(parse_canonical(evidence), {"first", "second"})
    first, second = (open_head(read_text(heads[name]), origin, key) for name in ("first", "second"))
    if first.size != second.size or first.root == second.root:
        raise MalformedError("these two heads can belong to one log")
    return first.size


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A proof whose head is signed and whose leaves are in its tree."""

    head: Head
    leaves: dict[int, Leaf]
    asked: tuple[int, ...]
    paths: dict[int, tuple[bytes, ...]]


def _check_witnessed(parsed: _Parsed, before: Head, old: bytes, key: bytes, proof: bytes, owed: Iterable[Owed]) -> None:
    origin = parsed.head.origin
    if old == key or links(parsed.leaves.items(), origin, old, key):
        _check_extension(parsed, before, proof)
    elif not answers_for(parsed.leaves.values(), origin, old, before):
        raise LedgerFault(
            f"{origin} is under another key now, and shows neither that the old one handed it over nor that a new log "
            f"answers for the {before.size} leaves that were witnessed",
            proof,
        )
    elif understated := understates(parsed.leaves.values(), owed):
        raise LedgerFault(f"{origin} answers for a lost log, but {understated}", proof)


def _check_extension(parsed: _Parsed, before: Head, proof: bytes) -> None:
    head = parsed.head
    if head.size == before.size and head.root != before.root:
        raise ForkFault(
            f"{head.origin} signed two different heads of {head.size} leaves", make_fork(before.note, head.note)
        )
    if head.size < before.size:
        raise LedgerFault(
            f"the ledger of {head.origin} was rolled back from {before.size} to {head.size} leaves", proof
        )
    if head.size == before.size:
        return
    path = parsed.paths.get(before.size)
    if path is None and before.size not in parsed.asked:
        raise UnaskedFault(f"{head.origin} was not asked to prove that it extends its head of {before.size} leaves")
    if path is None:
        raise LedgerFault(f"{head.origin} does not prove that it extends its head of {before.size} leaves", proof)
    if not consistency_valid(before.size, before.root, head.size, head.root, path):
        raise LedgerFault(f"the ledger of {head.origin} no longer extends its head of {before.size} leaves", proof)


def _parse(proof: bytes, origin: str, key: bytes) -> _Parsed:
    if len(proof) > MAXIMUM_PROOF:
        raise MalformedError(f"a proof of {len(proof)} bytes exceeds the limit of {MAXIMUM_PROOF}")
    parts = read_object(parse_canonical(proof), {"head", "leaves", "asked", "consistency"})
    note = read_text(parts["head"])
    head = open_head(note, origin, key)
    # It is kept and exported as it came: what else stands in it would be laid to whoever kept it.
    check_alone(note, head)
    leaves = read_leaves(parts["leaves"], head)
    asked = tuple(read_number(item) for item in read_list(parts["asked"], MAXIMUM_ASKED))
    if asked != asked_sizes(asked):
        raise MalformedError("the sizes asked for are in order, each once")
    paths = {}
    for item in read_list(parts["consistency"], MAXIMUM_SIZES):
        entry = read_object(item, {"size", "path"})
        paths[read_number(entry["size"])] = read_path(entry["path"])
    return _Parsed(head, leaves, asked, paths)
