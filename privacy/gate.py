"""The hospital's budget gate: nothing is read before the gate has let it pass, durably.

Its whole state is the ledger's leaves, replayed at start, so that a crash at any instant understates nothing. The
caps are the hospital's own; no call raises them and nothing that a coordinator sends reaches them.

Composition. Within a job, all events are fixed by the plan before it starts and are composed exactly (PLD). Across
jobs, which an operator chooses after seeing releases, the pre-allocated (epsilon_j, delta_j) add up (basic
composition, Dwork and Roth 2014, theorem 3.16; for adaptively chosen parameters Rogers et al. 2016). A job keeps its
whole allocation even when it stops early, since when it stops may depend on what it released.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from privacy.accounting import Epsilon, claim, epsilon, epsilon_alone
from privacy.errors import BudgetRefused, GateError, LedgerCorrupt
from privacy.events import Event, canonical, covers
from privacy.leaves import Abort, AbortReason, Caps, Commit, Dataset, Leaf, Plan, Record, Release, Reserve
from privacy.ledger import Ledger

__all__ = ["AbortReason", "Caps", "Gate", "LifeSpend", "Reservation"]

_SLACK: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Reservation:
    """One charged round; `leaf` is the number of its RESERVE leaf."""

    leaf: int
    plan: bytes
    stage: int
    round: int


@dataclass(frozen=True, slots=True)
class LifeSpend:
    """What all jobs of this ledger together are charged: epsilon with and without secure aggregation, at delta."""

    epsilon: float
    epsilon_alone: float
    delta: float


@dataclass(slots=True)
class _Round:
    leaf: int
    event: Event
    commit: tuple[int, Commit] | None = None
    end: tuple[int, Abort | Release] | None = None


@dataclass(slots=True)
class _Job:
    leaf: int
    terms: Plan
    rounds: dict[tuple[int, int], _Round] = field(default_factory=dict)
    closed: int | None = None

    @property
    def charged(self) -> bool:
        return self.closed is None or bool(self.rounds)

    def events(self) -> tuple[Event, ...]:
        return tuple(entry.event for entry in self.rounds.values())

    def unreleased(self) -> int:
        return sum(not isinstance(entry.end and entry.end[1], Release) for entry in self.rounds.values())


class Gate:
    """The budget of one hospital over all jobs of its ledger. Not shared between threads without a lock.

    Args:
        ledger: open for writing.
        caps: the hospital's limits, from its own policy.

    Raises:
        LedgerCorrupt: the leaves contradict one another.
    """

    def __init__(self, ledger: Ledger, caps: Caps) -> None:
        self._ledger = ledger
        self._caps = caps
        self._jobs: dict[bytes, _Job] = {}
        for number, record in enumerate(ledger.leaves()):
            self._apply(number, record)

    # What may be asked.

    @property
    def unresolved(self) -> Reservation | None:
        """The one charged round that has neither a release nor an abort yet."""
        for plan, job in self._jobs.items():
            for (stage, number), entry in job.rounds.items():
                if entry.end is None:
                    return Reservation(entry.leaf, plan, stage, number)
        return None

    def spent(self, plan: bytes) -> Epsilon:
        """What the charged rounds of a job cost at the job's delta; zero for an unknown job."""
        job = self._jobs.get(plan)
        return epsilon(job.events(), job.terms.delta) if job else Epsilon(0.0, 0.0)

    def spent_alone(self, plan: bytes) -> Epsilon:
        """As `spent`, against an adversary who sees this silo's vectors unmasked."""
        job = self._jobs.get(plan)
        return epsilon_alone(job.events(), job.terms.delta) if job else Epsilon(0.0, 0.0)

    def spent_for_life(self) -> LifeSpend:
        """What counts against the caps for life: whole allocations, without those of jobs ended before any round."""
        charged = [job.terms for job in self._jobs.values() if job.charged]
        return LifeSpend(
            sum(terms.epsilon for terms in charged),
            sum(terms.epsilon_alone for terms in charged),
            sum(terms.delta for terms in charged),
        )

    def reserved(self, plan: bytes, stage: int, round: int) -> Reservation | None:  # noqa: A002
        """The reservation of a round, whatever became of it, or None."""
        job = self._jobs.get(plan)
        entry = job.rounds.get((stage, round)) if job else None
        return Reservation(entry.leaf, plan, stage, round) if entry else None

    def committed(self, plan: bytes, stage: int, round: int) -> int | None:  # noqa: A002
        """The number of a round's COMMIT leaf, or None."""
        job = self._jobs.get(plan)
        entry = job.rounds.get((stage, round)) if job else None
        return entry.commit[0] if entry and entry.commit else None

    # What may be done.

    def record_dataset(self, commitment: bytes, schema: bytes, *, now_ms: int) -> int:
        """Write a DATASET leaf, unless the newest one says the same; returns its number.

        Spend never depends on it: a data set that grows, is copied or is split again keeps what was charged.
        """
        leaf = Dataset(commitment, schema)
        for number, record in reversed(list(enumerate(self._ledger.leaves()))):
            if isinstance(record.leaf, Dataset):
                if record.leaf == leaf:
                    return number
                break
        return self._write(leaf, now_ms)

    def open_job(
        self, plan: bytes, name: str, delta: float, events: Iterable[Event], *, now_ms: int, code: str = "unknown"
    ) -> int:
        """Charge a whole job for life and write its PLAN leaf; returns its number.

        Asking again for the same job changes nothing and returns the leaf that is there.

        Args:
            plan: hash of the signed plan (32 bytes).
            name: the plan's name.
            delta: the delta at which the job's epsilon is stated.
            events: everything that one patient may undergo in the completed job.
            now_ms: milliseconds since the epoch.
            code: version of the software.

        Raises:
            BudgetRefused: a cap would be passed, or the job has ended.
            GateError: the same hash with other terms.
        """
        events = canonical(events)
        known = self._jobs.get(plan)
        if known:
            if (known.terms.name, known.terms.delta, known.terms.events) != (name, delta, events):
                raise GateError("this plan was accepted with other terms")
            if known.closed is not None:
                raise BudgetRefused(f"the job {name} has ended")
            return known.leaf
        terms = Plan(
            plan=plan,
            name=name,
            delta=delta,
            epsilon=claim(epsilon(events, delta).pld),
            epsilon_alone=claim(epsilon_alone(events, delta).pld),
            events=events,
            caps=self._caps,
            code=code,
        )
        self._check_caps(terms, self.spent_for_life())
        return self._write(terms, now_ms)

    def reserve(
        self,
        plan: bytes,
        stage: int,
        round: int,  # noqa: A002
        event: Event,
        *,
        model: bytes,
        now_ms: int,
    ) -> Reservation:
        """Charge one round. Only when this has returned may the round's data be read.

        Args:
            plan: hash of an accepted plan.
            stage: from 1.
            round: from 1; must rise within a stage.
            event: what the round does to a patient.
            model: hash of the model that the round starts from (32 bytes).
            now_ms: milliseconds since the epoch.

        Raises:
            BudgetRefused: no such open job, charged before or out of order, another round is unresolved, too many
                rounds without a release, more than the plan's events, or a cap (lowered since, perhaps) is passed.
        """
        job = self._jobs.get(plan)
        if job is None or job.closed is not None:
            raise BudgetRefused("the round belongs to no job that is open in this ledger")
        if (stage, round) in job.rounds:
            raise BudgetRefused(f"round {round} of stage {stage} has been charged already")
        if any(place > (stage, round) for place in job.rounds):
            raise BudgetRefused(f"round {round} of stage {stage} comes after a later one was charged")
        if (open_round := self.unresolved) is not None:
            raise BudgetRefused(f"round {open_round.round} of stage {open_round.stage} is not resolved yet")
        if job.unreleased() >= self._caps.rounds_without_release:
            raise BudgetRefused(f"{job.unreleased()} rounds of this job were charged without a release")
        if not covers(job.terms.events, (*job.events(), event)):
            raise BudgetRefused("the round exceeds what the plan allocates")
        rest = self.spent_for_life()
        self._check_caps(
            job.terms,
            LifeSpend(
                rest.epsilon - job.terms.epsilon,
                rest.epsilon_alone - job.terms.epsilon_alone,
                rest.delta - job.terms.delta,
            ),
        )
        return Reservation(self._write(Reserve(plan, stage, round, event, model), now_ms), plan, stage, round)

    def commit(self, reservation: Reservation, update: bytes, *, now_ms: int) -> int:
        """Write that the round's update exists; `update` is a keyed commitment (privacy.commitments, 32 bytes).

        Again with the same commitment: the leaf that is there.

        Raises:
            GateError: not the reservation of a round that is open, or a second, different commitment.
        """
        entry = self._entry(reservation.plan, reservation.stage, reservation.round)
        if entry.leaf != reservation.leaf:
            raise GateError("this is not the round's reservation")
        leaf = Commit(reservation.plan, reservation.stage, reservation.round, reservation.leaf, update)
        if entry.commit is not None:
            return _same(entry.commit, leaf)
        if entry.end is not None:
            raise GateError("the round has ended")
        return self._write(leaf, now_ms)

    def release(
        self,
        plan: bytes,
        stage: int,
        round: int,  # noqa: A002
        *,
        sum: bytes,  # noqa: A002
        model: bytes,
        now_ms: int,
    ) -> int:
        """Write that the round's sum was published and verified. Again with the same hashes: the leaf that is there.

        Raises:
            GateError: the round is not committed, or has ended otherwise.
        """
        entry = self._entry(plan, stage, round)
        leaf = Release(plan, stage, round, sum, model)
        if entry.end is not None:
            return _same(entry.end, leaf)
        if entry.commit is None:
            raise GateError("a round without a commitment has no release")
        return self._write(leaf, now_ms)

    def abort(self, plan: bytes, stage: int, round: int, reason: AbortReason, *, now_ms: int) -> int:  # noqa: A002
        """Write that a charged round ended without a release; it stays charged. Again: the leaf that is there.

        Raises:
            GateError: the round was never charged, or it was released.
        """
        entry = self._entry(plan, stage, round)
        if entry.end is not None and isinstance(entry.end[1], Abort):
            return entry.end[0]
        leaf = Abort(plan, stage, round, reason)
        return _same(entry.end, leaf) if entry.end else self._write(leaf, now_ms)

    def close_job(self, plan: bytes, reason: AbortReason = AbortReason.STOPPED, *, now_ms: int) -> int:
        """End a job: no round of it is charged any more. Its allocation returns only if no round ever was.

        Raises:
            GateError: there is no such job, or a round of it is unresolved.
        """
        job = self._jobs.get(plan)
        if job is None:
            raise GateError("there is no such job")
        if job.closed is not None:
            return job.closed
        if any(entry.end is None for entry in job.rounds.values()):
            raise GateError("a round of this job is unresolved")
        return self._write(Abort(plan, 0, 0, reason), now_ms)

    def _check_caps(self, terms: Plan, others: LifeSpend) -> None:
        caps = self._caps
        figures = (
            ("epsilon of the job", terms.epsilon, caps.job_epsilon),
            ("epsilon of the job without secure aggregation", terms.epsilon_alone, caps.job_epsilon_alone),
            ("epsilon for life", others.epsilon + terms.epsilon, caps.life_epsilon),
            (
                "epsilon for life without secure aggregation",
                others.epsilon_alone + terms.epsilon_alone,
                caps.life_epsilon_alone,
            ),
            ("delta for life", others.delta + terms.delta, caps.life_delta),
        )
        for what, value, cap in figures:
            # Not (value > cap), so that a NaN is refused; the slack forgives the last digits of a sum only.
            if not value <= cap * (1 + _SLACK):
                raise BudgetRefused(f"the {what} would be {value:.6g}, above the hospital's cap of {cap:.6g}")

    def _entry(self, plan: bytes, stage: int, round: int) -> _Round:  # noqa: A002
        job = self._jobs.get(plan)
        entry = job.rounds.get((stage, round)) if job else None
        if entry is None:
            raise GateError(f"round {round} of stage {stage} was never charged")
        return entry

    def _write(self, leaf: Leaf, now_ms: int) -> int:
        number = self._ledger.append(leaf, now_ms=now_ms)
        self._apply(number, self._ledger.leaves()[number])
        return number

    def _apply(self, number: int, record: Record) -> None:
        leaf = record.leaf
        if isinstance(leaf, Plan):
            if leaf.plan in self._jobs:
                raise LedgerCorrupt(f"leaf {number} opens a job a second time")
            self._jobs[leaf.plan] = _Job(number, leaf)
        elif isinstance(leaf, Reserve | Commit | Abort | Release):
            job = self._jobs.get(leaf.plan)
            if job is None:
                raise LedgerCorrupt(f"leaf {number} belongs to no job")
            if isinstance(leaf, Reserve):
                if (leaf.stage, leaf.round) in job.rounds:
                    raise LedgerCorrupt(f"leaf {number} charges a round a second time")
                job.rounds[leaf.stage, leaf.round] = _Round(number, leaf.event)
            elif isinstance(leaf, Abort) and leaf.ends_job:
                job.closed = number
            else:
                entry = job.rounds.get((leaf.stage, leaf.round))
                if entry is None:
                    raise LedgerCorrupt(f"leaf {number} belongs to no charged round")
                if isinstance(leaf, Commit):
                    entry.commit = (number, leaf)
                else:
                    entry.end = (number, leaf)


def _same(there: tuple[int, Leaf], leaf: Leaf) -> int:
    if there[1] != leaf:
        raise GateError("the round has a different leaf of this kind already")
    return there[0]
