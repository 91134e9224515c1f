"""Evidence vectors: what a judge who knows R0 and the roster finds, for true, false and forged accusations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vectors_inputs import Entropy
from vectors_mutations import CULPRIT, OBSERVER, OTHER, Forger, flipped
from vectors_replay import Json, Replay
from vectors_session import frame_json

from secagg import labels
from secagg.aborts import abort_frame
from secagg.bodies import Dealt, Opening, Shares
from secagg.checks import Roll, dealt_by, roll_of, share_hash
from secagg.evidence import judge
from secagg.exhibits import Complaint, Conflict, Exhibit, Loose, WrongFrame, WrongOpening, WrongSecret, encode_exhibit
from secagg.hashing import blob_hash
from secagg.shamir import split
from secagg.wire import Frame, Step

NOBODY = ""


@dataclass(frozen=True)
class Claim:
    """An exhibit, and who is guilty of what by it."""

    name: str
    exhibit: Exhibit | bytes
    guilty: str

    @property
    def evidence(self) -> bytes:
        """The exhibit's bytes."""
        return self.exhibit if isinstance(self.exhibit, bytes) else encode_exhibit(self.exhibit)


class Court:
    """What the exhibits about one session are made of."""

    def __init__(self, base: Replay, other: Replay) -> None:
        self.base, self.forger, self.other = base, Forger(base), other
        self.roll: Roll = roll_of(base.relayed(Step.KEYS, OBSERVER))
        self.dealt: Roll = dealt_by(base.relayed(Step.SHARES, OBSERVER))
        self.masked: Roll = tuple(
            (frame.sender, self.forger.body(Step.MASKED, frame.sender).vector)
            for frame in base.relayed(Step.MASKED, OBSERVER)
        )

    def frame(self, step: Step, name: str = CULPRIT) -> Frame:
        """An honest frame, as evidence holds it."""
        return self.base.sent[step][name].without_attachment()

    def private(self, name: str, peer: str) -> bytes:
        """A silo's transport key for a peer: the first draws are those, in the order of the cohort."""
        peers = [other for other in self.base.announcement.cohort if other != name]
        return bytes.fromhex(self.base.session["entropy"][name]["draws"][peers.index(peer)])

    def complaint(self) -> Complaint:
        """silo-0's complaint about what silo-1 dealt to it, which is in order."""
        return Complaint(
            self.frame(Step.KEYS),
            self.frame(Step.KEYS, OBSERVER),
            self.frame(Step.SHARES),
            self.roll,
            self.base.ciphertext(CULPRIT, OBSERVER),
            self.private(OBSERVER, CULPRIT),
        )


def complaints(court: Court) -> Iterator[Claim]:
    """About a ciphertext."""
    honest, forger = court.complaint(), court.forger
    body: Shares = forger.body(Step.SHARES, CULPRIT)
    garbage = bytes(len(honest.ciphertext))
    entry = replace(body.dealt[0], ciphertext=blob_hash(garbage))
    bad = forger.sign(Step.SHARES, CULPRIT, replace(body, dealt=(entry, *body.dealt[1:])).encode())
    own = forger.body(Step.KEYS, OBSERVER)
    stranger = bytes.fromhex(court.other.session["entropy"][OBSERVER]["draws"][0])
    swapped = court.other.sent[Step.KEYS][OBSERVER].without_attachment()
    yield Claim("garbage", replace(honest, shares=bad, ciphertext=garbage), CULPRIT)
    yield Claim("what-opens-rightly", honest, NOBODY)
    yield Claim("another-ciphertext-than-signed", replace(honest, ciphertext=garbage), NOBODY)
    yield Claim("another-private-key", replace(honest, private=court.private(OBSERVER, OTHER)), NOBODY)
    yield Claim("a-private-key-of-another-session", replace(honest, private=stranger), NOBODY)
    yield Claim("an-r1-of-another-announcement", replace(honest, accuser_keys=swapped, private=stranger), NOBODY)
    late = forger.sign(Step.KEYS, OBSERVER, replace(own, transport=(swapped_key(court), *own.transport[1:])).encode())
    unseen = replace(honest, accuser_keys=late, private=stranger)
    yield Claim("a-second-r1-that-is-not-in-the-session", unseen, NOBODY)
    roll = roll_of([late, *court.base.relayed(Step.KEYS, OBSERVER)[1:]])
    yield Claim(
        "an-r1-exchanged-in-the-roll-too", replace(honest, accuser_keys=late, roll=roll, private=stranger), NOBODY
    )
    yield Claim("a-roll-without-the-dealer", replace(honest, roll=court.roll[2:]), NOBODY)
    yield Claim("what-was-dealt-to-another", replace(honest, ciphertext=court.base.ciphertext(CULPRIT, OTHER)), NOBODY)


