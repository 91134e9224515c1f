"""The auditor's judgement of bundles: which keys and plans may be believed, and what follows for each ledger.

Everything is believed on the word of one key only, the operator's, which comes from the federation's root and not
from a bundle. A hospital's identity key comes from the roster that the operator signed; a plan counts if the
operator signed it; a witnessed head counts if the hospital itself signed it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from feddrm.audit.documents import check_documents
from feddrm.audit.exhibit import Exhibit
from feddrm.audit.heads import charged_by, check_held, only_itself, witnesses_of
from feddrm.audit.sightings import check_sightings
from feddrm.audit.transcripts import Testimony, check_file, check_transcript, hear
from feddrm.contract.charge import charge, round_event
from feddrm.contract.errors import FeddrmError, VerificationError
from feddrm.contract.kit import FederationRoot
from feddrm.contract.release import schema_hash
from feddrm.contract.roster import Roster, verify_roster
from feddrm.contract.schedule import NAMES, rounds_of
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan, verify_plan
from feddrm.method.layout import layout_of
from feddrm.method.progress import initial_state
from feddrm.method.update import model_hash
from privacy.account import LifeSpend
from privacy.checks import StageTerms
from privacy.errors import MalformedError
from privacy.history import Place, Published, published
from privacy.leaves import Leaf, Record
from privacy.merkle import Tree
from privacy.note import open_head
from privacy.succession import open_any
from privacy.summary import JobSummary, summarise
from privacy.verify import UNWITNESSED, Check, PlanTerms, verify_log

# After these failures there is nothing that could be summed up.
_NO_FIGURES: Final = frozenset({"leaves", "order", "plan", "reservations"})

Plans = dict[bytes, PlanTerms]


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of one ledger, and its figures where its leaves follow signed plans. Figures of a ledger that is not
    verified are the hospital's word only."""

    exhibit: Exhibit
    checks: tuple[Check, ...]
    jobs: tuple[JobSummary, ...]
    life: LifeSpend | None

    @property
    def verified(self) -> bool:
        """Whether nothing failed."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True, slots=True)
class TranscriptVerdict:
    """All checks of one file of the coordinator's. What fails here speaks against no hospital."""

    path: Path
    checks: tuple[Check, ...]

    @property
    def verified(self) -> bool:
        """Whether nothing failed."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdicts of the hospitals' ledgers and of the coordinator's transcripts, each in the order given."""

    ledgers: tuple[Verdict, ...]
    transcripts: tuple[TranscriptVerdict, ...]

    @property
    def verified(self) -> bool:
        """Whether nothing failed anywhere."""
        return all(one.verified for one in self.ledgers) and all(one.verified for one in self.transcripts)


def judge(anchor: FederationRoot, exhibits: Sequence[Exhibit], transcripts: Sequence[Path] = ()) -> Judgement:
    """Verify all bundles together; each one's peers are the witnesses of its ledger.

    Args:
        transcripts: files of the coordinator's. Ledgers are held against the acknowledgements in them, and their own
            claims against the ledgers.

    Raises:
        InputError: a file is no transcript.
    """
    rosters: list[Roster | str] = [_roster(anchor, exhibit.bundle.roster) for exhibit in exhibits]
    believed = believed_rosters(anchor, exhibits)
    agreed, contested = _published(exhibits, believed)
    heard = hear(anchor, transcripts, believed)
    court = _Court(anchor, believed, exhibits, agreed, contested, {}, heard)
    ledgers = tuple(_judge(court, exhibit, roster) for exhibit, roster in zip(exhibits, rosters, strict=True))
    voices = _voices(anchor, exhibits, believed)
    return Judgement(
        ledgers, tuple(TranscriptVerdict(one.path, tuple(check_file(one, heard, voices))) for one in heard.files)
    )


@dataclass(frozen=True, slots=True)
class _Court:
    """What all bundles are judged by: trusted rosters, what the bundles say together, and plans judged before."""

    anchor: FederationRoot
    believed: Sequence[Roster]
    exhibits: Sequence[Exhibit]
    agreed: Mapping[Place, Published]
    contested: Mapping[Place, int]
    terms: Plans
    heard: Testimony


