"""What a ledger's leaves say about the budget: jobs, their charged rounds, and how each of these ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from privacy.errors import LedgerCorrupt
from privacy.events import Event
from privacy.handover import Carry
from privacy.leaves import Abort, Caps, Commit, Dataset, Keep, Key, Leaf, Plan, Release, Reserve

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
    """What all jobs of one ledger together are charged: epsilon with and without secure aggregation, at delta."""

    epsilon: float
    epsilon_alone: float
    delta: float

    def plus(self, terms: Plan | Carry) -> LifeSpend:
        """With one more job's allocation."""
        return LifeSpend(
            self.epsilon + terms.epsilon, self.epsilon_alone + terms.epsilon_alone, self.delta + terms.delta
        )


def over_caps(terms: Plan, life: LifeSpend, caps: Caps) -> tuple[str, float, float] | None:
    """The first of a job's figures that passes its cap, as (what it is, figure, cap), or None.

    Args:
        terms: of the job.
        life: all allocations, the job's among them.
        caps: the limits that count.
    """
    figures = (
        ("epsilon of the job", terms.epsilon, caps.job_epsilon),
        ("epsilon of the job without secure aggregation", terms.epsilon_alone, caps.job_epsilon_alone),
        ("delta of the job", terms.delta, caps.job_delta),
        ("epsilon for life", life.epsilon, caps.life_epsilon),
        ("epsilon for life without secure aggregation", life.epsilon_alone, caps.life_epsilon_alone),
        ("delta for life", life.delta, caps.life_delta),
    )
    for what, value, cap in figures:
        # Not (value > cap), so that a NaN is over; the slack forgives the last digits of a sum only.
        if not value <= cap * (1 + _SLACK):
            return what, value, cap
    return None


@dataclass(slots=True)
class Round:
    """A charged round; `commit` and `end` are (leaf number, leaf) once they exist."""

    reservation: Reservation
    event: Event
    commit: tuple[int, Commit] | None = None
    end: tuple[int, Abort | Release | Keep] | None = None

    @property
    def released(self) -> bool:
        """Whether the round ended with a release."""
        return self.end is not None and isinstance(self.end[1], Release)

    @property
    def kept(self) -> bool:
        """Whether the round came to a result that stays in the hospital, as it was meant to."""
        return self.end is not None and isinstance(self.end[1], Keep)


@dataclass(slots=True)
class Job:
    """An accepted plan, its rounds by (stage, round), and the leaf that ended it."""

    leaf: int
    terms: Plan
    rounds: dict[tuple[int, int], Round] = field(default_factory=dict)
    closed: int | None = None

    @property
    def charged(self) -> bool:
        """Whether the job's allocation counts: always, but for a job ended before any round was charged."""
        return self.closed is None or bool(self.rounds)

    def events(self) -> tuple[Event, ...]:
        """The events of all charged rounds, in order."""
        return tuple(entry.event for entry in self.rounds.values())

    def unreleased(self) -> int:
        """How many rounds were charged so far without a release, where there should be one."""
        return sum(not (entry.released or entry.kept) for entry in self.rounds.values())


class Account:
    """A replay of leaves. A reservation without an end counts as fully spent, since nothing here takes it back."""

    __slots__ = ("_open", "carried", "datasets", "jobs")

    def __init__(self) -> None:
        self._open: dict[Reservation, None] = {}
        self.carried: dict[bytes, Carry] = {}
        self.jobs: dict[bytes, Job] = {}
        self.datasets: dict[bytes, Dataset] = {}

    def apply(self, number: int, leaf: Leaf) -> None:
        """Take leaf `number` into account.

        Raises:
            LedgerCorrupt: it contradicts the leaves before it.
        """
        if isinstance(leaf, Key):
            if number:
                raise LedgerCorrupt(f"leaf {number} names a key, which only the first leaf does")
        elif isinstance(leaf, Dataset):
            self.datasets[leaf.plan] = leaf
        elif isinstance(leaf, Plan | Carry):
            self._charge(number, leaf)
        elif isinstance(leaf, Reserve):
            self._reserve(number, leaf)
        elif isinstance(leaf, Abort) and leaf.ends_job:
            self._job(number, leaf.plan).closed = number
        elif isinstance(leaf, Commit | Abort | Release | Keep):
            self._end(number, leaf)

    def _reserve(self, number: int, leaf: Reserve) -> None:
        job = self._job(number, leaf.plan)
        if job.closed is not None or (leaf.stage, leaf.round) in job.rounds:
            raise LedgerCorrupt(f"leaf {number} charges a round a second time, or of a job that has ended")
        if job.rounds and next(reversed(job.rounds)) > (leaf.stage, leaf.round):
            raise LedgerCorrupt(f"leaf {number} charges a round after a later one")
        if leaf.plan not in self.datasets:
            raise LedgerCorrupt(f"leaf {number} charges a round before a DATASET leaf says what its job reads")
        place = Reservation(number, leaf.plan, leaf.stage, leaf.round)
        job.rounds[leaf.stage, leaf.round] = Round(place, leaf.event)
        self._open[place] = None

    def _charge(self, number: int, leaf: Plan | Carry) -> None:
        if leaf.plan in self.jobs or leaf.plan in self.carried:
            raise LedgerCorrupt(f"leaf {number} charges a job a second time")
        if isinstance(leaf, Plan):
            self.jobs[leaf.plan] = Job(number, leaf)
        else:
            self.carried[leaf.plan] = leaf

    def find(self, plan: bytes, stage: int, round: int) -> Round | None:  # noqa: A002
        """A charged round, or None."""
        job = self.jobs.get(plan)
        return job.rounds.get((stage, round)) if job else None

    @property
    def unresolved(self) -> tuple[Reservation, ...]:
        """The charged rounds of all jobs that have no end yet, in the order in which they were charged."""
        return tuple(self._open)

    def life(self) -> LifeSpend:
        """The sum of all allocations that count."""
        total = LifeSpend(0.0, 0.0, 0.0)
        for carried in self.carried.values():
            total = total.plus(carried)
        for job in self.jobs.values():
            total = total.plus(job.terms) if job.charged else total
        return total

    def _job(self, number: int, plan: bytes) -> Job:
        if plan not in self.jobs:
            raise LedgerCorrupt(f"leaf {number} belongs to no accepted plan")
        return self.jobs[plan]

    def _end(self, number: int, leaf: Commit | Abort | Release | Keep) -> None:
        entry = self.find(leaf.plan, leaf.stage, leaf.round)
        if entry is None:
            raise LedgerCorrupt(f"leaf {number} belongs to no charged round")
        if entry.end is not None:
            raise LedgerCorrupt(f"leaf {number} follows the end of its round")
        if isinstance(leaf, Commit):
            if entry.commit is not None or leaf.reserve != entry.reservation.leaf:
                raise LedgerCorrupt(f"leaf {number} commits a second time, or to another reservation")
            entry.commit = (number, leaf)
            return
        if isinstance(leaf, Release | Keep) and entry.commit is None:
            raise LedgerCorrupt(f"leaf {number} releases or keeps a round that was never committed")
        entry.end = (number, leaf)
        del self._open[entry.reservation]
