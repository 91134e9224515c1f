"""The hospital's budget gate: nothing is read before the gate has let it pass, durably.

Its whole state is the ledger's leaves, replayed at start, so that a crash at any instant understates nothing. The
caps are the hospital's own; no call raises them and nothing that a coordinator sends reaches them.

Composition. Within a job, all events are fixed by the plan before it starts and are composed exactly (PLD). Across
jobs, which an operator chooses after seeing releases, the pre-allocated (epsilon_j, delta_j) add up (basic
composition, Dwork and Roth 2014, theorem 3.16; for adaptively chosen parameters Rogers et al. 2016). A job keeps its
whole allocation even when it stops early, since when it stops may depend on what it released.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from privacy.account import Account, LifeSpend, Reservation, Round, over_caps
from privacy.accounting import Epsilon, claim, epsilon, epsilon_alone
from privacy.errors import BudgetRefused, GateError
from privacy.events import Event, canonical, covers
from privacy.leaves import Abort, AbortReason, Caps, Commit, Dataset, Keep, Leaf, Plan, Release, Reserve
from privacy.ledger import Ledger
from privacy.rounds import LOCAL_STAGE

__all__ = ["AbortReason", "Caps", "Gate", "LifeSpend", "Reservation"]


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
        self._account = Account()
        for number, record in enumerate(ledger.leaves()):
            self._account.apply(number, record.leaf)

    # What may be asked.

    @property
    def unresolved(self) -> Reservation | None:
        """The one charged round that has no end yet."""
        return next(iter(self._account.unresolved), None)

    def spent(self, plan: bytes) -> Epsilon:
        """What the charged rounds of a job cost at the job's delta; zero for an unknown job."""
        job = self._account.jobs.get(plan)
        return epsilon(job.events(), job.terms.delta) if job else Epsilon(0.0, 0.0)

    def spent_alone(self, plan: bytes) -> Epsilon:
        """As `spent`, against an adversary who sees this silo's vectors unmasked."""
        job = self._account.jobs.get(plan)
        return epsilon_alone(job.events(), job.terms.delta) if job else Epsilon(0.0, 0.0)

    def spent_for_life(self) -> LifeSpend:
        """What counts against the caps for life: whole allocations, without those of jobs ended before any round."""
        return self._account.life()

    def reserved(self, plan: bytes, stage: int, round: int) -> Reservation | None:  # noqa: A002
        """The reservation of a round, whatever became of it, or None."""
        entry = self._account.find(plan, stage, round)
        return entry.reservation if entry else None

    def charged(self, plan: bytes) -> Iterator[tuple[int, int]]:
        """Stage and number of a job's charged rounds, newest first, whatever became of them."""
        return reversed(self._account.jobs[plan].rounds) if plan in self._account.jobs else iter(())

    def committed(self, plan: bytes, stage: int, round: int) -> int | None:  # noqa: A002
        """The number of a round's COMMIT leaf, or None."""
        entry = self._account.find(plan, stage, round)
        return entry.commit[0] if entry and entry.commit else None

    # What may be done.

    def set_caps(self, caps: Caps) -> None:
        """Let the hospital's changed limits count from the next `open_job` and `reserve` on."""
        self._caps = caps

    def record_dataset(
        self, plan: bytes, commitment: bytes, schema: bytes, *, patient: str, public_size: int, now_ms: int
    ) -> int:
        """Write a DATASET leaf, at every call and whatever it says; returns its number.

        Spend never depends on it: a data set that grows, is copied or is split again keeps what was charged.

        Args:
            plan: hash of the plan for which the records were read.
            commitment: to the records, with a fresh nonce (privacy.commitments).
            schema: hash of the plan's schema.
            patient: the hospital's patient column.
            public_size: the hospital's public approximate size.
            now_ms: milliseconds since the epoch.

        Raises:
            MalformedError: a value that no leaf may hold.
        """
        return self._write(Dataset(plan, commitment, schema, patient, public_size), now_ms)

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
        if plan in self._account.carried:
            raise BudgetRefused(f"the job {name} was charged in full for the ledger that was lost, and has ended")
        known = self._account.jobs.get(plan)
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
        self._check_caps(terms, self._account.life().plus(terms))
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
                rounds without a release, more than the plan's events, a cap (lowered since, perhaps) is passed, or
                no DATASET leaf says what the job reads.
        """
        job = self._account.jobs.get(plan)
        if job is None or job.closed is not None:
            raise BudgetRefused("the round belongs to no job that is open in this ledger")
        if plan not in self._account.datasets:
            raise BudgetRefused("no DATASET leaf names the records of this job")
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
        # The caps again: the hospital may have lowered them since it accepted the job.
        self._check_caps(job.terms, self._account.life())
        return Reservation(self._write(Reserve(plan, stage, round, event, model), now_ms), plan, stage, round)

    def commit(self, reservation: Reservation, update: bytes, *, now_ms: int) -> int:
        """Write that the round's update exists; `update` is a keyed commitment (privacy.commitments, 32 bytes).

        Again with the same commitment: the leaf that is there.

        Raises:
            GateError: not the reservation of a round that is open, or a second, different commitment.
        """
        entry = self._entry(reservation.plan, reservation.stage, reservation.round)
        if entry.reservation != reservation:
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
            GateError: the round is not committed, has ended otherwise, or is one that is kept.
        """
        entry = self._entry(plan, stage, round)
        if stage == LOCAL_STAGE:
            raise GateError("a round of the personal heads' stage has no release")
        leaf = Release(plan, stage, round, sum, model)
        if entry.end is not None:
            return _same(entry.end, leaf)
        if entry.commit is None:
            raise GateError("a round without a commitment has no release")
        return self._write(leaf, now_ms)

    def keep(self, plan: bytes, stage: int, round: int, *, now_ms: int) -> int:  # noqa: A002
        """Write that a round of the personal heads' stage came to its end: what it led to stays in the hospital. Again:
        the leaf that is there.

        Raises:
            GateError: another stage, or the round is not committed, or has ended otherwise.
        """
        entry = self._entry(plan, stage, round)
        if entry.reservation.stage != LOCAL_STAGE:
            raise GateError("only rounds of the personal heads' stage are kept")
        leaf = Keep(plan, stage, round)
        if entry.end is not None:
            return _same(entry.end, leaf)
        if entry.commit is None:
            raise GateError("a round without a commitment is not kept")
        return self._write(leaf, now_ms)

    def abort(self, plan: bytes, stage: int, round: int, reason: AbortReason, *, now_ms: int) -> int:  # noqa: A002
        """Write that a charged round ended without a release; it stays charged. Again: the leaf that is there.

        Raises:
            GateError: the round was never charged, or it was released or kept.
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
        job = self._account.jobs.get(plan)
        if job is None:
            raise GateError("there is no such job")
        if job.closed is not None:
            return job.closed
        if any(entry.end is None for entry in job.rounds.values()):
            raise GateError("a round of this job is unresolved")
        return self._write(Abort(plan, 0, 0, reason), now_ms)

    def _check_caps(self, terms: Plan, life: LifeSpend) -> None:
        excess = over_caps(terms, life, self._caps)
        if excess is not None:
            what, value, cap = excess
            raise BudgetRefused(f"the {what} would be {value:.6g}, above the hospital's cap of {cap:.6g}")

    def _entry(self, plan: bytes, stage: int, round: int) -> Round:  # noqa: A002
        entry = self._account.find(plan, stage, round)
        if entry is None:
            raise GateError(f"round {round} of stage {stage} was never charged")
        return entry

    def _write(self, leaf: Leaf, now_ms: int) -> int:
        number = self._ledger.append(leaf, now_ms=now_ms)
        self._account.apply(number, self._ledger.leaf(number))
        return number


def _same(there: tuple[int, Leaf], leaf: Leaf) -> int:
    if there[1] != leaf:
        raise GateError("the round has a different leaf of this kind already")
    return there[0]
