"""What becomes of a silo that was caught: the evidence is kept for good, the silo is left out (design section 6)."""

from __future__ import annotations

from aggregator.blobs import EVIDENCE, hash_of
from aggregator.events import Journal, StoreBlob
from aggregator.gather import bar
from aggregator.job import Job, Room
from aggregator.outcomes import note
from aggregator.session import Session


def keep_evidence(room: Room, session: Session) -> None:
    """Keep what came with offences and accusations; the journal says under which name."""
    for silo, data in session.evidence:
        room.effects += [
            StoreBlob(EVIDENCE, data),
            Journal(f"evidence {hash_of(data).hex()} is kept; it came with {silo}"),
        ]
    session.evidence.clear()


def punish(job: Job, room: Room, session: Session, *, broken: bool) -> None:
    """Count the faults of a session that is over. Where it came to a sum all the same, a first one is forgiven: it cost
    its sender the round and nobody else."""
    for silo, why in sorted(session.offenders.items()):
        # A restart forgives one fault, or a silo could spoil round after round under a new process each time.
        job.offences[silo] = job.offences.get(silo, 0) + 1
        if broken or job.offences[silo] > 1:
            note(room, bar(job, silo, session.boots[silo], why, lasting=job.offences[silo] > 1))
