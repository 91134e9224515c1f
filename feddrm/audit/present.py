"""Verdicts and ledgers as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feddrm.audit.court import Verdict
from feddrm.audit.exhibit import Exhibit
from feddrm.cli import printable
from feddrm.contract.kit import FederationRoot
from privacy.errors import MalformedError
from privacy.leaves import Abort, Commit, Dataset, Key, Leaf, Plan, Record, Release, Reserve
from privacy.summary import JobSummary
from privacy.verify import Check


def verdict_text(anchor: FederationRoot, verdicts: Sequence[Verdict]) -> str:
    """One line a check; PASS, FAIL, or NOTE for what could not be checked."""
    lines = [f"Federation {anchor.federation}, fingerprint {anchor.fingerprint}"]
    for verdict in verdicts:
        lines.append(f"\n{verdict.exhibit.silo}  ({verdict.exhibit.path})")
        lines += [f"  {_status(check)}  {_where(check):<10}{check.name}: {check.message}" for check in verdict.checks]
        lines += [f"        {line}" for job in verdict.jobs for line in _job_lines(job)]
    bad = [verdict.exhibit.silo for verdict in verdicts if not verdict.verified]
    if bad:
        lines.append(f"\nNOT VERIFIED: {', '.join(bad)}")
    else:
        count = len({verdict.exhibit.bundle.origin for verdict in verdicts})
        lines.append(f"\nVerified: {count} ledger{'s' if count != 1 else ''}.")
    lines.append("A ledger shows what was charged; that the noise was drawn no ledger can show.")
    return printable("\n".join(lines))


def verdict_json(anchor: FederationRoot, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The same as one object. `epsilon_spent` is recomputed from events; null where leaves follow no signed plan."""
    return {
        "federation": anchor.federation,
        "fingerprint": anchor.fingerprint,
        "verified": all(verdict.verified for verdict in verdicts),
        "ledgers": [_ledger_json(verdict) for verdict in verdicts],
    }


def show_text(exhibit: Exhibit) -> str:
    """All leaves, one a line. Nothing is verified."""
    lines = [f"{exhibit.bundle.origin}: {len(exhibit.bundle.leaves)} leaves, NOT verified (feddrm-audit verify does)"]
    for number, body in enumerate(exhibit.bundle.leaves):
        try:
            record = Record.decode(body)
        except MalformedError as error:
            lines.append(f"{number:>6}  unreadable: {error}")
            continue
        lines.append(f"{number:>6}  {record.time[:13]}h  {record.leaf.TYPE:<8} {_describe(record.leaf)}")
    for origin in sorted(exhibit.bundle.witnessed):
        lines.append(f"{'':>6}  holds a head of {origin}")
    return printable("\n".join(lines))


def show_json(exhibit: Exhibit) -> dict[str, Any]:
    """The bundle's leaves as they stand, unverified."""
    return {
        "origin": exhibit.bundle.origin,
        "verified": False,
        "leaves": [body.decode() for body in exhibit.bundle.leaves],
        "head": exhibit.bundle.head.decode(),
        "witnessed": {origin: note.decode() for origin, note in exhibit.bundle.witnessed.items()},
    }


def _status(check: Check) -> str:
    if not check.passed:
        return "FAIL"
    return "NOTE" if check.note else "PASS"


def _where(check: Check) -> str:
    return "" if check.leaf is None else f"leaf {check.leaf}"


def _job_lines(job: JobSummary) -> list[str]:
    return [
        f"job {job.name}: {job.rounds_charged} rounds charged, {job.rounds_released} released; epsilon spent "
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
            }
            for job in jobs
        ],
        "checks": [
            {"name": c.name, "status": _status(c), "passed": c.passed, "leaf": c.leaf, "message": c.message}
            for c in verdict.checks
        ],
    }


def _describe(leaf: Leaf) -> str:
    match leaf:
        case Key():
            return f"{leaf.origin} signs with {leaf.key.hex()[:16]}…"
        case Dataset():
            return (
                f"data {leaf.commitment.hex()[:16]}… read for plan {leaf.plan.hex()[:16]}…, patients by column "
                f"{leaf.patient}, about {leaf.public_size}"
            )
        case Plan():
            return (
                f"job {leaf.name} (plan {leaf.plan.hex()[:16]}…): epsilon {leaf.epsilon:.6g}, without secure "
                f"aggregation {leaf.epsilon_alone:.6g}, at delta {leaf.delta:.3g}; unit: {leaf.unit}"
            )
        case Reserve():
            event = leaf.event
            return (
                f"{_place(leaf)}: {event.steps} steps, noise multiplier {event.noise_multiplier:g}, sampling rate "
                f"{event.sampling_rate:g}"
            )
        case Commit():
            return f"{_place(leaf)}: update {leaf.update.hex()[:16]}…, charged by leaf {leaf.reserve}"
        case Abort() if leaf.ends_job:
            return f"the job of plan {leaf.plan.hex()[:16]}… ends: {leaf.reason}"
        case Abort():
            return f"{_place(leaf)}: no release ({leaf.reason}); stays charged"
        case Release():
            return f"{_place(leaf)}: sum {leaf.sum.hex()[:16]}… led to model {leaf.model.hex()[:16]}…"


def _place(leaf: Reserve | Commit | Abort | Release) -> str:
    return f"stage {leaf.stage} round {leaf.round}"