def swapped_key(court: Court) -> bytes:
    """silo-0's first transport key of another session."""
    return Forger(court.other).body(Step.KEYS, OBSERVER).transport[0]


def frames(court: Court) -> Iterator[Claim]:
    """About one frame, or two that exclude each other."""
    forger, roll = court.forger, court.roll
    shares, unmask = court.frame(Step.SHARES), court.frame(Step.UNMASK)
    trailing = forger.sign(Step.SHARES, CULPRIT, shares.body + b"\0")
    second = forger.second(Step.SHARES, CULPRIT).without_attachment()
    other = forger.second(Step.UNMASK, CULPRIT).without_attachment()
    yield Claim("a-malformed-frame", WrongFrame(trailing, roll), CULPRIT)
    yield Claim("a-malformed-frame-unsigned", WrongFrame(replace(trailing, signature=bytes(64)), roll), NOBODY)
    yield Claim("an-honest-frame", WrongFrame(shares, roll), NOBODY)
    yield Claim("a-malformed-frame-of-another-session", WrongFrame(trailing, roll[1:]), NOBODY)
    yield Claim("two-r2", Conflict(shares, second, roll), CULPRIT)
    yield Claim("one-r2-twice", Conflict(shares, shares, roll), NOBODY)
    yield Claim("r2-of-two-silos", Conflict(shares, court.frame(Step.SHARES, OTHER), roll), NOBODY)
    yield Claim("r2-and-r3", Conflict(shares, court.frame(Step.MASKED), roll), NOBODY)
    yield Claim("r4-and-another-r5", Conflict(court.frame(Step.CONSISTENCY), other, roll), CULPRIT)
    yield Claim("r4-and-its-r5", Conflict(court.frame(Step.CONSISTENCY), unmask, roll), NOBODY)
    for released in (False, True):
        abort = abort_frame(
            announcement=bytes.fromhex(court.base.values["announced"]),
            me=CULPRIT,
            signer=court.base.signers[CULPRIT],
            released=released,
            reason="restarted",
        )
        name = "r5-and-an-abort-that-tells-of-it" if released else "r5-and-an-abort-that-denies-it"
        yield Claim(name, Conflict(unmask, abort, roll), NOBODY if released else CULPRIT)
    yield Claim("r1-of-two-announcements", Conflict(court.frame(Step.KEYS), other_keys(court), ()), NOBODY)


def other_keys(court: Court) -> Frame:
    """silo-1's R1 of another session."""
    return court.other.sent[Step.KEYS][CULPRIT].without_attachment()


def openings(court: Court) -> Iterator[Claim]:
    """About shares at R5."""
    forger = court.forger
    unmask, shares = court.frame(Step.UNMASK), court.frame(Step.SHARES, OTHER)
    body = forger.body(Step.UNMASK, CULPRIT)
    good = body.openings[3]
    lie = Opening(flipped(good.share, -1), good.salt)
    bad = forger.sign(
        Step.UNMASK, CULPRIT, replace(body, openings=(*body.openings[:3], lie, body.openings[4])).encode()
    )
    fewer = forger.sign(Step.UNMASK, CULPRIT, replace(body, openings=body.openings[:4]).encode())
    proof = WrongOpening(bad, shares, court.roll, court.dealt, court.masked)
    yield Claim("an-altered-share", proof, CULPRIT)
    yield Claim("too-few-openings", replace(proof, unmask=fewer, shares=fewer), CULPRIT)
    yield Claim("the-share-that-was-dealt", replace(proof, unmask=unmask), NOBODY)
    yield Claim("an-altered-share-under-other-survivors", replace(proof, masked=court.masked[:3]), NOBODY)
    owner: Shares = forger.body(Step.SHARES, OTHER)
    entry = replace(owner.dealt[1], seed_share=hashlib.sha256(b"another share").digest())
    forged = replace(owner, dealt=(owner.dealt[0], entry, *owner.dealt[2:]))
    forked = forger.sign(Step.SHARES, OTHER, forged.encode())
    yield Claim("against-an-r2-that-nobody-masked-under", replace(proof, unmask=unmask, shares=forked), NOBODY)


