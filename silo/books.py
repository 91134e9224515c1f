"""The participant's use of the privacy ledger: budget, commitments, proofs to peers and of peers (design 7).

RESERVE is durable before the first record is read, COMMIT before R1 leaves. A charged round that came to nothing is
ended with an ABORT leaf; it stays charged.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from feddrm.contract.charge import Charge, round_event
from feddrm.contract.policy import Policy
from feddrm.contract.release import schema_hash
from feddrm.contract.schedule import STAGE_PERSONAL, place_of_tuning
from privacy.commitments import commit_update
from privacy.events import Event
from privacy.handover import Carry
from privacy.leaves import AbortReason, Caps, Dataset, Reserve
from privacy.leaves import Plan as PlanLeaf
from silo.context import Context, Work, commitment_key
from silo.effects import DataLoaded
from silo.state import Integers, Job

_ALLOCATED: Final = "allocated"


def origin_of(federation: str, silo: str) -> str:
    """The name of a silo's ledger, as its signed heads carry it."""
    return f"feddrm/{federation}/{silo}"


def _software() -> str:
    try:
        return f"feddrm-{version('feddrm')}"
    except PackageNotFoundError:
        return "unknown"


_CODE: Final = _software()


def caps_of(policy: Policy) -> Caps:
    """The budget's caps as the gate takes them."""
    budget = policy.budget
    return Caps(
        job_epsilon=budget.job_epsilon,
        job_epsilon_alone=budget.job_epsilon_alone,
        job_delta=budget.job_delta,
        life_epsilon=budget.life_epsilon,
        life_epsilon_alone=budget.life_epsilon_alone,
        life_delta=budget.life_delta,
        rounds_without_release=budget.rounds_without_release,
    )


