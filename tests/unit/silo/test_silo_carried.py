"""What a running silo demands of a peer whose ledger was lost: the jobs that it saw charged, by its own memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from silo_harness import FEDERATION, NOW, Desk

from feddrm.contract.charge import charge
from privacy.errors import ForkFault, LedgerFault
from privacy.events import canonical
from privacy.handover import Carry, recovered_from
from privacy.leaves import Commit, Reserve
from privacy.ledger import Ledger
from privacy.note import open_head
from privacy.proofs import sighting_of
from privacy.witness import make_proof
from secagg.session import Announcement
from silo.books import event_of, origin_of
from silo.context import Work
from silo.peers import Heads
from silo.witnessing import Witnessing

OLD = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
ORIGIN = origin_of(FEDERATION, "alpha")


def charged(ledger: Ledger, announcement: Announcement, work: Work) -> bytes:
    """The announced round, charged and committed in this ledger; the proof of it."""
    event = event_of(work, announcement.round)
    reserve = ledger.append(
        Reserve(announcement.plan, announcement.stage, announcement.round, event, announcement.model), now_ms=NOW
    )
    commit = ledger.append(
        Commit(announcement.plan, announcement.stage, announcement.round, reserve, bytes(32)), now_ms=NOW
    )
    return make_proof(ledger, (reserve, commit, *ledger.succession()), ())


@pytest.mark.parametrize("carried", ["nothing", "too little", "in full"])
def test_a_peer_s_new_ledger_must_carry_what_was_seen_of_the_lost_one(desk: Desk, tmp_path: Path, carried: str) -> None:
    work, announcement = Work.of(desk.trial.signed_plan.signed.body), desk.announcement()
    beta = desk.houses["beta"]
    witnessing, heads = Witnessing(beta.context), Heads(beta.state)
    with Ledger.open(tmp_path / "lost.db", ORIGIN, OLD, now_ms=NOW) as lost:
        seen = charged(lost, announcement, work)
        head = lost.head()
    old = OLD.public_key().public_bytes_raw()
    heads.set_head("alpha", open_head(head, ORIGIN, old).size, head, old)
    heads.sight("alpha", announcement.plan, sighting_of(seen))
    cost = charge(work.plan)
    epsilon = cost.epsilon / (2 if carried == "too little" else 1)
    figures = cost.delta, epsilon, cost.epsilon_alone, canonical(cost.events)
    carry = Carry(work.plan_hash, work.plan.name, *figures, work.plan.schema_.patient, 100)
    leaves = [recovered_from(open_head(head, ORIGIN, old), old), *([] if carried == "nothing" else [carry])]
    key = desk.trial.keys["alpha"].identity
    with Ledger.begin_again(tmp_path / "new.db", ORIGIN, key, leaves, now_ms=NOW) as ledger:
        proof = charged(ledger, announcement, work)
        if carried == "in full":
            witnessing.witness(work, "alpha", proof, announcement)
            witnessing.keep()
            assert heads.head("alpha") == (ledger.head(), key.public_key().public_bytes_raw())
            return
        with pytest.raises(LedgerFault, match="job first"):
            witnessing.witness(work, "alpha", proof, announcement)
    assert heads.head("alpha") == (head, old), "what was seen before is not forgotten"


def test_a_peer_that_shows_two_ledgers_is_caught_before_anything_was_written(desk: Desk, tmp_path: Path) -> None:
    """Two attempts in a row, of which the first ended before this silo wrote what it had seen."""
    work, announcement = Work.of(desk.trial.signed_plan.signed.body), desk.announcement()
    beta = desk.houses["beta"]
    witnessing, key = Witnessing(beta.context), desk.trial.keys["alpha"].identity
    with Ledger.open(tmp_path / "one.db", ORIGIN, key, now_ms=NOW) as ledger:
        witnessing.witness(work, "alpha", charged(ledger, announcement, work), announcement)
    with Ledger.open(tmp_path / "other.db", ORIGIN, key, now_ms=NOW + 86_400_000) as ledger:
        proof = charged(ledger, announcement, work)
        with pytest.raises(ForkFault, match="two different heads"):
            witnessing.witness(work, "alpha", proof, announcement)
    assert Heads(beta.state).head("alpha") is None
