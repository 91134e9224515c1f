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
from privacy.commitments import commit_update
from privacy.events import Event
from privacy.leaves import AbortReason, Caps
from privacy.note import open_head
from privacy.witness import check_proof, make_proof
from secagg.session import Announcement
from silo.context import Context, Work, commitment_key
from silo.effects import Int64s
from silo.peers import Heads

_SHOWN: Final = "heads shown"
_REMEMBERED: Final = 16


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
        life_epsilon=budget.life_epsilon,
        life_epsilon_alone=budget.life_epsilon_alone,
        life_delta=budget.life_delta,
        rounds_without_release=budget.rounds_without_release,
    )


class Books:
    """One silo's gate and ledger, in the terms of a job."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._heads = Heads(context.state)

    def open_job(self, work: Work, cost: Charge, now_ms: int) -> None:
        """Charge a whole job for life.

        Raises:
            BudgetRefused: a cap would be passed.
        """
        self._context.gate.open_job(work.plan_hash, work.plan.name, cost.delta, cost.events, now_ms=now_ms, code=_CODE)

    def record_dataset(self, work: Work, commitment: bytes, now_ms: int) -> None:
        """Note which data is trained on from here; no leaf if it is what the newest DATASET leaf says."""
        self._context.gate.record_dataset(commitment, schema_hash(work.plan), now_ms=now_ms)

    def charged(self, work: Work, number: int) -> bool:
        """Whether a round was charged, by this process or one before it."""
        return self._context.gate.reserved(work.plan_hash, work.stage, number) is not None

    def reserve(self, work: Work, number: int, model: bytes, now_ms: int) -> None:
        """Charge a round, before anything is read. `model`: hash of the model that it starts from.

        Raises:
            BudgetRefused: over a cap, charged before, or another round is unresolved.
        """
        self._context.gate.reserve(work.plan_hash, work.stage, number, event_of(work), model=model, now_ms=now_ms)

    def commit(self, work: Work, number: int, q: Int64s, now_ms: int) -> None:
        """Commit to a round's quantised update; again for the same update: nothing."""
        gate = self._context.gate
        reservation = gate.reserved(work.plan_hash, work.stage, number)
        if reservation is None:
            raise LookupError("an update exists whose round was never charged")
        key = commitment_key(self._context.state, self._context.entropy)
        update = commit_update(key, work.plan_hash, work.stage, number, q.astype("<i8").tobytes())
        gate.commit(reservation, update, now_ms=now_ms)

    def released(self, work: Work, number: int, total: bytes, model: bytes, now_ms: int) -> None:
        """The sum of a round that this silo may be in is public. Nothing if the round was not charged, or has ended."""
        gate = self._context.gate
        if gate.committed(work.plan_hash, work.stage, number) is None or not self._open(work, number):
            return
        gate.release(work.plan_hash, work.stage, number, sum=total, model=model, now_ms=now_ms)

    def abandon(self, work: Work, number: int, reason: AbortReason, now_ms: int) -> bool:
        """End a charged round without a release; True if there was one to end."""
        if not self._open(work, number):
            return False
        self._context.gate.abort(work.plan_hash, work.stage, number, reason, now_ms=now_ms)
        return True

    def close(self, work: Work, completed: bool, now_ms: int) -> None:
        """The job is over: end what is open, and the job itself if it stopped early."""
        gate = self._context.gate
        unresolved = gate.unresolved
        if unresolved is not None and unresolved.plan == work.plan_hash:
            gate.abort(unresolved.plan, unresolved.stage, unresolved.round, AbortReason.STOPPED, now_ms=now_ms)
        if not completed:
            gate.close_job(work.plan_hash, AbortReason.STOPPED, now_ms=now_ms)

    def proof(self, work: Work, number: int, sizes: tuple[int, ...]) -> bytes:
        """What R1 carries: the newest head with this round's RESERVE and COMMIT, and that it extends what peers know.

        Peers know the `sizes` that the coordinator relays, and what this silo showed in the last sessions itself: a
        retry may come before anybody could report that.
        """
        gate, ledger = self._context.gate, self._context.ledger
        reservation = gate.reserved(work.plan_hash, work.stage, number)
        commit = gate.committed(work.plan_hash, work.stage, number)
        if reservation is None or commit is None:
            raise LookupError("a round is joined that was not charged and committed")
        shown = {int(size) for size in (self._context.state.fact(_SHOWN) or b"").split()}
        recent = sorted(shown | {ledger.size})[-_REMEMBERED:]
        self._context.state.set_fact(_SHOWN, " ".join(map(str, recent)).encode())
        return make_proof(ledger, (reservation.leaf, commit), {*sizes, *shown})

    def witness(self, work: Work, peer: str, proof: bytes, announcement: Announcement) -> None:
        """Check a peer's proof and keep its head, durably.

        Raises:
            LedgerFault: the peer's ledger is at fault.
        """
        origin = origin_of(self._context.federation, peer)
        key = self._context.identities((peer,))[peer]
        note = check_proof(
            proof,
            origin=origin,
            key=key,
            witnessed=self._heads.head(peer),
            plan=announcement.plan,
            stage=announcement.stage,
            round=announcement.round,
            event=event_of(work),
        )
        self._heads.set_head(peer, open_head(note, origin, key).size, note)

    def _open(self, work: Work, number: int) -> bool:
        unresolved = self._context.gate.unresolved
        place = (work.plan_hash, work.stage, number)
        return unresolved is not None and (unresolved.plan, unresolved.stage, unresolved.round) == place


def event_of(work: Work) -> Event:
    """What one round of a plan does to a patient.

    Raises:
        LookupError: the plan has no rounds.
    """
    event = round_event(work.plan)
    if event is None:
        raise LookupError("a plan without rounds has no round to charge")
    return event
