"""What a ledger says in figures. Meaningful only for leaves that `privacy.verify` has passed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from privacy.account import Account, LifeSpend
from privacy.accounting import Epsilon, epsilon, epsilon_alone
from privacy.leaves import Caps, Leaf


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job: what was claimed for all of it, and what its charged rounds cost, recomputed from their events."""

    plan: bytes
    name: str
    delta: float
    claimed: float
    claimed_alone: float
    caps: Caps
    rounds_charged: int
    rounds_released: int
    spent: Epsilon
    spent_alone: Epsilon


def summarise(leaves: Iterable[Leaf]) -> tuple[tuple[JobSummary, ...], LifeSpend]:
    """All jobs in order, and what counts for life (the sum of their allocations).

    Raises:
        LedgerCorrupt: the leaves contradict one another.
        ValueError: more steps than the accountants take.
    """
    account = Account()
    for number, leaf in enumerate(leaves):
        account.apply(number, leaf)
    jobs = tuple(
        JobSummary(
            plan=plan,
            name=job.terms.name,
            delta=job.terms.delta,
            claimed=job.terms.epsilon,
            claimed_alone=job.terms.epsilon_alone,
            caps=job.terms.caps,
            rounds_charged=len(job.rounds),
            rounds_released=len(job.rounds) - job.unreleased(),
            spent=epsilon(job.events(), job.terms.delta),
            spent_alone=epsilon_alone(job.events(), job.terms.delta),
        )
        for plan, job in account.jobs.items()
    )
    return jobs, account.life()
