"""What a ledger says in figures. Meaningful only for leaves that `privacy.verify` has passed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from privacy.account import Account, LifeSpend
from privacy.accounting import MINIMUM_DELTA, Epsilon, epsilon, epsilon_alone
from privacy.leaves import Abort, Caps, Leaf, Plan, Record, Reserve


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
    rounds_kept: int
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
            rounds_released=sum(entry.released for entry in job.rounds.values()),
            rounds_kept=sum(entry.kept for entry in job.rounds.values()),
            spent=epsilon(job.events(), job.terms.delta),
            spent_alone=epsilon_alone(job.events(), job.terms.delta),
        )
        for plan, job in account.jobs.items()
    )
    return jobs, account.life()


@dataclass(frozen=True, slots=True)
class JobAt:
    """One job's epsilon at another delta: of the rounds charged so far and of the whole job, each also without secure
    aggregation."""

    plan: bytes
    name: str
    rounds_charged: int
    spent: Epsilon
    spent_alone: Epsilon
    whole: Epsilon
    whole_alone: Epsilon


@dataclass(frozen=True, slots=True)
class LedgerAt:
    """All jobs at `delta` each, and what one patient may lose over the ledger's life at `delta` in all.

    `life` composes jobs as the gate does (basic composition, an equal part of delta for each charged job), which holds
    although an operator chooses a plan after seeing earlier releases. None where that part is below what the
    accountants take.
    """

    delta: float
    jobs: tuple[JobAt, ...]
    life: Epsilon | None
    life_alone: Epsilon | None


def recompute(leaves: Iterable[Leaf], delta: float) -> LedgerAt:
    """Epsilon of a ledger at another delta than its plans', from the events alone.

    Raises:
        LedgerCorrupt: the leaves contradict one another.
        ValueError: delta out of range, or more steps than the accountants take.
    """
    account = Account()
    for number, leaf in enumerate(leaves):
        account.apply(number, leaf)
    jobs = tuple(
        JobAt(
            plan=plan,
            name=job.terms.name,
            rounds_charged=len(job.rounds),
            spent=epsilon(job.events(), delta),
            spent_alone=epsilon_alone(job.events(), delta),
            whole=epsilon(job.terms.events, delta),
            whole_alone=epsilon_alone(job.terms.events, delta),
        )
        for plan, job in account.jobs.items()
    )
    charged = [job.terms.events for job in account.jobs.values() if job.charged]
    part = delta / max(1, len(charged))
    if part < MINIMUM_DELTA:
        return LedgerAt(delta, jobs, None, None)
    return LedgerAt(
        delta,
        jobs,
        _sum(epsilon(events, part) for events in charged),
        _sum(epsilon_alone(events, part) for events in charged),
    )


def _sum(parts: Iterable[Epsilon]) -> Epsilon:
    figures = tuple(parts)
    return Epsilon(sum((one.pld for one in figures), 0.0), sum((one.rdp for one in figures), 0.0))


@dataclass(frozen=True, slots=True)
class Moment:
    """What a ledger had spent after one of its leaves: recomputed from charged rounds, and allocated for life."""

    leaf: int
    time: str
    spent: float
    spent_alone: float
    allocated: float
    allocated_alone: float
    cap: float
    cap_alone: float


def course(records: Sequence[Record]) -> tuple[Moment, ...]:
    """The budget over time, oldest first: after every PLAN, every end of a job, and some eight of each job's RESERVE
    leaves (the first and the last among them), as each costs a composition. Caps are those of the newest PLAN.

    Raises:
        LedgerCorrupt: the leaves contradict one another.
        ValueError: more steps than the accountants take.
    """
    account, moments = Account(), []
    caps: Caps | None = None
    shown = _shown(records)
    for number, record in enumerate(records):
        account.apply(number, record.leaf)
        if isinstance(record.leaf, Plan):
            caps = record.leaf.caps
        ends = isinstance(record.leaf, Abort) and record.leaf.ends_job
        if caps is None or not (isinstance(record.leaf, Plan) or ends or number in shown):
            continue
        jobs, life = account.jobs.values(), account.life()
        moments.append(
            Moment(
                leaf=number,
                time=record.time,
                spent=sum(epsilon(job.events(), job.terms.delta).pld for job in jobs),
                spent_alone=sum(epsilon_alone(job.events(), job.terms.delta).pld for job in jobs),
                allocated=life.epsilon,
                allocated_alone=life.epsilon_alone,
                cap=caps.life_epsilon,
                cap_alone=caps.life_epsilon_alone,
            )
        )
    return tuple(moments)


def _shown(records: Sequence[Record]) -> frozenset[int]:
    """Numbers of the RESERVE leaves at which the budget is computed. Counts of rounds at a power of two apart are the
    same in all ledgers of a job, so that each is composed once."""
    charges: dict[bytes, list[int]] = {}
    for number, record in enumerate(records):
        if isinstance(record.leaf, Reserve):
            charges.setdefault(record.leaf.plan, []).append(number)
    shown: set[int] = set()
    for numbers in charges.values():
        step = 1 << max(0, math.ceil(math.log2(len(numbers) / 6)))
        shown |= {numbers[0], numbers[-1], *numbers[step - 1 :: step]}
    return frozenset(shown)
