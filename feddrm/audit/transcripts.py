"""The coordinator's transcripts, held against the hospitals' ledgers.

The coordinator's word counts for nothing by itself: a published sum counts because as many hospitals as the plan
demands signed it. Only such acknowledgements speak against a ledger, and what a hospital acknowledged it must have
charged. What rests on the round key alone, or does not hold at all, speaks against nobody but the coordinator: a lost
round that ledgers hold as released is a fault of the transcript.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from feddrm.contract import labels
from feddrm.contract.errors import FeddrmError, InputError, MalformedError
from feddrm.contract.files import read_bounded
from feddrm.contract.kit import FederationRoot
from feddrm.contract.operator_messages import NoiseFound
from feddrm.contract.roster import Roster, verify_roster
from feddrm.contract.rounds import Ack, verify_outcome
from feddrm.contract.signed import signers
from feddrm.contract.signed_plan import verify_plan
from feddrm.contract.transcript import MAXIMUM_TRANSCRIPT, JobRecord, read_transcript
from feddrm.method.noise_meter import noise_words
from privacy.checks import Check
from privacy.handover import Carry
from privacy.history import Place, Published
from privacy.leaves import Abort, AbortReason, Commit, Leaf, Release


@dataclass(slots=True)
class Transcript:
    """One file: how many rounds in it are acknowledged, which it declares lost (by plan and number, with the job's
    name), and in words what could not be believed."""

    path: Path
    acknowledged: int = 0
    lost: dict[tuple[bytes, int], str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    noise: list[tuple[str, NoiseFound]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Twice:
    """Two files, in which a round has two results; and the hospitals that signed both, as each has more than half."""

    first: Path
    second: Path
    both: tuple[str, ...]


@dataclass(slots=True)
class Testimony:
    """What transcripts prove together: published rounds with the keys that acknowledged each, and how far each job
    goes; and every file by itself. Rounds with enough acknowledgements of two results are in `twice` and speak against
    no ledger."""

    published: dict[Place, tuple[Published, frozenset[bytes]]] = field(default_factory=dict)
    twice: dict[Place, Twice] = field(default_factory=dict)
    sources: dict[Place, Path] = field(default_factory=dict)
    rounds: dict[bytes, int] = field(default_factory=dict)
    files: list[Transcript] = field(default_factory=list)

    def lost(self, plan: bytes, number: int) -> bool:
        """Whether a transcript declares a round lost."""
        return any((plan, number) in one.lost for one in self.files)


def hear(anchor: FederationRoot, paths: Sequence[Path], rosters: Sequence[Roster]) -> Testimony:
    """Read transcripts and believe what signatures carry.

    Args:
        rosters: signed by the operator; their round keys may have signed a transcript.

    Raises:
        InputError: a file is no transcript.
    """
    heard = Testimony()
    for path in paths:
        file = Transcript(path)
        heard.files.append(file)
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
            file.faults.append(error.message)
            continue
        for record in records:
            _hear(anchor, file, record, heard)
    return heard


def _hear(anchor: FederationRoot, file: Transcript, record: JobRecord, heard: Testimony) -> None:
    try:
        plan = verify_plan(record.plan, federation=anchor.federation, operator=anchor.operator)
        roster = verify_roster(record.roster, federation=anchor.federation, operator=anchor.operator)
    except FeddrmError as error:
        file.faults.append(error.message)
        return
    if record.noise is not None:
        file.noise.append((plan.plan.name, record.noise))
    heard.rounds[plan.hash] = max(heard.rounds.get(plan.hash, 0), len(record.outcomes))
    for number, outcome in enumerate(record.outcomes, start=1):
        try:
            said = verify_outcome(outcome, plan.plan, roster, plan_hash=plan.hash)
        except FeddrmError as error:
            file.faults.append(f"round {number} of {plan.plan.name}: {error.message}")
            continue
        if said.round != number:
            file.faults.append(f"round {said.round} of {plan.plan.name} stands in the place of {number}")
        elif isinstance(said, Ack):
            keys = frozenset(key for ack in outcome.acks for key in signers(ack, labels.ROUND_ACK))
            _acknowledge(file, heard, (plan.hash, said.stage, number), Published(said.sum, said.model), keys, roster)
            file.acknowledged += 1
        else:
            file.lost[plan.hash, number] = plan.plan.name


def _acknowledge(
    file: Transcript, heard: Testimony, place: Place, result: Published, keys: frozenset[bytes], roster: Roster
) -> None:
    before = heard.published.get(place)
    if before is None:
        heard.published[place], heard.sources[place] = (result, keys), file.path
    elif before[0] == result:
        heard.published[place] = result, before[1] | keys
    else:
        # More than half of the hospitals signed each, so that some signed both.
        both = sorted(silo.name for silo in roster.silos if silo.identity in before[1] & keys)
        heard.twice[place] = Twice(heard.sources[place], file.path, tuple(both))
        heard.published[place] = before[0], before[1] | keys


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
        if place in heard.twice:
            message = f"{where} was acknowledged with two results: see the coordinator's transcripts"
            yield Check("transcript", True, number, message, note=True)
        elif place in heard.published:
            compared += 1
            if heard.published[place][0] != Published(leaf.sum, leaf.model):
                faults += 1
                message = f"{where} led to another sum or model than the hospitals acknowledged to the coordinator"
                yield Check("transcript", False, number, message)
        elif heard.lost(leaf.plan, leaf.round):
            message = f"{where} is lost by the coordinator's word, which proves nothing: see its transcript"
            yield Check("transcript", True, number, message, note=True)
        elif leaf.round > heard.rounds.get(leaf.plan, leaf.round):
            beyond += 1
    # A ledger that answers for a lost one charges the job in full, and has none of its rounds.
    carried = {leaf.plan for leaf in leaves if isinstance(leaf, Carry)}
    committed = {(leaf.plan, leaf.stage, leaf.round) for leaf in leaves if isinstance(leaf, Commit)}
    for place, (_, acknowledged) in heard.published.items():
        if acknowledged & set(keys) and place not in committed and place[0] not in carried:
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


def check_file(file: Transcript, heard: Testimony, ledgers: Mapping[str, Sequence[Leaf]]) -> Iterator[Check]:
    """What speaks against a transcript itself: what does not hold in it, and rounds that it declares lost although
    hospitals acknowledged them or their ledgers hold them as released.

    An agent writes RELEASE only for a round that it saw acknowledged, so among honest hospitals no honest transcript
    declares such a round lost.

    Args:
        ledgers: leaves under a head that the hospital signed, by its name.
    """
    for fault in file.faults:
        yield Check("transcript", False, None, fault)
    twice = [(place, one) for place, one in heard.twice.items() if file.path in (one.first, one.second)]
    for (_, stage, number), one in twice:
        message = (
            f"round {number} of stage {stage} has enough acknowledgements of two different results, in"
            f" {one.first} and in {one.second}; {', '.join(one.both)} signed both"
        )
        yield Check("transcript", False, None, message)
    for job, found in file.noise:
        yield Check("noise", not found.short, None, f"{job}, as the coordinator measured it: {noise_words(found)}")
    acknowledged = {(plan, number) for plan, _, number in heard.published}
    released, lost = _ends(ledgers)
    contradicted = 0
    for place, job in file.lost.items():
        where = f"round {place[1]} of {job} is declared lost, on the coordinator's word alone"
        if place in acknowledged:
            message = f"{where}; as many hospitals acknowledged it as the plan demands"
        elif place in released:
            message = f"{where}; {_against(released[place], lost[place] - set(released[place]))}"
        else:
            continue
        contradicted += 1
        yield Check("transcript", False, None, message)
    if not file.faults and not contradicted and not twice:
        message = f"{file.acknowledged} rounds are acknowledged by as many hospitals as their plan demands"
        if file.lost:
            message += f"; {len(file.lost)} are lost by the coordinator's word, which no ledger here contradicts"
        yield Check("transcript", True, None, message)


_Number = tuple[bytes, int]


def _ends(
    ledgers: Mapping[str, Sequence[Leaf]],
) -> tuple[Mapping[_Number, Mapping[str, Published]], Mapping[_Number, set[str]]]:
    """By which ledgers each round was released, with what result, and by which it was lost."""
    released: defaultdict[_Number, dict[str, Published]] = defaultdict(dict)
    lost: defaultdict[_Number, set[str]] = defaultdict(set)
    for silo, leaves in ledgers.items():
        for leaf in leaves:
            if isinstance(leaf, Release):
                released[leaf.plan, leaf.round][silo] = Published(leaf.sum, leaf.model)
            elif isinstance(leaf, Abort) and leaf.reason is AbortReason.LOST:
                lost[leaf.plan, leaf.round].add(silo)
    return released, lost


def _against(released: Mapping[str, Published], lost: set[str]) -> str:
    said = f"released by the ledger{'s' if len(released) > 1 else ''} of {', '.join(sorted(released))}"
    if len(set(released.values())) > 1:
        said += ", which give different sums or models"
    elif len(released) > 1:
        said += ", which agree on its sum and model"
    if lost:
        said += f"; lost by the ledger{'s' if len(lost) > 1 else ''} of {', '.join(sorted(lost))}"
    if lost or len(released) == 1:
        said += "; no acknowledgement here decides between them"
    return said