def secrets(court: Court) -> Iterator[Claim]:
    """About shares that do not give what was committed to."""
    announcement, sid = court.base.announcement, bytes.fromhex(court.base.values["session"])
    u1 = court.base.values["u1"]
    entropy = Entropy("evidence/another-secret")
    given = split(entropy(32), announcement.threshold, len(u1), entropy)
    made = [Opening(share, entropy(32)) for share in given]
    body: Shares = court.forger.body(Step.SHARES, CULPRIT)
    entries: list[Dealt] = []
    for holder, opening, entry in zip(u1, made, body.dealt, strict=True):
        hashed = share_hash(labels.SELF_SHARE, sid, CULPRIT, holder, opening.share, opening.salt)
        entries.append(replace(entry, seed_share=hashed))
    shares = court.forger.sign(Step.SHARES, CULPRIT, replace(body, dealt=tuple(entries)).encode())
    held = tuple(zip(u1, made, strict=True))
    proof = WrongSecret(court.frame(Step.KEYS), shares, court.roll, False, held[:4])
    yield Claim("shares-of-another-seed", proof, CULPRIT)
    yield Claim("shares-of-another-seed-but-fewer-than-t", replace(proof, openings=held[:3]), NOBODY)
    yield Claim("shares-of-another-seed-but-more-than-t", replace(proof, openings=held), NOBODY)
    lie = ("silo-4", Opening(flipped(made[4].share, -1), made[4].salt))
    yield Claim("a-share-that-was-not-dealt", replace(proof, openings=(*held[:3], lie)), NOBODY)
    yield Claim("shares-called-those-of-a-mask-key", replace(proof, mask_key=True), NOBODY)
    names = ("silo-0", "silo-1", "silo-3", "silo-4")
    true = tuple((name, court.forger.body(Step.UNMASK, name).openings[1]) for name in names)
    honest = replace(proof, shares=court.frame(Step.SHARES), openings=true)
    yield Claim("shares-of-the-right-seed", honest, NOBODY)
    dropped = tuple((name, court.forger.body(Step.UNMASK, name).openings[2]) for name in names)
    keys, dealt = court.frame(Step.KEYS, "silo-2"), court.frame(Step.SHARES, "silo-2")
    yield Claim("shares-of-the-right-mask-key", WrongSecret(keys, dealt, court.roll, True, dropped), NOBODY)


def malformed(court: Court) -> Iterator[Claim]:
    """Bytes that are no evidence."""
    good = encode_exhibit(Conflict(court.frame(Step.SHARES), court.frame(Step.SHARES, OTHER), court.roll))
    yield Claim("nothing", b"", NOBODY)
    yield Claim("no-label", good[1:], NOBODY)
    yield Claim("truncated", good[:-1], NOBODY)
    yield Claim("trailing-byte", good + b"\0", NOBODY)
    yield Claim("unknown-kind", good[: len(labels.EVIDENCE)] + b"\xff" + good[len(labels.EVIDENCE) + 1 :], NOBODY)
    yield Claim("frames-for-people", Loose((court.base.sent[Step.ANNOUNCE][""],)), NOBODY)


def claim_case(court: Court, claim: Claim) -> Json:
    """The judge's verdict on an exhibit, and on an abort with which silo-0 accuses silo-1 by it."""
    base = court.base
    abort = abort_frame(
        announcement=bytes.fromhex(base.values["announced"]),
        me=OBSERVER,
        signer=base.signers[OBSERVER],
        released=False,
        reason="accused",
        blamed=CULPRIT,
        evidence=claim.evidence,
    )
    body = base.sent[Step.ANNOUNCE][""].body
    guilty, accused = (judge(item, body, base.members).guilty for item in (claim.evidence, abort))
    if guilty != claim.guilty:
        raise AssertionError(f"evidence {claim.name}: {guilty or 'nobody'} is guilty")
    return {
        "name": claim.name,
        "evidence": claim.evidence.hex(),
        "guilty": guilty,
        "abort": frame_json(replace(abort, attachment=b"")),
        "guilty_by_abort": accused,
    }


def evidence_cases(base: Replay, other: Replay) -> list[Json]:
    """All of them. `other` is another session of the same silos."""
    court = Court(base, other)
    parts = (complaints, frames, openings, secrets, malformed)
    return [claim_case(court, claim) for part in parts for claim in part(court)]
