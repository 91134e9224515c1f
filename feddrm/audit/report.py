"""The audit as one self-contained HTML file for a hospital's board: no script, nothing loaded, prints cleanly.

Every text in it that came from a bundle or a plan was written by others: the template escapes all of it, and control
and direction characters are shown as question marks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from jinja2 import DictLoader, Environment, StrictUndefined

from feddrm.audit.chart import Chart, draw
from feddrm.audit.court import Judgement, TranscriptVerdict, Verdict, believed_rosters
from feddrm.audit.mechanisms import mechanisms
from feddrm.audit.present import status_of
from feddrm.audit.words import ADVERSARIES, CHECKS, GLOSSARY, UNPROTECTED
from feddrm.cli import printable
from feddrm.contract.charge import charge
from feddrm.contract.errors import FeddrmError
from feddrm.contract.files import read_bounded
from feddrm.contract.kit import FederationRoot
from feddrm.contract.roster import Roster
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan, verify_plan
from feddrm.contract.transcript import MAXIMUM_TRANSCRIPT
from privacy.bundle import MAXIMUM_BUNDLE
from privacy.leaves import Plan, Record
from privacy.leaves import Plan as PlanLeaf
from privacy.summary import Moment, course

_TEMPLATE: Final = "report.html"


@dataclass(frozen=True, slots=True)
class Hospital:
    """One ledger as the report shows it. `moments` and `chart` are empty where the leaves carry no figures."""

    verdict: Verdict
    moments: tuple[Moment, ...]
    chart: Chart | None
    plans: tuple[PlanLeaf, ...]
    digest: str

    @property
    def name(self) -> str:
        """The hospital's name in the ledger."""
        return self.verdict.exhibit.silo

    @property
    def failures(self) -> int:
        """How many checks failed."""
        return sum(not check.passed for check in self.verdict.checks)

    @property
    def spent(self) -> float:
        """Epsilon of all charged rounds of all jobs."""
        return sum(job.spent.pld for job in self.verdict.jobs)

    @property
    def spent_alone(self) -> float:
        """The same against an adversary who sees this hospital's updates unmasked."""
        return sum(job.spent_alone.pld for job in self.verdict.jobs)


@dataclass(frozen=True, slots=True)
class Said:
    """One transcript of the coordinator's as the report shows it."""

    verdict: TranscriptVerdict
    digest: str

    @property
    def failures(self) -> int:
        """How many checks failed."""
        return sum(not check.passed for check in self.verdict.checks)


def render_report(anchor: FederationRoot, judged: Judgement, *, now_ms: int) -> str:
    """The report.

    Args:
        anchor: the federation's root, as given.
        judged: all bundles and transcripts, together.
        now_ms: the time to print on it (milliseconds since the epoch).
    """
    verdicts = judged.ledgers
    exhibits = [verdict.exhibit for verdict in verdicts]
    hospitals = [_hospital(verdict) for verdict in verdicts]
    checks = [check for verdict in verdicts for check in verdict.checks]
    checks += (check for said in judged.transcripts for check in said.checks)
    transcripts = [Said(one, _digest(one.path, MAXIMUM_TRANSCRIPT)) for one in judged.transcripts]
    rosters: tuple[Roster, ...] = believed_rosters(anchor, exhibits)
    largest = max((hospital.spent for hospital in hospitals if hospital.verdict.life), default=0.0)
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            anchor=anchor,
            date=datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%-d %B %Y, %H:%M UTC"),
            hospitals=hospitals,
            ledgers=len({exhibit.bundle.origin for exhibit in exhibits}),
            transcripts=transcripts,
            verified=judged.verified,
            notes=sum(check.note for check in checks),
            checks=len(checks),
            roster=rosters[0] if rosters else None,
            plans=_plans(anchor, verdicts),
            largest=largest,
            odds=math.exp(min(largest, 50.0)),
            meanings=CHECKS,
            adversaries=ADVERSARIES,
            unprotected=UNPROTECTED,
            glossary=GLOSSARY,
        )
    )


def _hospital(verdict: Verdict) -> Hospital:
    digest = _digest(verdict.exhibit.path, MAXIMUM_BUNDLE)
    if verdict.life is None:
        return Hospital(verdict, (), None, (), digest)
    records = [Record.decode(body) for body in verdict.exhibit.bundle.leaves]
    moments = course(records)
    plans = tuple(record.leaf for record in records if isinstance(record.leaf, Plan))
    return Hospital(verdict, moments, draw(moments), plans, digest)


def _digest(path: Path, limit: int) -> str:
    return hashlib.sha256(read_bounded(path, limit=limit)).hexdigest()


def _plans(anchor: FederationRoot, verdicts: Sequence[Verdict]) -> list[SignedPlan]:
    """The plans that the operator signed, once each, in the order in which bundles bring them."""
    found: dict[bytes, SignedPlan] = {}
    for text in (text for verdict in verdicts for text in verdict.exhibit.bundle.plans):
        try:
            signed = verify_plan(Signed.from_json(text), federation=anchor.federation, operator=anchor.operator)
        except FeddrmError:
            continue
        found.setdefault(signed.hash, signed)
    return list(found.values())


def _environment() -> Environment:
    text = files("feddrm.audit").joinpath("templates", _TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(
        loader=DictLoader({_TEMPLATE: text}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    environment.filters["eps"] = lambda value: f"{value:.3f}"
    environment.filters["short"] = lambda digest: f"{digest.hex()[:16]}…"
    environment.filters["status"] = status_of
    environment.filters["mechanisms"] = lambda plan: mechanisms(charge(plan).events)
    environment.filters["general"] = lambda value: f"{value:g}".replace("e-0", "e-")
    return environment


def _clean(value: Any) -> Any:
    # Exactly str: what the template itself wrote is Markup.
    return printable(value) if type(value) is str else value