def _judge(court: _Court, exhibit: Exhibit, own: Roster | str) -> Verdict:
    anchor, believed, exhibits = court.anchor, court.believed, court.exhibits
    bundle, checks = exhibit.bundle, list(_copies(exhibit))
    if isinstance(own, str):
        checks.append(Check("roster", False, None, own))
    else:
        checks.append(Check("roster", True, None, f"version {own.version}, signed by the operator"))
    if bundle.origin != f"feddrm/{anchor.federation}/{exhibit.silo}":
        checks.append(Check("origin", False, None, f"{bundle.origin} is not a log of {anchor.federation}"))
        return Verdict(exhibit, tuple(checks), (), None)
    keys = _keys(exhibit, believed)
    if not keys:
        checks.append(Check("roster", False, None, f"no roster signed by the operator lists {exhibit.silo}"))
        return Verdict(exhibit, tuple(checks), (), None)
    if keys[0] != identity_of(exhibit.silo, believed):
        message = f"under a key that {exhibit.silo} had before: a ledger that another one replaced, or an older export"
        checks.append(Check("key", True, None, message, note=True))
    plans, faults = _plans(court, exhibit)
    checks += faults
    checks += check_documents(anchor, exhibit)
    listed = () if isinstance(own, str) else tuple(silo.name for silo in own.silos)
    checks += check_held(exhibit, partial(identities_of, believed=believed), listed)
    checks += check_sightings(exhibit, partial(identities_of, believed=believed))
    witnessed = witnesses_of(exhibit, keys, exhibits)
    if only_itself(witnessed):
        checks.append(Check("witnesses", True, None, UNWITNESSED, note=True))
    checks += verify_log(
        origin=bundle.origin,
        key=keys[0],
        former=keys[1:],
        charged=tuple(charged_by(exhibit, keys[1:], exhibits)),
        leaves=bundle.leaves,
        head=bundle.head,
        plans=plans,
        witnessed=witnessed,
        elsewhere=court.agreed,
        contested=court.contested,
    )
    leaves = _signed_leaves(exhibit, believed)
    checks += check_transcript(leaves, identities_of(exhibit.silo, believed), court.heard)
    if any(not check.passed and check.name in _NO_FIGURES for check in checks):
        return Verdict(exhibit, tuple(checks), (), None)
    try:
        jobs, life = summarise(Record.decode(body).leaf for body in bundle.leaves)
    except (ValueError, ArithmeticError) as error:
        checks.append(Check("epsilon", False, None, f"the figures cannot be computed: {error}"))
        return Verdict(exhibit, tuple(checks), (), None)
    return Verdict(exhibit, tuple(checks), jobs, life)


def _copies(exhibit: Exhibit) -> Iterator[Check]:
    for path in exhibit.copies:
        yield Check("copies", True, None, f"{path} is the same bundle again: counted once, no witness", note=True)


def _published(
    exhibits: Sequence[Exhibit], believed: Sequence[Roster]
) -> tuple[dict[Place, Published], dict[Place, int]]:
    """What more than half of the ledgers that speak of a round say of it; and rounds without such a majority.

    One voice a hospital, however many bundles there are of it, and only of ledgers that it signed.
    """
    said: defaultdict[Place, dict[str, Published]] = defaultdict(dict)
    for exhibit in exhibits:
        for place, one in published(_signed_leaves(exhibit, believed)).items():
            said[place][exhibit.bundle.origin] = one
    agreed, contested = {}, {}
    for place, voices in said.items():
        counts = Counter(voices.values())
        most, count = counts.most_common(1)[0]
        if 2 * count > len(voices):
            agreed[place] = most
        else:
            contested[place] = len(counts)
    return agreed, contested


