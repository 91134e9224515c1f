"""A ledger's epsilon at another delta, as text and as JSON."""

from __future__ import annotations

from typing import Any

from feddrm.audit.exhibit import Exhibit
from feddrm.cli import printable, table
from feddrm.contract.errors import InputError, VerificationError
from privacy.accounting import MINIMUM_DELTA, Epsilon, stated
from privacy.errors import LedgerCorrupt, MalformedError
from privacy.leaves import Record
from privacy.summary import LedgerAt, recompute


def recompute_exhibit(exhibit: Exhibit, delta: float) -> LedgerAt:
    """Epsilon of one bundle's ledger at `delta`.

    Raises:
        InputError: delta is out of range.
        VerificationError: the leaves cannot be read or contradict one another.
    """
    if not MINIMUM_DELTA <= delta < 1:
        raise InputError(f"--delta {delta:g} must be at least {MINIMUM_DELTA:g} and below 1.")
    try:
        return recompute([Record.decode(body).leaf for body in exhibit.bundle.leaves], delta)
    except (MalformedError, LedgerCorrupt, ValueError, ArithmeticError) as error:
        raise VerificationError(
            f"{exhibit.path} cannot be recomputed: {error}.", remedy="feddrm-audit verify says more."
        ) from error


def budget_text(found: list[tuple[Exhibit, LedgerAt]]) -> str:
    """One table a ledger."""
    parts = []
    for exhibit, ledger in found:
        headers = ("job", "rounds", "what", "PLD", "RDP", "PLD alone", "RDP alone")
        rows: list[tuple[object, ...]] = []
        for job in ledger.jobs:
            rows.append((job.name, job.rounds_charged, "charged so far", *_cells(job.spent, job.spent_alone)))
            rows.append((job.name, job.rounds_charged, "the whole job", *_cells(job.whole, job.whole_alone)))
        if ledger.life is not None and ledger.life_alone is not None:
            rows.append(
                ("all jobs", "", f"for life, delta {ledger.delta:g} in all", *_cells(ledger.life, ledger.life_alone))
            )
        parts.append(f"{exhibit.silo}  ({exhibit.path}), at delta {ledger.delta:g}\n{table(headers, rows)}")
        if ledger.life is None:
            parts.append(f"For life: delta {ledger.delta:g} is too small to be divided among all jobs.")
    parts.append(
        "Recomputed from the events as they stand: feddrm-audit verify says whether they may be believed. PLD is the\n"
        "claim; RDP, by another method, stands beside it. alone: without secure aggregation. For life: the sum of all\n"
        "charged jobs' whole epsilons, each at an equal part of delta."
    )
    return printable("\n\n".join(parts))


def budget_json(found: list[tuple[Exhibit, LedgerAt]]) -> dict[str, Any]:
    """The same as one object."""
    return {"verified": False, "ledgers": [_ledger_json(exhibit, ledger) for exhibit, ledger in found]}


def _ledger_json(exhibit: Exhibit, ledger: LedgerAt) -> dict[str, Any]:
    return {
        "file": str(exhibit.path),
        "silo": exhibit.silo,
        "delta": ledger.delta,
        "jobs": [
            {
                "plan": job.plan.hex(),
                "name": job.name,
                "rounds_reserved": job.rounds_charged,
                "spent": _epsilon_json(job.spent),
                "spent_alone": _epsilon_json(job.spent_alone),
                "whole": _epsilon_json(job.whole),
                "whole_alone": _epsilon_json(job.whole_alone),
            }
            for job in ledger.jobs
        ],
        "life": None if ledger.life is None else _epsilon_json(ledger.life),
        "life_alone": None if ledger.life_alone is None else _epsilon_json(ledger.life_alone),
    }


def _epsilon_json(value: Epsilon) -> dict[str, float]:
    return {"pld": value.pld, "rdp": value.rdp}


def _cells(together: Epsilon, alone: Epsilon) -> tuple[str, ...]:
    return tuple(stated(value, 4) for value in (together.pld, together.rdp, alone.pld, alone.rdp))
