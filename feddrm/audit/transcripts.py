"""The coordinator's transcripts, held against the hospitals' ledgers.

The coordinator's word counts for nothing by itself: a published sum counts because as many hospitals as the plan
demands signed it, and only a lost round rests on the round key. What a hospital acknowledged it must have charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from feddrm.contract import labels
from feddrm.contract.errors import FeddrmError, InputError, MalformedError
from feddrm.contract.files import read_bounded
from feddrm.contract.kit import FederationRoot
from feddrm.contract.roster import Roster, verify_roster
from feddrm.contract.rounds import Ack, verify_outcome
from feddrm.contract.signed import signers
from feddrm.contract.signed_plan import verify_plan
from feddrm.contract.transcript import MAXIMUM_TRANSCRIPT, JobRecord, read_transcript
from privacy.checks import Check
from privacy.history import Place, Published
from privacy.leaves import Commit, Leaf, Release


@dataclass(slots=True)
class Testimony:
    """What transcripts prove: published rounds with the keys that acknowledged each, rounds declared lost, how far each
    job goes, and in words what could not be believed."""

    published: dict[Place, tuple[Published, frozenset[bytes]]] = field(default_factory=dict)
    lost: set[tuple[bytes, int]] = field(default_factory=set)
    rounds: dict[bytes, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def hear(anchor: FederationRoot, paths: Sequence[Path], rosters: Sequence[Roster]) -> Testimony:
    """Read transcripts and believe what signatures carry.

    Args:
        rosters: signed by the operator; their round keys may have signed a transcript.

    Raises:
        InputError: a file is no transcript.
    """
    heard = Testimony()
    for path in paths:
        keys = [roster.round_key for roster in rosters]
        try:
            records = read_transcript(
                read_bounded(path, limit=MAXIMUM_TRANSCRIPT), federation=anchor.federation, keys=keys
            )
        except MalformedError as error:
            raise InputError(
                f"{path} is not a transcript: {error.message}", remedy="feddrm-aggregator transcript makes them."
            ) from error
        except FeddrmError as error:
            heard.faults.append(f"{path.name}: {error.message}")
            continue
        for record in records:
            _hear(anchor, path, record, heard)
    return heard


def _hear(anchor: FederationRoot, path: Path, record: JobRecord, heard: Testimony) -> None:
    try:
        plan = verify_plan(record.plan, federation=anchor.federation, operator=anchor.operator)
        roster = verify_roster(record.roster, federation=anchor.federation, operator=anchor.operator)
    except FeddrmError as error:
        heard.faults.append(f"{path.name}: {error.message}")
        return
    heard.rounds[plan.hash] = max(heard.rounds.get(plan.hash, 0), len(record.outcomes))
    for number, outcome in enumerate(record.outcomes, start=1):
        try:
            said = verify_outcome(outcome, plan.plan, roster, plan_hash=plan.hash)
        except FeddrmError as error:
            heard.faults.append(f"{path.name}: round {number} of {plan.plan.name}: {error.message}")
            continue
        if said.round != number:
            heard.faults.append(f"{path.name}: round {said.round} of {plan.plan.name} stands in the place of {number}")
        elif isinstance(said, Ack):
            keys = frozenset(key for ack in outcome.acks for key in signers(ack, labels.ROUND_ACK))
            heard.published[plan.hash, said.stage, number] = Published(said.sum, said.model), keys
        else:
            heard.lost.add((plan.hash, number))


def check_transcript(leaves: Sequence[Leaf], keys: Sequence[bytes], heard: Testimony) -> Iterator[Check]:
    """Whether a ledger's RELEASE leaves are what the hospitals acknowledged, and whether it charged what its own
    hospital acknowledged.

    Args:
        leaves: of the ledger.
        keys: all identity keys that its hospital ever had (32 bytes each).
    """
    faults = compared = beyond = 0
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Release):
            continue
        place = (leaf.plan, leaf.stage, leaf.round)
        where = f"round {leaf.round} of stage {leaf.stage}"
        if place in heard.published:
            compared += 1
            if heard.published[place][0] != Published(leaf.sum, leaf.model):
                faults += 1
                message = f"{where} led to another sum or model than the hospitals acknowledged to the coordinator"
                yield Check("transcript", False, number, message)
        elif (leaf.plan, leaf.round) in heard.lost:
            faults += 1
            yield Check("transcript", False, number, f"{where} was declared lost, and no hospital's ack says otherwise")
        elif leaf.round > heard.rounds.get(leaf.plan, leaf.round):
            beyond += 1
    committed = {(leaf.plan, leaf.stage, leaf.round) for leaf in leaves if isinstance(leaf, Commit)}
    for place, (_, acknowledged) in heard.published.items():
        if acknowledged & set(keys) and place not in committed:
            faults += 1
            message = (
                f"this hospital acknowledged the sum of round {place[2]} of stage {place[1]}, which the ledger does not"
                " charge: an older export, or the round went uncharged"
            )
            yield Check("transcript", False, None, message)
    if beyond:
        message = f"{beyond} RELEASE leaves are of rounds after the transcript's last"
        yield Check("transcript", True, None, message, note=True)
    if compared and not faults:
        message = f"{compared} RELEASE leaves are what the hospitals acknowledged, by the coordinator's transcript"
        yield Check("transcript", True, None, message)
