"""What becomes of a silo that was caught: the evidence is kept for good, the silo is left out (design section 6).

Evidence in an accusation is judged as anybody could judge it (secagg.evidence): it convicts the accused, or an accuser
that made it up, and never an honest silo. Where nothing is proven, more accusers than can collude convict as well: one
of them is honest. What is neither is a quarrel, and aggregator.aborting settles it.
"""

from __future__ import annotations

from aggregator.blobs import CASES, EVIDENCE
from aggregator.events import Journal, StoreBlob
from aggregator.gather import bar
from aggregator.job import Job, Room
from aggregator.outcomes import note
from aggregator.session import Session
from feddrm.contract.case import Case
from feddrm.contract.chunks import blob_hash
from feddrm.contract.codec import FRAME
from secagg.evidence import Verdict, judge
from secagg.wire import Frame


def keep_evidence(job: Job, room: Room, session: Session) -> None:
    """Keep what came with offences and accusations, and beside each piece a file that an auditor can judge with nothing
    but the federation's root; the journal says under which names."""
    for silo, found in session.evidence:
        data = FRAME.encode(found) if isinstance(found, Frame) else found
        case = Case(session.frame.body, found, job.signed_roster.to_json()).to_json().encode()
        room.effects += [
            StoreBlob(EVIDENCE, data),
            StoreBlob(CASES, case),
            Journal(
                f"evidence {blob_hash(data).hex()} came with {silo}; judge it: feddrm-audit evidence"
                f" blobs/{CASES}/{blob_hash(case).hex()} --root federation.root"
            ),
        ]
    session.evidence.clear()


def verdicts(session: Session) -> dict[str, Verdict]:
    """Whom the evidence in members' aborts proves guilty, by the silo that sent it."""
    found = {
        silo: judge(frame, session.frame.body, session.keys)
        for silo, frame in sorted(session.aborts.items())
        if frame.attachment
    }
    return {silo: verdict for silo, verdict in found.items() if verdict.guilty}


def outvoted(job: Job, session: Session, settled: frozenset[str]) -> dict[str, str]:
    """Whom more members blame, over the sessions of this job, than can collude: (silo: why). c colluders can do nothing
    with it against a silo that no honest one blames, and voices that have led to an offence are not counted again, so
    that they cannot repeat an honest silo's accident either."""
    found = {}
    for silo, said in sorted(session.said.items()):
        if said.blamed in session.boots and said.blamed not in session.punished and silo not in settled:
            job.accusers.setdefault(said.blamed, set()).add(silo)
    for accused in sorted({said.blamed for said in session.said.values()} & job.accusers.keys() - session.punished):
        voices = job.accusers[accused]
        if len(voices) > job.plan.secure_aggregation.colluders:
            reason = next(said.reason for _, said in sorted(session.said.items()) if said.blamed == accused)
            found[accused] = f"{len(voices)} silos blame it, saying: {reason}"
            del job.accusers[accused]
    return found


def punish(job: Job, room: Room, session: Session, *, broken: bool) -> frozenset[str]:
    """Count the faults of a session, and leave out who committed them. Where it came to a sum all the same, a first
    fault that cost its sender the round and nobody else is forgiven; one that drove others out is not.

    Called again when more accusations have come, it adds what they prove.

    Returns:
        the silos whose accusation is settled by proof.
    """
    keep_evidence(job, room, session)
    proven = verdicts(session)
    settled = frozenset(proven)
    guilty = outvoted(job, session, settled) | {verdict.guilty: verdict.reason for verdict in proven.values()}
    for silo, why in sorted((session.offenders | guilty).items()):
        if silo in session.punished:
            continue
        session.punished.add(silo)
        # A restart forgives one fault, or a silo could spoil round after round under a new process each time.
        job.offences[silo] = job.offences.get(silo, 0) + 1
        if broken or silo in guilty or job.offences[silo] > 1:
            note(room, bar(job, silo, session.boots[silo], why, lasting=job.offences[silo] > 1))
    return settled
