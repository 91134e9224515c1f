"""Verdicts and ledgers as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feddrm.audit.court import Judgement, Verdict
from feddrm.audit.exhibit import Exhibit
from feddrm.audit.forks import Fork
from feddrm.audit.leaves import Difference, Relation
from feddrm.cli import printable
from feddrm.contract.kit import FederationRoot
from privacy.summary import JobSummary
from privacy.verify import Check


def verdict_text(anchor: FederationRoot, judged: Judgement) -> str:
    """One line a check; PASS, FAIL, or NOTE for what could not be checked."""
    verdicts = judged.ledgers
    lines = [f"Federation {anchor.federation}, fingerprint {anchor.fingerprint}"]
    for verdict in verdicts:
        lines.append(f"\n{verdict.exhibit.silo}  ({verdict.exhibit.path})")
        lines += map(_check_line, verdict.checks)
        lines += [f"        {line}" for job in verdict.jobs for line in _job_lines(job)]
    for said in judged.transcripts:
        lines.append(f"\nthe coordinator's transcript  ({said.path})")
        lines += map(_check_line, said.checks)
    bad = [verdict.exhibit.silo for verdict in verdicts if not verdict.verified]
    lines.append("")
    if bad:
        lines.append(f"NOT VERIFIED: {', '.join(bad)}")
    else:
        count = len({verdict.exhibit.bundle.origin for verdict in verdicts})
        lines.append(f"Verified: {count} ledger{'s' if count != 1 else ''}.")
    lines += [f"NOT VERIFIED: the coordinator's transcript {s.path}" for s in judged.transcripts if not s.verified]
    lines.append("A ledger shows what was charged; that the noise was drawn no ledger can show.")
    return printable("\n".join(lines))


def verdict_json(anchor: FederationRoot, judged: Judgement) -> dict[str, Any]:
    """The same as one object. `epsilon_spent` is recomputed from events; null where leaves follow no signed plan.
    `verified` at the top is true if all ledgers and all transcripts are."""
    return {
        "federation": anchor.federation,
        "fingerprint": anchor.fingerprint,
        "verified": judged.verified,
        "ledgers": [_ledger_json(verdict) for verdict in judged.ledgers],
        "transcripts": [
            {"file": str(said.path), "verified": said.verified, "checks": [_check_json(check) for check in said.checks]}
            for said in judged.transcripts
        ],
    }


def status_of(check: Check) -> str:
    """PASS, FAIL, or NOTE for what the reader should know."""
    if not check.passed:
        return "FAIL"
    return "NOTE" if check.note else "PASS"


def _check_line(check: Check) -> str:
    where = "" if check.leaf is None else f"leaf {check.leaf}"
    return f"  {status_of(check)}  {where:<10}{check.name}: {check.message}"


def _job_lines(job: JobSummary) -> list[str]:
    return [
        f"job {job.name}: {job.rounds_charged} rounds charged, {job.rounds_released} released"
        f"{f', {job.rounds_kept} kept in the hospital' if job.rounds_kept else ''}; epsilon spent "
        f"{job.spent.pld:.3f} (RDP {job.spent.rdp:.3f}), without secure aggregation {job.spent_alone.pld:.3f}, "
        f"at delta {job.delta:.3g}; cap {job.caps.job_epsilon:.3g}"
    ]


def _ledger_json(verdict: Verdict) -> dict[str, Any]:
    life, jobs = verdict.life, verdict.jobs
    return {
        "file": str(verdict.exhibit.path),
        "silo": verdict.exhibit.silo,
        "verified": verdict.verified,
        "epsilon_spent": sum(job.spent.pld for job in jobs) if life else None,
        "epsilon_spent_alone": sum(job.spent_alone.pld for job in jobs) if life else None,
        "plan_epsilon": jobs[-1].claimed if jobs else None,
        "delta": jobs[-1].delta if jobs else None,
        "rounds_reserved": sum(job.rounds_charged for job in jobs) if life else None,
        "charged_for_life": {"epsilon": life.epsilon, "epsilon_alone": life.epsilon_alone, "delta": life.delta}
        if life
        else None,
        "jobs": [
            {
                "plan": job.plan.hex(),
                "name": job.name,
                "delta": job.delta,
                "epsilon_claimed": job.claimed,
                "epsilon_claimed_alone": job.claimed_alone,
                "epsilon_spent": job.spent.pld,
                "epsilon_spent_rdp": job.spent.rdp,
                "epsilon_spent_alone": job.spent_alone.pld,
                "epsilon_cap": job.caps.job_epsilon,
                "life_epsilon_cap": job.caps.life_epsilon,
                "rounds_reserved": job.rounds_charged,
                "rounds_released": job.rounds_released,
                "rounds_kept": job.rounds_kept,
            }
            for job in jobs
        ],
        "checks": [_check_json(check) for check in verdict.checks],
    }


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "status": status_of(check),
        "passed": check.passed,
        "leaf": check.leaf,
        "message": check.message,
    }


def difference_text(first: Exhibit, second: Exhibit, found: Difference) -> str:
    """Which of two bundles extends the other, and the first leaf in which they differ."""
    names = (str(first.path), str(second.path))
    lines = [f"{name}: {size} leaves" for name, size in zip(names, found.sizes, strict=True)]
    lines += [
        f"{name}: the head is NOT of these leaves; feddrm-audit verify says what was done to them"
        for name, fits in zip(names, found.fits, strict=True)
        if not fits
    ]
    match found.relation:
        case Relation.SAME:
            lines.append("Both hold the same leaves.")
        case Relation.DIVERGED:
            lines.append(f"They part at leaf {found.leaf}: neither extends the other.")
            lines += [f"  {name}\n    {said}" for name, said in zip(names, found.said, strict=True)]
            lines.append("feddrm-audit fork-proof makes a proof of it if both heads are signed.")
        case _:
            longer = 0 if found.relation is Relation.FIRST_EXTENDS else 1
            lines.append(f"{names[longer]} extends the other from leaf {found.leaf} on:")
            lines.append(f"    {found.said[longer]}")
    return printable("\n".join(lines))


def difference_json(first: Exhibit, second: Exhibit, found: Difference) -> dict[str, Any]:
    """The same as one object."""
    return {
        "relation": found.relation.value,
        "sound": found.sound,
        "leaf": found.leaf,
        "bundles": [
            {"file": str(exhibit.path), "leaves": size, "head_fits": fits, "says": said or None}
            for exhibit, size, fits, said in zip((first, second), found.sizes, found.fits, found.said, strict=True)
        ],
    }


def forks_text(forks: Sequence[Fork], remarks: Sequence[str]) -> str:
    """Whose fork is proven, and what proves nothing."""
    lines = [f"PROVEN: {fork.silo} {fork.shows}. ({fork.origin})" for fork in forks]
    if not forks:
        lines.append("No fork is proven.")
    return printable("\n".join([*lines, *(f"  {remark}" for remark in remarks)]))
