"""Which key signs a log at which size, and what a log that replaces a lost one must answer for.

A key takes a log over by a SUCCESSOR leaf that the key before signed too. A log under a key that nobody handed over
needs a RECOVERED leaf for the one it replaces, or it is a hospital that forgets what it spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from privacy.accounting import epsilon, epsilon_alone
from privacy.checks import Check, PlanTerms
from privacy.errors import MalformedError
from privacy.events import Event
from privacy.handover import Carry, Recovered, Successor, check_successor
from privacy.leaves import Dataset, Key, Leaf, Plan
from privacy.note import Head, open_head

_TOLERANCE: Final = 1e-4
"""By how much of itself, and 1e-6, a carried epsilon may be less than what is computed here.

The figure follows from events that are compared exactly, on a machine, or by a version of the accountant, that may
round or discretise otherwise; and a log can only grow, so that a refusal would be for good. What an understatement can
gain by it is a ten-thousandth of one job, in a figure that a silo's own caps count.
"""


class Roots(Protocol):
    """A Merkle tree that knows the roots of its beginnings."""

    def root(self, size: int) -> bytes:
        """Root of the first `size` leaves."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """`key` (32 bytes) signs the heads of more than `first` leaves, until the next tenure."""

    key: bytes
    first: int


@dataclass(frozen=True, slots=True)
class Charged:
    """Proof that a log signed by `key` charged rounds of `plan`; `shown_by` says in words who holds it."""

    key: bytes
    plan: bytes
    shown_by: str


@dataclass(frozen=True, slots=True)
class Owed:
    """A job that somebody saw charged in a log, and what its signed plan says that it costs."""

    plan: bytes
    name: str
    delta: float
    epsilon: float
    epsilon_alone: float
    events: tuple[Event, ...]
    patient: str


def understates(leaves: Iterable[Leaf], owed: Iterable[Owed]) -> str:
    """What the CARRY leaves of a new log understate of the jobs that the lost one was seen to charge, or nothing.

    Name, delta, events and patient column, from which the cost follows, are the signed plan's to the letter. Epsilon is
    compared with a tolerance (`_TOLERANCE`).
    """
    carried = {leaf.plan: leaf for leaf in leaves if isinstance(leaf, Carry)}
    for job in owed:
        leaf = carried.get(job.plan)
        if leaf is None:
            return f"does not show that it carries job {job.name}, which was seen charged"
        if (leaf.name, leaf.delta, leaf.events, leaf.patient) != (job.name, job.delta, job.events, job.patient):
            return f"carries job {job.name} on other terms than its signed plan's"
        if _below(leaf.epsilon, job.epsilon) or _below(leaf.epsilon_alone, job.epsilon_alone):
            return f"carries job {job.name} at epsilon {leaf.epsilon:.6f}, of the {job.epsilon:.6f} that it costs"
    return ""


def _below(carried: float, cost: float) -> bool:
    # Written so that NaN is below everything.
    return not carried >= cost * (1 - _TOLERANCE) - 1e-6


def tenures(origin: str, leaves: Sequence[Leaf], tree: Roots | None = None) -> tuple[Tenure, ...]:
    """Who signs from where on.

    Args:
        origin: the log's name.
        leaves: all of them.
        tree: of the leaves' bytes, to check that a key was handed over together with all that was before it.

    Raises:
        MalformedError: the log begins without its name and a key, or a handover is not signed by both keys.
    """
    if not leaves or not isinstance(leaves[0], Key) or leaves[0].origin != origin:
        raise MalformedError(f"the log does not begin with the name and a key of {origin}")
    found = [Tenure(leaves[0].key, 0)]
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Successor):
            continue
        check_successor(leaf, origin, number)
        if leaf.old != found[-1].key:
            raise MalformedError(f"leaf {number} hands over from a key that the log did not have")
        if tree is not None and tree.root(number) != leaf.root:
            raise MalformedError(f"leaf {number} hands over other leaves than stand before it")
        found.append(Tenure(leaf.key, number))
    return tuple(found)


def key_at(found: Sequence[Tenure], size: int) -> bytes:
    """The key that signs the head of `size` leaves (at least 1)."""
    return next(tenure.key for tenure in reversed(found) if tenure.first < size)


def links(leaves: Iterable[tuple[int, Leaf]], origin: str, old: bytes, key: bytes) -> bool:
    """Whether SUCCESSOR leaves, which some tree is known to hold at these numbers, lead from `old` to `key`.

    Raises:
        MalformedError: one that would lead there lacks a signature.
    """
    now = old
    for number, leaf in sorted(leaves, key=lambda entry: entry[0]):
        if isinstance(leaf, Successor) and leaf.old == now:
            check_successor(leaf, origin, number)
            now = leaf.key
    return now == key


def answers_for(leaves: Iterable[Leaf], origin: str, key: bytes, head: Head) -> bool:
    """Whether RECOVERED leaves answer for `head`, which `key` signed and somebody witnessed.

    One of the same size must name the same root: otherwise the lost log had forked.
    """
    for leaf in leaves:
        if not isinstance(leaf, Recovered) or leaf.key != key or leaf.size < head.size:
            continue
        try:
            leaf.head(origin)
        except MalformedError:
            continue
        if leaf.size > head.size or leaf.root == head.root:
            return True
    return False


def open_any(note: bytes, origin: str, keys: Iterable[bytes]) -> tuple[Head, bytes]:
    """A head and which of `keys` signed it.

    Raises:
        MalformedError: none of them did.
    """
    error: MalformedError | None = None
    for key in keys:
        try:
            return open_head(note, origin, key), key
        except MalformedError as caught:
            error = error or caught
    raise error or MalformedError("no key is known that could have signed this")


def check_keys(origin: str, key: bytes, leaves: Sequence[Leaf], tree: Roots) -> Check:
    """Whether the log begins with its name and a key, and each key handed it to the next one up to `key`."""
    try:
        found = tenures(origin, leaves, tree)
    except MalformedError as error:
        return Check("key", False, 0, str(error))
    if found[-1].key != key:
        return Check("key", False, found[-1].first, "the log is not under the key that the roster gives")
    if len(found) == 1:
        return Check("key", True, 0, "the log begins with its own name and key")
    message = (
        f"the log begins with its own name and key; {len(found) - 1} times a key handed it to the next, both signed"
    )
    return Check("key", True, found[-1].first, message)


def check_recovery(
    origin: str, leaves: Sequence[Leaf], plans: Mapping[bytes, PlanTerms], charged: Iterable[Charged]
) -> Iterator[Check]:
    """What a log that replaces a lost one must show: the lost log's signed head, and all of its jobs in full.

    Args:
        origin: the log's name.
        leaves: of the new log.
        plans: terms of verified plans.
        charged: what others can prove that logs under earlier keys charged.
    """
    first, carried = None, 0
    faults: list[Check] = []
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, Recovered):
            first = number if first is None else first
            faults += _recovered(origin, number, leaf)
        elif isinstance(leaf, Carry):
            carried += 1
            if first is None:
                faults.append(Check("recovery", False, number, f"job {leaf.name} is carried, but no log was lost"))
            faults += _carried(number, leaf, plans.get(leaf.plan), leaves)
    own = _keys(leaves)
    known = {leaf.plan for leaf in leaves if isinstance(leaf, Plan | Carry)}
    missing = {one.plan: one for one in charged if one.key not in own and one.plan not in known}
    for one in missing.values():
        name = plans[one.plan].name if one.plan in plans else one.plan.hex()[:16]
        message = f"job {name}, which {one.shown_by} shows to have been charged in a lost log, is not carried here"
        faults.append(Check("recovery", False, first, message))
    yield from faults
    if first is not None and not faults:
        losses = [leaf for leaf in leaves if isinstance(leaf, Recovered)]
        sizes = ", ".join(f"{leaf.size} leaves under key {leaf.key.hex()[:16]}" for leaf in losses)
        total = sum(leaf.epsilon for leaf in leaves if isinstance(leaf, Carry))
        message = (
            f"this log answers for a lost one ({sizes}); {carried} jobs of it are charged in full, epsilon {total:.6g}"
        )
        absent = sorted({name for leaf in losses for name in leaf.without})
        if absent:
            message += f"; the exports of {', '.join(absent)} were not there to show more"
        yield Check("recovery", True, first, message, note=True)


def _recovered(origin: str, number: int, leaf: Recovered) -> Iterator[Check]:
    try:
        leaf.head(origin)
    except MalformedError as error:
        yield Check("recovery", False, number, f"the head of the lost log proves nothing: {error}")


def _carried(number: int, leaf: Carry, terms: PlanTerms | None, leaves: Sequence[Leaf]) -> Iterator[Check]:
    def fault(message: str) -> Check:
        return Check("recovery", False, number, f"job {leaf.name}: {message}")

    if terms is None:
        yield fault("no plan signed by the operator in the bundle says what it cost")
        return
    if (leaf.name, leaf.delta, leaf.events, leaf.patient) != (
        terms.name,
        terms.delta,
        terms.events(),
        terms.patient,
    ):
        yield fault("carried with terms other than its signed plan's")
        return
    fixed = next((one for one in leaves if isinstance(one, Dataset | Carry)), leaf)
    if fixed.patient != leaf.patient:
        yield fault(f"its patients were told apart by the column {leaf.patient}, here it is {fixed.patient}")
    if fixed.public_size != leaf.public_size:
        yield fault(f"its public size was {leaf.public_size}, here it is {fixed.public_size}: it is fixed for life")
    try:
        floor = epsilon(terms.events(), leaf.delta).pld, epsilon_alone(terms.events(), leaf.delta).pld
    except (ValueError, ArithmeticError) as error:
        yield fault(f"cannot be recomputed ({error})")
        return
    if _below(leaf.epsilon, floor[0]) or _below(leaf.epsilon_alone, floor[1]):
        yield fault(f"carried at epsilon {leaf.epsilon:.6f}, recomputed {floor[0]:.6f}: the claim is too low")


def _keys(leaves: Sequence[Leaf]) -> frozenset[bytes]:
    return frozenset(leaf.key for leaf in leaves if isinstance(leaf, Key | Successor))