def _voices(anchor: FederationRoot, exhibits: Sequence[Exhibit], believed: Sequence[Roster]) -> dict[str, list[Leaf]]:
    """What each hospital signed, by its name: the leaves of all its bundles."""
    voices: defaultdict[str, list[Leaf]] = defaultdict(list)
    for exhibit in exhibits:
        if exhibit.bundle.origin == f"feddrm/{anchor.federation}/{exhibit.silo}":
            voices[exhibit.silo] += _signed_leaves(exhibit, believed)
    return voices


def _signed_leaves(exhibit: Exhibit, believed: Sequence[Roster]) -> list[Leaf]:
    bundle = exhibit.bundle
    try:
        head, _ = open_any(bundle.head, bundle.origin, identities_of(exhibit.silo, believed))
        tree = Tree(bundle.leaves)
        if (head.size, head.root) != (tree.size, tree.root()):
            return []
        return [Record.decode(body).leaf for body in bundle.leaves]
    except MalformedError:
        return []


def believed_rosters(anchor: FederationRoot, exhibits: Sequence[Exhibit]) -> tuple[Roster, ...]:
    """The rosters in the bundles that the operator signed, newest first."""
    texts = dict.fromkeys(text for one in exhibits for text in (one.bundle.roster, *one.bundle.rosters))
    rosters = [roster for text in texts if isinstance(roster := _roster(anchor, text), Roster)]
    return tuple(sorted(rosters, key=lambda roster: roster.version, reverse=True))


def _roster(anchor: FederationRoot, text: str) -> Roster | str:
    try:
        signed = Signed.from_json(text)
        return verify_roster(signed, federation=anchor.federation, operator=anchor.operator)
    except FeddrmError as error:
        return error.message


def identity_of(silo: str, believed: Sequence[Roster]) -> bytes | None:
    """The identity key of a silo (32 bytes) from the newest roster that lists it: it may have left since."""
    return next(iter(identities_of(silo, believed)), None)


def identities_of(silo: str, believed: Sequence[Roster]) -> tuple[bytes, ...]:
    """All identity keys that a silo ever had (32 bytes each), newest first; `believed` is in that order."""
    return tuple(dict.fromkeys(one.identity for roster in believed for one in roster.silos if one.name == silo))


def _keys(exhibit: Exhibit, believed: Sequence[Roster]) -> tuple[bytes, ...]:
    """The key under which a bundle's ledger is, and those that its silo had before; the newest if none signed it."""
    keys = identities_of(exhibit.silo, believed)
    for number, key in enumerate(keys):
        try:
            open_head(exhibit.bundle.head, exhibit.bundle.origin, key)
        except MalformedError:
            continue
        return keys[number:]
    return keys


def _plans(court: _Court, exhibit: Exhibit) -> tuple[Plans, list[Check]]:
    anchor, faults = court.anchor, []
    plans: Plans = {}
    for number, text in enumerate(exhibit.bundle.plans, start=1):
        try:
            signed = verify_plan(Signed.from_json(text), federation=anchor.federation, operator=anchor.operator)
            if exhibit.silo not in signed.plan.silos:
                raise VerificationError(f"The plan {signed.plan.name} does not name {exhibit.silo}.")
            if signed.hash not in court.terms:
                court.terms[signed.hash] = _terms(signed)
            plans[signed.hash] = court.terms[signed.hash]
        except FeddrmError as error:
            faults.append(Check("plan", False, None, f"plan {number} of the bundle: {error.message}"))
        except (ValueError, ArithmeticError) as error:
            faults.append(Check("plan", False, None, f"plan {number} of the bundle cannot be accounted: {error}"))
    return plans, faults


def _terms(signed: SignedPlan) -> PlanTerms:
    plan, cost = signed.plan, charge(signed.plan)
    stages = {
        stage: StageTerms(event, within.start, len(within))
        for stage in NAMES
        if (event := round_event(plan, stage)) is not None and (within := rounds_of(plan, stage))
    }
    return PlanTerms(
        name=plan.name,
        delta=cost.delta,
        stages=stages,
        patient=plan.schema_.patient,
        schema=schema_hash(plan),
        initial=model_hash(initial_state(plan, layout_of(plan), signed.hash)),
    )