class Books:
    """One silo's gate and ledger, in the terms of a job."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def set_caps(self, policy: Policy) -> None:
        """The hospital's limits as they are now; they hold from the next charge on."""
        self._context.gate.set_caps(caps_of(policy))

    def claimed(self, plan: bytes) -> tuple[float, float] | None:
        """(epsilon, epsilon without secure aggregation) of a job in this ledger, as claimed when it was accepted."""
        for record in self._context.ledger.leaves():
            if isinstance(record.leaf, PlanLeaf) and record.leaf.plan == plan:
                return record.leaf.epsilon, record.leaf.epsilon_alone
        return None

    def open_job(self, work: Work, cost: Charge, now_ms: int) -> None:
        """Charge a whole job for life.

        An earlier offer that was charged but never accepted gives its allocation back: nothing was read for it.

        Raises:
            BudgetRefused: a cap would be passed.
        """
        gate, state = self._context.gate, self._context.state
        allocated = state.fact(_ALLOCATED)
        if allocated and allocated != work.plan_hash:
            self.give_back(allocated, now_ms)
        # Durable before the leaf, so that a crash cannot leave an allocation behind that nobody gives back.
        state.set_fact(_ALLOCATED, work.plan_hash)
        gate.open_job(work.plan_hash, work.plan.name, cost.delta, cost.events, now_ms=now_ms, code=_CODE)

    def give_back(self, plan: bytes, now_ms: int) -> None:
        """End a job that was charged for but never accepted."""
        state = self._context.state
        if state.fact(_ALLOCATED) != plan:
            return
        if state.job(plan) is None and self.claimed(plan) is not None:
            self._context.gate.close_job(plan, AbortReason.STOPPED, now_ms=now_ms)
        state.set_fact(_ALLOCATED, b"")

    def record_dataset(self, work: Work, data: DataLoaded, now_ms: int) -> None:
        """Note which data is trained on from here, at every load, so that no leaf tells whether it changed."""
        number = self._context.gate.record_dataset(
            work.plan_hash,
            data.commitment,
            schema_hash(work.plan),
            patient=data.patient,
            public_size=data.public_size,
            now_ms=now_ms,
        )
        # Whoever may open the commitment one day needs it; it never leaves.
        self._context.state.set_fact(f"dataset {number}", data.nonce)

    def fixed(self) -> Dataset | Carry | None:
        """What the first load fixed for this silo's life, also that of a job of a ledger that was lost: the patient
        column and the public size."""
        leaves = (record.leaf for record in self._context.ledger.leaves())
        return next((leaf for leaf in leaves if isinstance(leaf, Dataset | Carry)), None)

    def behind(self, work: Work, job: Job) -> bool:
        """Whether the ledger knows of rounds that agent.db does not: then agent.db is an older copy.

        Such an agent does not know which sessions it masked an update in, or released shares in.
        """
        gate, state, following = self._context.gate, self._context.state, job.round + 1
        committed = gate.committed(work.plan_hash, work.stage(following), following) is not None
        if committed and state.update(job.plan, work.stage(following), following) is None:
            return True
        # Newest first: what was charged before the round after the job's last is no news.
        for stage, number in gate.charged(work.plan_hash):
            if stage == work.stage(number):
                return number > following
        return False

    def starts_from(self, work: Work, number: int) -> bytes | None:
        """Hash of the model for which a round was charged, or None if it was not."""
        reservation = self._context.gate.reserved(work.plan_hash, work.stage(number), number)
        if reservation is None:
            return None
        leaf = self._context.ledger.leaf(reservation.leaf)
        return leaf.model if isinstance(leaf, Reserve) else None

    def charged(self, work: Work, number: int) -> bool:
        """Whether a round was charged, by this process or one before it."""
        return self._context.gate.reserved(work.plan_hash, work.stage(number), number) is not None

    def reserve(self, work: Work, number: int, model: bytes, now_ms: int) -> None:
        """Charge a round, before anything is read. `model`: hash of the model that it starts from.

        Raises:
            BudgetRefused: over a cap, charged before, or another round is unresolved.
        """
        stage, event = work.stage(number), event_of(work, number)
        self._context.gate.reserve(work.plan_hash, stage, number, event, model=model, now_ms=now_ms)

    def commit(self, work: Work, number: int, q: Integers, now_ms: int) -> None:
        """Commit to a round's quantised update; again for the same update: nothing."""
        gate = self._context.gate
        reservation = gate.reserved(work.plan_hash, work.stage(number), number)
        if reservation is None:
            raise LookupError("an update exists whose round was never charged")
        key = commitment_key(self._context.state, self._context.entropy)
        update = commit_update(key, work.plan_hash, work.stage(number), number, q.astype("<i8").tobytes())
        gate.commit(reservation, update, now_ms=now_ms)

    def released(self, work: Work, number: int, total: bytes, model: bytes, now_ms: int) -> None:
        """A certified sum has this silo's update in it. Nothing if the round was not charged, or has ended."""
        gate = self._context.gate
        if gate.committed(work.plan_hash, work.stage(number), number) is None or not self._open(work, number):
            return
        gate.release(work.plan_hash, work.stage(number), number, sum=total, model=model, now_ms=now_ms)

    def abandon(self, work: Work, number: int, reason: AbortReason, now_ms: int) -> bool:
        """End a charged round without a release; True if there was one to end."""
        if not self._open(work, number):
            return False
        self._context.gate.abort(work.plan_hash, work.stage(number), number, reason, now_ms=now_ms)
        return True

    def close(self, work: Work, completed: bool, now_ms: int) -> None:
        """The job is over: end what is open, and the job itself if it stopped early."""
        gate = self._context.gate
        unresolved = gate.unresolved
        if unresolved is not None and unresolved.plan == work.plan_hash:
            gate.abort(unresolved.plan, unresolved.stage, unresolved.round, AbortReason.STOPPED, now_ms=now_ms)
        if not completed:
            gate.close_job(work.plan_hash, AbortReason.STOPPED, now_ms=now_ms)

    def tuning_charged(self, work: Work) -> bool:
        """Whether stage 3 of a job was charged."""
        return self._context.gate.reserved(work.plan_hash, *_tuning(work)) is not None

    def reserve_tuning(self, work: Work, model: bytes, now_ms: int) -> None:
        """Charge stage 3, before anything is read. `model`: hash of the state that it starts from.

        Raises:
            BudgetRefused: as `reserve`.
        """
        event = round_event(work.plan, STAGE_PERSONAL)
        if event is None:
            raise LookupError("the plan has no personal head")
        self._context.gate.reserve(work.plan_hash, *_tuning(work), event, model=model, now_ms=now_ms)

    def commit_tuning(self, work: Work, head: Integers, now_ms: int) -> None:
        """Commit to the tuned head, fixed point."""
        gate, (stage, number) = self._context.gate, _tuning(work)
        reservation = gate.reserved(work.plan_hash, stage, number)
        if reservation is None:
            raise LookupError("a head exists whose tuning was never charged")
        key = commitment_key(self._context.state, self._context.entropy)
        update = commit_update(key, work.plan_hash, stage, number, head.astype("<i8").tobytes())
        gate.commit(reservation, update, now_ms=now_ms)

    def keep_tuning(self, work: Work, now_ms: int) -> None:
        """The tuned head is in use and stays in the hospital."""
        self._context.gate.keep(work.plan_hash, *_tuning(work), now_ms=now_ms)

    def abandon_tuning(self, work: Work, reason: AbortReason, now_ms: int) -> bool:
        """End a charged tuning that has no end; True if there was one."""
        place = (work.plan_hash, *_tuning(work))
        if not self._unresolved(place):
            return False
        self._context.gate.abort(*place, reason, now_ms=now_ms)
        return True

    def _open(self, work: Work, number: int) -> bool:
        return self._unresolved((work.plan_hash, work.stage(number), number))

    def _unresolved(self, place: tuple[bytes, int, int]) -> bool:
        unresolved = self._context.gate.unresolved
        return unresolved is not None and (unresolved.plan, unresolved.stage, unresolved.round) == place


def _tuning(work: Work) -> tuple[int, int]:
    """Stage and number under which stage 3 stands in the ledger."""
    return STAGE_PERSONAL, place_of_tuning(work.plan)


def event_of(work: Work, number: int) -> Event:
    """What a round does to a patient.

    Raises:
        LookupError: the plan has no such round.
    """
    event = round_event(work.plan, work.stage(number))
    if event is None:
        raise LookupError("the plan has no such round to charge")
    return event
