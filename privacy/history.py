"""Checks that follow a ledger through time: whose records were read, how the caps moved, which model led to which."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from privacy.checks import Check, PlanTerms
from privacy.handover import Carry
from privacy.leaves import Abort, AbortReason, Dataset, Leaf, Plan, Release, Reserve
from privacy.rounds import LOCAL_STAGE

Place = tuple[bytes, int, int]
_Number = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Published:
    """Hashes of a round's sum and of the model that it led to, as ledgers give them."""

    sum: bytes
    model: bytes


def published(leaves: Iterable[Leaf]) -> dict[Place, Published]:
    """What one ledger says was published, by (plan, stage, round)."""
    return {
        (leaf.plan, leaf.stage, leaf.round): Published(leaf.sum, leaf.model)
        for leaf in leaves
        if isinstance(leaf, Release)
    }


def check_datasets(leaves: Sequence[Leaf], plans: Mapping[bytes, PlanTerms]) -> Iterator[Check]:
    """Whether every reading told patients apart as the signed plan says, and by one column all the ledger's life, and
    that of a lost ledger that it answers for."""
    first: Dataset | Carry | None = next((leaf for leaf in leaves if isinstance(leaf, Carry)), None)
    faults = 0
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Dataset):
            continue
        first = first or leaf
        for problem in _dataset_problems(leaf, first, plans.get(leaf.plan)):
            faults += 1
            yield Check("patients", False, number, problem)
    if not any(isinstance(leaf, Dataset) for leaf in leaves):
        yield Check("patients", True, None, "no records were read yet", note=True)
    elif not faults and first is not None:
        message = f"the patient is what the column {first.patient} says, about {first.public_size} of them, throughout"
        yield Check("patients", True, None, message)


def _dataset_problems(leaf: Dataset, first: Dataset | Carry, terms: PlanTerms | None) -> Iterator[str]:
    if leaf.patient != first.patient:
        yield (
            f"the patient column changed from {first.patient} to {leaf.patient}: the epsilons of this ledger are not "
            "about the same patients"
        )
    if leaf.public_size != first.public_size:
        yield f"the public size changed from {first.public_size} to {leaf.public_size}: it is fixed for life"
    if terms is not None and leaf.patient != terms.patient:
        yield f"the patient column was {leaf.patient}, the signed plan says {terms.patient}"
    if terms is not None and leaf.schema != terms.schema:
        yield "the records were read by another schema than the signed plan's"


def check_caps_history(leaves: Sequence[Leaf]) -> Iterator[Check]:
    """A note wherever a job was accepted under other caps than the job before it."""
    before: Plan | None = None
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Plan):
            continue
        if before is not None and before.caps != leaf.caps:
            old, new = dataclasses.asdict(before.caps), dataclasses.asdict(leaf.caps)
            moved = ", ".join(
                f"{name} {'raised' if new[name] > old[name] else 'lowered'} from {old[name]:g} to {new[name]:g}"
                for name in old
                if new[name] != old[name]
            )
            yield Check("caps history", True, number, f"the hospital changed its caps: {moved}", note=True)
        before = leaf


def check_models(
    leaves: Sequence[Leaf], plans: Mapping[bytes, PlanTerms], elsewhere: Mapping[Place, Published]
) -> Iterator[Check]:
    """Whether every charged round starts from the model to which the round before it led.

    That model is the plan's initial one, what this ledger's RELEASE says, what other ledgers say of a round that ended
    here otherwise, or that of a lost round's own RESERVE. The last is a note where it fails: silos' acks can bring a
    round back that was declared lost, and only the others' ledgers show it.

    Args:
        leaves: of the ledger.
        plans: terms of verified plans.
        elsewhere: what other ledgers agree was published.
    """
    after: dict[_Number, bytes] = {(plan, 0): terms.initial for plan, terms in plans.items()}
    for known in (elsewhere, published(leaves)):
        after.update({(plan, number): one.model for (plan, _, number), one in known.items()})
    starts: dict[_Number, bytes] = {}
    lost: dict[_Number, bytes] = {}
    charged = derived = faults = 0
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, Abort) and leaf.reason is AbortReason.LOST and leaf.stage != LOCAL_STAGE:
            lost[leaf.plan, leaf.round] = starts.get((leaf.plan, leaf.round), b"")
        if not isinstance(leaf, Reserve):
            continue
        charged += 1
        starts[leaf.plan, leaf.round] = leaf.model
        before = (leaf.plan, leaf.round - 1)
        where, expected = f"round {leaf.round} of stage {leaf.stage}", after.get(before)
        if expected is None and before in lost:
            derived += leaf.model == lost[before]
            if leaf.model != lost[before]:
                message = f"{where} does not start from the model before the lost round {leaf.round - 1}"
                yield Check("models", True, number, message, note=True)
        elif expected is not None:
            derived += 1
            if leaf.model != expected:
                faults += 1
                yield Check("models", False, number, f"{where} starts from another model than the round before led to")
    if not faults:
        message = f"{derived} of {charged} rounds start from the model to which the round before led"
        if derived < charged:
            message += "; for the others no ledger here says which that was"
        yield Check("models", True, None, message)


def check_published(
    leaves: Sequence[Leaf], elsewhere: Mapping[Place, Published], contested: Mapping[Place, int]
) -> Iterator[Check]:
    """Whether this ledger's RELEASE leaves say what the other ledgers say.

    Args:
        leaves: of the ledger.
        elsewhere: what most ledgers say of a round.
        contested: rounds of which they say different things without a majority, and how many different ones.
    """
    faults = compared = 0
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Release):
            continue
        place = (leaf.plan, leaf.stage, leaf.round)
        where = f"round {leaf.round} of stage {leaf.stage}"
        if place in contested:
            faults += 1
            message = f"the ledgers give {contested[place]} different sums or models for {where}"
            yield Check("published", False, number, message)
        elif place in elsewhere:
            compared += 1
            if elsewhere[place] != Published(leaf.sum, leaf.model):
                faults += 1
                message = f"{where} led to another sum or model than most ledgers say"
                yield Check("published", False, number, message)
    if compared and not faults:
        yield Check("published", True, None, f"{compared} rounds led to the sums and models that other ledgers give")
