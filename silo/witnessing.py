"""What silos show each other of their ledgers in every round, and what this one remembers of it (design 7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from feddrm.contract.charge import charge
from feddrm.contract.documents import parse_body
from feddrm.contract.plan import Plan, plan_hash
from privacy.events import canonical
from privacy.note import open_head
from privacy.proofs import MAXIMUM_LEAVES, sighting_of
from privacy.succession import Owed
from privacy.witness import check_proof, make_proof
from secagg.session import Announcement
from silo.books import event_of, origin_of
from silo.context import Context, Work
from silo.peers import Heads
from silo.state import State

SHOWN: Final = "heads shown"
_REMEMBERED: Final = 16
# So many of them are proven unasked. The coordinator asks for what peers report and for all that it relayed in a round,
# so these matter only after it forgot; and each costs every peer a path in every round.
_UNASKED: Final = 4


def shown_sizes(state: State) -> frozenset[int]:
    """Sizes of the ledger, in leaves, that this silo showed to its peers of late."""
    return frozenset(int(size) for size in (state.fact(SHOWN) or b"").split())


@dataclass(frozen=True, slots=True)
class Witnessed:
    """A peer's newest head, the key that signed it, and the proof in it that the peer charged a job."""

    size: int
    note: bytes
    key: bytes
    plan: bytes
    sighting: bytes


class Witnessing:
    """Proofs of one silo's ledger for its peers, and of theirs for it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._heads = Heads(context.state)
        # What `keep` is to write.
        self._seen: dict[str, Witnessed] = {}

    def proof(self, work: Work, number: int, sizes: tuple[int, ...]) -> bytes:
        """What R1 carries: the newest head with this round's RESERVE and COMMIT, and that it extends what peers know.

        Peers know the `sizes` that the coordinator relays, and what this silo showed in the last sessions itself: a
        retry may come before anybody could report that.
        """
        gate, ledger = self._context.gate, self._context.ledger
        reservation = gate.reserved(work.plan_hash, work.stage(number), number)
        commit = gate.committed(work.plan_hash, work.stage(number), number)
        if reservation is None or commit is None:
            raise LookupError("a round is joined that was not charged and committed")
        shown = shown_sizes(self._context.state)
        recent = sorted(shown | {ledger.size})[-_REMEMBERED:]
        # Durable before R3 at the latest, the first message that anybody builds on. What the loss of power takes of it
        # before, peers that saw the proof still hold against an older ledger, and an honest coordinator asks for.
        with self._context.state.soon():
            self._context.state.set_fact(SHOWN, " ".join(map(str, recent)).encode())
        succession = ledger.succession()[-(MAXIMUM_LEAVES - 2) :]
        return make_proof(ledger, (reservation.leaf, commit, *succession), sizes, sorted(shown)[-_UNASKED:])

    def witness(self, work: Work, peer: str, proof: bytes, announcement: Announcement) -> None:
        """Check a peer's proof, and remember its head and the proof that it charged this job; `keep` writes that.

        Raises:
            LedgerFault: the peer's ledger is at fault.
            UnaskedFault: the coordinator is.
        """
        origin = origin_of(self._context.federation, peer)
        key = self._context.identities((peer,))[peer]
        seen = self._seen.get(peer)
        known = self._heads.head(peer) if seen is None else (seen.note, seen.key)
        note = check_proof(
            proof,
            origin=origin,
            key=key,
            witnessed=known and known[0],
            witnessed_key=known and known[1],
            owed=() if known is None or known[1] == key else owed_by(self._context.state, peer),
            plan=announcement.plan,
            stage=announcement.stage,
            round=announcement.round,
            event=event_of(work, announcement.round),
            model=announcement.model,
        )
        size = open_head(note, origin, key).size
        self._seen[peer] = Witnessed(size, note, key, announcement.plan, sighting_of(proof))

    def keep(self) -> None:
        """Write what was seen of peers' ledgers, by one write."""
        if not self._seen:
            return
        with self._context.state.transaction():
            for peer, seen in self._seen.items():
                self._heads.set_head(peer, seen.size, seen.note, seen.key)
                self._heads.sight(peer, seen.plan, seen.sighting)
        self._seen = {}

    def witnessed(self) -> dict[str, int]:
        """How many leaves the newest head has that this silo saw of each peer's ledger; it is written first, as what
        was said to have been seen must be known after a kill."""
        self.keep()
        return {peer: size for peer, (size, _) in self._heads.heads().items()}


def owed_by(state: State, peer: str) -> Iterator[Owed]:
    """Jobs that this silo saw a peer charge, at what their signed plans cost; a new ledger must carry them."""
    sighted = set(Heads(state).sighted(peer))
    for signed in state.plans():
        if plan_hash(signed.body) not in sighted:
            continue
        plan = parse_body(signed.body, Plan, what="A plan of this silo's own")
        cost = charge(plan)
        figures = cost.delta, cost.epsilon, cost.epsilon_alone
        yield Owed(plan_hash(signed.body), plan.name, *figures, canonical(cost.events), plan.schema_.patient)
