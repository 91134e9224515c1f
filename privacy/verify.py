"""The auditor's checks of one ledger, pure: every fact comes in as an argument and is trusted only as far as said.

The epsilon is recomputed from the RESERVE events alone, whatever the leaves claim. What no log can prove is that the
noise was drawn at all (design section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from privacy.account import Account, Job, over_caps
from privacy.accounting import Epsilon, epsilon, epsilon_alone
from privacy.checks import Check, PlanTerms
from privacy.errors import LedgerCorrupt, MalformedError
from privacy.events import Event, covers
from privacy.handover import Successor
from privacy.history import Place, Published, check_caps_history, check_datasets, check_models, check_published
from privacy.leaves import Key, Leaf, Plan, Record, Reserve
from privacy.merkle import Tree
from privacy.note import Head, InvalidNoteError, open_head
from privacy.proofs import check_alone
from privacy.succession import Charged, answers_for, check_keys, check_recovery, open_any
from privacy.tampering import explain

__all__ = ["Check", "PlanTerms", "UNWITNESSED", "verify_log"]

UNWITNESSED: Final = "no other bundle witnesses this log: that it was cut short or put back would not show"
_NOTHING: Final[Mapping[Place, int]] = {}
_NOWHERE: Final[Mapping[Place, Published]] = {}


def verify_log(
    *,
    origin: str,
    key: bytes,
    leaves: tuple[bytes, ...],
    head: bytes,
    plans: Mapping[bytes, PlanTerms],
    witnessed: Mapping[str, bytes],
    elsewhere: Mapping[Place, Published] = _NOWHERE,
    contested: Mapping[Place, int] = _NOTHING,
    former: Sequence[bytes] = (),
    charged: Sequence[Charged] = (),
) -> tuple[Check, ...]:
    """Verify one hospital's ledger.

    Args:
        origin: the log's name, from the roster.
        key: the silo's identity key, from the roster (32 bytes); signs the head.
        leaves: bytes of all leaves, as exported.
        head: the exported signed note.
        plans: by plan hash, the terms of plans whose signature has been verified.
        witnessed: by witness, the newest head of the silo's log which that peer holds (signed notes).
        elsewhere: what most of the ledgers at hand say was published.
        contested: rounds of which they say different things without a majority, and how many.
        former: identity keys that rosters gave to the silo before `key` (32 bytes each).
        charged: what others can prove that logs under those keys charged.

    Returns:
        All results in order; the checks of leaves are left out when leaves cannot be read.
    """
    tree = Tree(leaves)
    said = _readable(leaves)
    own = {key, *(leaf.key for leaf in said if isinstance(leaf, Key | Successor))}
    seen, faults = _open_witnesses(origin, (key, *sorted(own - {key}), *former), witnessed)
    heads = tuple(one for one, signer in seen.values() if signer in own)
    checks = [*_check_tree(origin, key, tree, leaves, head, heads), *faults]
    if not witnessed:
        checks.append(Check("witnesses", True, None, UNWITNESSED, note=True))
    for witness, (one, signer) in seen.items():
        if signer in own:
            checks.append(_check_witness(witness, tree, leaves, one, heads))
        else:
            checks.append(_check_answer(witness, origin, said, one, signer))
    records: list[Record] = []
    for number, body in enumerate(leaves):
        try:
            records.append(Record.decode(body))
        except MalformedError as error:
            return (*checks, Check("leaves", False, number, str(error)))
    checks.append(Check("leaves", True, None, f"{len(leaves)} leaves, all of a known type and canonical"))
    checks.append(check_keys(origin, key, said, tree))
    checks.append(_check_times(records))
    return (
        *checks,
        *check_recovery(origin, said, plans, charged),
        *_check_budget(records, plans),
        *check_datasets(said, plans),
        *check_caps_history(said),
        *check_models(said, plans, elsewhere),
        *check_published(said, elsewhere, contested),
    )


def _check_tree(
    origin: str, key: bytes, tree: Tree, leaves: Sequence[bytes], note: bytes, seen: Sequence[Head]
) -> Iterator[Check]:
    try:
        head = open_head(note, origin, key)
        check_alone(note, head)
    except MalformedError as error:
        yield Check("head", False, None, str(error))
        return
    yield Check("head", True, None, f"signed by the key that the roster gives for {origin}")
    if head.size == tree.size and head.root == tree.root():
        yield Check("tree", True, None, f"the root recomputed from {tree.size} leaves is the signed one")
    else:
        message = f"the signed head covers {head.size} leaves, the bundle holds {tree.size}: "
        yield Check("tree", False, None, message + explain(leaves, head, seen))


def _readable(leaves: Sequence[bytes]) -> list[Leaf]:
    """The leaves up to the first that cannot be read."""
    found: list[Leaf] = []
    for body in leaves:
        try:
            found.append(Record.decode(body).leaf)
        except MalformedError:
            break
    return found


def _open_witnesses(
    origin: str, keys: Sequence[bytes], witnessed: Mapping[str, bytes]
) -> tuple[dict[str, tuple[Head, bytes]], tuple[Check, ...]]:
    """The heads that peers hold, each with the key that signed it, and a failed check for each that is none."""
    seen, faults = {}, []
    for witness, note in sorted(witnessed.items()):
        try:
            seen[witness] = open_any(note, origin, keys)
        except InvalidNoteError:
            faults.append(
                Check("witnesses", False, None, f"the head that {witness} holds was never signed by this silo")
            )
        except MalformedError as error:
            faults.append(Check("witnesses", False, None, f"the head that {witness} holds cannot be read: {error}"))
    return seen, tuple(faults)


def _check_witness(witness: str, tree: Tree, leaves: Sequence[bytes], seen: Head, others: Sequence[Head]) -> Check:
    if seen.size > tree.size:
        message = (
            f"{witness} saw {seen.size} leaves, the bundle holds {tree.size}: an older copy was put back, or the log "
            "was cut short and signed again (which is the same), or the bundle was exported earlier than the other"
        )
        return Check("witnesses", False, None, message)
    if tree.root(seen.size) != seen.root:
        message = (
            f"the first {seen.size} leaves are not those that {witness} saw, the log was rewritten or forked: "
            f"{explain(leaves[: seen.size], seen, others)}"
        )
        return Check("witnesses", False, None, message)
    return Check("witnesses", True, None, f"extends the {seen.size} leaves that {witness} saw")


def _check_answer(witness: str, origin: str, leaves: Sequence[Leaf], seen: Head, key: bytes) -> Check:
    """Of a head that an earlier key signed, which this log never had: a lost log, for which this one must answer."""
    if answers_for(leaves, origin, key, seen):
        return Check("witnesses", True, None, f"answers for the {seen.size} leaves of the lost log that {witness} saw")
    message = (
        f"{witness} saw {seen.size} leaves of a log under the silo's earlier key {key.hex()[:16]}: this log neither "
        "goes on with them nor answers for them, so what they charged is forgotten"
    )
    return Check("witnesses", False, None, message)


def _check_times(records: list[Record]) -> Check:
    for number in range(1, len(records)):
        if records[number].time < records[number - 1].time:
            return Check("times", False, number, "earlier than the leaf before it")
    return Check("times", True, None, "no leaf is earlier than the one before it")


def _check_budget(records: list[Record], plans: Mapping[bytes, PlanTerms]) -> Iterator[Check]:
    account = Account()
    faults: list[Check] = []
    for number, record in enumerate(records):
        leaf = record.leaf
        if isinstance(leaf, Reserve):
            faults += _check_reserve(number, leaf, account, plans.get(leaf.plan))
        try:
            account.apply(number, leaf)
        except LedgerCorrupt as error:
            yield Check("order", False, number, str(error))
            return
        if isinstance(leaf, Plan):
            yield _check_plan(number, leaf, plans.get(leaf.plan))
            yield _check_caps(number, leaf, account)
    message = (
        "rounds rise, each RESERVE has its DATASET, COMMIT its RESERVE, RELEASE or KEEP its COMMIT, and none ends twice"
    )
    yield Check("order", True, None, message)
    yield from faults
    if not faults:
        yield Check("reservations", True, None, "every charged round costs what its signed plan says")
    for plan, job in account.jobs.items():
        yield from _check_epsilon(job, plans.get(plan))
        yield _check_unreleased(job)
    for reservation in account.unresolved:
        message = f"round {reservation.round} of stage {reservation.stage} has no end: counted as spent"
        yield Check("unresolved", True, reservation.leaf, message, note=True)


def _check_plan(number: int, leaf: Plan, terms: PlanTerms | None) -> Check:
    if terms is None:
        return Check("plan", False, number, f"no plan {leaf.plan.hex()[:16]} signed by the operator is in the bundle")
    if (leaf.name, leaf.delta, leaf.events) != (terms.name, terms.delta, terms.events()):
        return Check("plan", False, number, f"job {leaf.name} was entered with terms other than its signed plan's")
    return Check("plan", True, number, f"job {leaf.name} follows a plan signed by the operator")


def _check_reserve(number: int, leaf: Reserve, account: Account, terms: PlanTerms | None) -> Iterator[Check]:
    def fault(message: str) -> Check:
        return Check("reservations", False, number, message)

    where = f"round {leaf.round} of stage {leaf.stage}"
    stage = terms.stages.get(leaf.stage) if terms else None
    if stage is None:
        yield fault(f"{where} is in no signed plan")
    elif leaf.event != stage.event:
        yield fault(f"{where} is charged with an event that is not the signed plan's")
    elif not stage.first <= leaf.round < stage.first + stage.rounds:
        yield fault(f"{where} is none of the {stage.rounds} rounds of that stage, which begin with {stage.first}")
    if account.unresolved:
        yield fault(f"{where} was charged while round {account.unresolved[0].round} was unresolved")


def _check_caps(number: int, leaf: Plan, account: Account) -> Check:
    caps, life = leaf.caps, account.life()
    excess = over_caps(leaf, life, caps)
    if excess is not None:
        what, value, cap = excess
        return Check("caps", False, number, f"the {what} is {value:.6g}, above the hospital's cap of {cap:.6g}")
    message = (
        f"job {leaf.name}: epsilon {leaf.epsilon:.6g} of {caps.job_epsilon:.6g}, delta {leaf.delta:.3g} of "
        f"{caps.job_delta:.3g}; for life epsilon {life.epsilon:.6g} of {caps.life_epsilon:.6g}, delta {life.delta:.3g} "
        f"of {caps.life_delta:.3g}"
    )
    return Check("caps", True, number, message)


def _check_epsilon(job: Job, signed: PlanTerms | None) -> Iterator[Check]:
    terms, spent = job.terms, job.events()
    if not covers(terms.events, spent):
        yield Check("epsilon", False, job.leaf, f"job {terms.name} was charged more rounds than it had entered")
        return
    if signed is None or signed.events() != terms.events:
        # Failed as "plan" already; and events that no operator signed could be chosen to keep an auditor busy.
        yield Check("epsilon", False, job.leaf, f"job {terms.name}: nothing to recompute without its signed plan")
        return
    claims: tuple[tuple[str, float, Callable[[tuple[Event, ...], float], Epsilon]], ...] = (
        ("with secure aggregation", terms.epsilon, epsilon),
        ("without it", terms.epsilon_alone, epsilon_alone),
    )
    for how, claimed, recompute in claims:
        try:
            whole, now = recompute(terms.events, terms.delta), recompute(spent, terms.delta)
        except (ValueError, ArithmeticError) as error:
            yield Check("epsilon", False, job.leaf, f"job {terms.name}, {how}: cannot be recomputed ({error})")
            continue
        passed = claimed >= max(whole.pld, now.pld)
        message = (
            f"job {terms.name}, {how}: {len(spent)} rounds spent {now.pld:.6f} (RDP {now.rdp:.6f}), the whole job "
            f"{whole.pld:.6f} (RDP {whole.rdp:.6f}), claimed {claimed:.6f} at delta {terms.delta:.3g}"
        )
        yield Check("epsilon", passed, job.leaf, message if passed else f"{message}: the claim is too low")


def _check_unreleased(job: Job) -> Check:
    count, limit = job.unreleased(), job.terms.caps.rounds_without_release
    message = f"job {job.terms.name}: {count} rounds charged without a release, of at most {limit}"
    return Check("unreleased", count <= limit, job.leaf, message)
