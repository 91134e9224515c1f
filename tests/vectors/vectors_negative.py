"""Every fault of the negative vectors, by the step whose frames the receiver is given."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from vectors_mutations import (
    CULPRIT,
    OBSERVER,
    OTHER,
    Fault,
    Forger,
    dealt,
    flipped,
    keys_changes,
    opened,
    publish,
    sums,
    swapped,
    without,
)
from vectors_replay import STEPS, Frames, Json, Replay

from secagg.bodies import Dealt, Opening, Publish
from secagg.hashing import blob_hash
from secagg.session import Announcement
from secagg.wire import Frame, Step

RELAYED = STEPS[:4]
ATTACHMENT = {
    Step.KEYS: "ledger proof",
    Step.SHARES: "wrong length",
    Step.MASKED: "masked vector",
    Step.CONSISTENCY: "none belongs",
    Step.UNMASK: "none belongs",
}


# Silos


def relayed_faults(base: Replay, step: Step) -> Iterator[Fault]:
    """What every relayed step can have wrong, R1 to R4."""
    forger, honest = Forger(base), base.relayed(step, OBSERVER)
    for name, frame, blamed, match in forger.forgeries(step):
        shown = frame if step == Step.KEYS else replace(frame, attachment=_part(base, step, frame))
        yield Fault(name, swapped(honest, shown), blamed, match)
    twin = next(frame for frame in honest if frame.sender == CULPRIT)
    second = replace(forger.second(step, CULPRIT), attachment=twin.attachment)
    yield Fault("twice", (*honest, twin), "", "two")
    yield Fault("two-different", (*honest, second), CULPRIT, "two")
    yield Fault("another-request-afterwards", without(honest, CULPRIT), "", "second, different", first=True)
    yield Fault("two-different-afterwards", swapped(honest, second), CULPRIT, "two different messages", first=True)
    if step == Step.CONSISTENCY:
        yield Fault("too-few", honest[:3], "", "signers")
        return
    own = replace(forger.second(step, OBSERVER), attachment=honest[0].attachment)
    yield Fault("own-left-out", without(honest, OBSERVER), "", "this silo sent")
    yield Fault("own-exchanged", swapped(honest, own, OBSERVER), "", "this silo sent")
    yield Fault("too-few", honest[:3], "", "at least")


def _part(base: Replay, step: Step, frame: Frame) -> bytes:
    return base.ciphertext(CULPRIT, OBSERVER) if step == Step.SHARES else b""


def keys_faults(base: Replay) -> Iterator[Fault]:
    """R1."""
    forger, honest = Forger(base), base.relayed(Step.KEYS, OBSERVER)
    for name, change, match in keys_changes(forger):
        yield Fault(name, swapped(honest, forger.changed(Step.KEYS, **change)), CULPRIT, match)
    other = replace(forger.frame(Step.KEYS, CULPRIT), attachment=b"another proof")
    yield Fault("another-ledger-proof", swapped(honest, other), "", "ledger proof")


def shares_faults(base: Replay) -> Iterator[Fault]:
    """R2."""
    forger, honest = Forger(base), base.relayed(Step.SHARES, OBSERVER)
    body, mine = forger.body(Step.SHARES, CULPRIT), base.ciphertext(CULPRIT, OBSERVER)
    frame = replace(forger.frame(Step.SHARES, CULPRIT), attachment=mine)

    def show(new: Frame) -> Frames:
        return swapped(honest, new)

    yield Fault("altered-ciphertext", show(replace(frame, attachment=flipped(mine, 0))), "", "other than")
    yield Fault("no-ciphertext", show(replace(frame, attachment=b"")), "", "other than")
    others = base.ciphertext(CULPRIT, OTHER)
    yield Fault("ciphertext-of-another-silo", show(replace(frame, attachment=others)), "", "other than")
    for name, garbage, match in (
        ("garbage-dealt", bytes(len(mine)), "does not open"),
        ("altered-ciphertext-signed", flipped(mine, 0), "does not open"),
        ("altered-authenticator-signed", flipped(mine, -1), "does not open"),
        ("ciphertext-of-another-silo-signed", others, "does not open"),
        ("short-ciphertext-signed", mine[:-1], "wrong length"),
    ):
        entries = dealt(body, 0, ciphertext=blob_hash(garbage))
        yield Fault(name, show(forger.changed(Step.SHARES, garbage, dealt=entries)), CULPRIT, match)
    for field, match in (("seed_share", "self mask seed"), ("key_share", "mask key")):
        entries = dealt(body, 0, **{field: hashlib.sha256(b"another share").digest()})
        new = forger.changed(Step.SHARES, mine, dealt=entries)
        yield Fault(f"another-{field.replace('_', '-')}-than-signed", show(new), CULPRIT, match)
    another = hashlib.sha256(b"another tag secret").digest()
    yield Fault(
        "another-tag-secret-than-signed",
        show(forger.changed(Step.SHARES, mine, tag_secret=another)),
        CULPRIT,
        "tag secret",
    )
    for name, entries in (("dealt-to-too-few", body.dealt[:-1]), ("dealt-to-too-many", (*body.dealt, body.dealt[0]))):
        yield Fault(name, show(forger.changed(Step.SHARES, mine, dealt=entries)), CULPRIT, "another set")


def masked_faults(base: Replay) -> Iterator[Fault]:
    """R3."""
    forger, honest = Forger(base), base.relayed(Step.MASKED, OBSERVER)
    blank = hashlib.sha256(b"other shares").digest()
    yield Fault(
        "masked-under-other-shares", swapped(honest, forger.changed(Step.MASKED, transcript=blank)), "", "other"
    )


def consistency_faults(base: Replay) -> Iterator[Fault]:
    """R4."""
    forger, honest = Forger(base), base.relayed(Step.CONSISTENCY, OBSERVER)
    blank = hashlib.sha256(b"other survivors").digest()
    other = forger.changed(Step.CONSISTENCY, agreement=blank)
    yield Fault("another-agreement", swapped(honest, other), "", "agreed on other survivors")
    body = replace(forger.body(Step.CONSISTENCY, CULPRIT), sender="silo-2")
    ghost = forger.sign(Step.CONSISTENCY, "silo-2", body.encode())
    yield Fault("signer-outside-the-survivors", swapped(honest, ghost), "", "not a member")


def publish_faults(base: Replay) -> Iterator[Fault]:
    """R6: no silo applies it."""
    forger, honest = Forger(base), base.sent[Step.PUBLISH][""]
    for name, data, match in sums(base):
        yield Fault(f"sum-{name}", (publish(base, forger, data),), "", match)
    body = Publish.decode(honest.body)
    blank = hashlib.sha256(b"another").digest()
    forged = ((body.signatures[0][0], bytes(64)), *body.signatures[1:])
    changes: list[tuple[str, Json, str]] = [
        ("other-survivors", {"survivors": body.survivors[:-1]}, "other survivors"),
        ("survivors-in-another-order", {"survivors": body.survivors[::-1]}, "other survivors"),
        ("another-session", {"session": blank}, "another session"),
        ("another-agreement", {"agreement": blank}, "another session"),
        ("too-few-signatures", {"signatures": body.signatures[:-1]}, "t signatures"),
        ("a-forged-signature", {"signatures": forged}, "t signatures"),
        ("another-hash", {"sum": blank}, "other bytes"),
    ]
    for name, change, match in changes:
        yield Fault(name, (publish(base, forger, **change),), "", match)
    unsigned = replace(honest, signature=flipped(honest.signature, 0))
    by_silo = forger.sign(Step.PUBLISH, "", honest.body, honest.attachment, by=CULPRIT)
    trailing = forger.sign(Step.PUBLISH, "", honest.body + b"\0", honest.attachment)
    yield Fault("forged-signature", (unsigned,), "", "round key")
    yield Fault("signed-by-a-silo", (by_silo,), "", "round key")
    yield Fault("trailing-byte", (trailing,), "", "malformed")
    yield Fault("of-a-silo", (replace(honest, sender=CULPRIT),), "", "not a published sum")
    yield Fault("another-afterwards", (publish(base, forger, bytes(len(honest.attachment))),), "", "second", first=True)


def announce_faults(base: Replay) -> Iterator[Fault]:
    """R0: nobody joins."""
    forger, honest = Forger(base), base.sent[Step.ANNOUNCE][""]
    announcement = Announcement.decode(honest.body)

    def signed(**changes: Any) -> Frame:
        return forger.sign(Step.ANNOUNCE, "", replace(announcement, **changes).encode())

    body = honest.body
    at = body.index(announcement.value_bound.to_bytes(4)) + 4
    low = body[:at] + (3).to_bytes(2) + body[at + 2 :]
    wide = body[: at - 4] + (1 << 29).to_bytes(4) + body[at:]
    yield Fault("forged-signature", (replace(honest, signature=flipped(honest.signature, 0)),), "", "round key")
    yield Fault("signed-by-a-silo", (forger.sign(Step.ANNOUNCE, "", body, by=CULPRIT),), "", "round key")
    yield Fault("trailing-byte", (forger.sign(Step.ANNOUNCE, "", body + b"\0"),), "", "refused")
    yield Fault("threshold-too-low", (forger.sign(Step.ANNOUNCE, "", low),), "", "refused")
    yield Fault("ring-would-wrap", (forger.sign(Step.ANNOUNCE, "", wide),), "", "refused")
    yield Fault("attachment", (replace(honest, attachment=b"x"),), "", "not an announcement")
    yield Fault("without-this-silo", (signed(cohort=announcement.cohort[1:]),), "", "without this silo")
    yield Fault("with-a-stranger", (signed(cohort=(*announcement.cohort[:4], "stranger")),), "", "not in the roster")


def silo_faults(base: Replay) -> Iterator[tuple[Step, Fault]]:
    """Everything that silo-0 refuses, by the step whose frames it is given."""
    own = {
        Step.KEYS: keys_faults,
        Step.SHARES: shares_faults,
        Step.MASKED: masked_faults,
        Step.CONSISTENCY: consistency_faults,
    }
    yield from ((Step.ANNOUNCE, fault) for fault in announce_faults(base))
    for step in RELAYED:
        yield from ((step, fault) for fault in relayed_faults(base, step))
        yield from ((step, fault) for fault in own[step](base))
    yield from ((Step.PUBLISH, fault) for fault in publish_faults(base))


# The coordinator


def server_faults(base: Replay) -> Iterator[tuple[Step, Fault]]:
    """Every frame that the coordinator does not count. A fault's `blamed` says whether the sender signed it."""
    forger = Forger(base)
    for step in STEPS:
        for name, frame, blamed, match in forger.forgeries(step):
            yield step, Fault(name, (frame,), blamed, match)
        honest = forger.frame(step, CULPRIT)
        yield step, Fault("second-different", (forger.second(step, CULPRIT),), CULPRIT, "signed two", first=True)
        longer = replace(honest, attachment=honest.attachment + b"x")
        yield step, Fault("again-with-another-attachment", (longer,), "", "two ways", first=True)
        yield step, Fault("with-another-attachment", (longer,), "", ATTACHMENT[step])
    for name, change, match in keys_changes(forger):
        yield Step.KEYS, Fault(name, (forger.changed(Step.KEYS, **change),), CULPRIT, match)
    shares = forger.body(Step.SHARES, CULPRIT)
    entry = Dealt(bytes(32), bytes(32), bytes(32))
    for name, entries in (("dealt-to-too-few", shares.dealt[:-1]), ("dealt-to-too-many", (*shares.dealt, entry))):
        yield Step.SHARES, Fault(name, (forger.changed(Step.SHARES, dealt=entries),), CULPRIT, "another set")
    data = forger.frame(Step.SHARES, CULPRIT).attachment
    swapped_parts = data[len(data) // 4 :] + data[: len(data) // 4]
    yield (
        Step.SHARES,
        Fault(
            "ciphertexts-exchanged",
            (replace(forger.frame(Step.SHARES, CULPRIT), attachment=swapped_parts),),
            "",
            "other",
        ),
    )
    blank = hashlib.sha256(b"another").digest()
    vector = forger.frame(Step.MASKED, CULPRIT).attachment[:-8]
    # What a silo was shown only it and the coordinator know, so these two prove nothing to anybody else.
    yield Step.MASKED, Fault("other-shares", (forger.changed(Step.MASKED, transcript=blank),), "", "other shares")
    short = forger.changed(Step.MASKED, vector, vector=blob_hash(vector))
    yield Step.MASKED, Fault("short-vector-signed", (short,), "", "masked vector")
    for step, blamed in ((Step.CONSISTENCY, ""), (Step.UNMASK, CULPRIT)):
        yield step, Fault("another-agreement", (forger.changed(step, agreement=blank),), blamed, "other survivors")
    unmask = forger.body(Step.UNMASK, CULPRIT)
    good = unmask.openings[3]
    for name, openings in (
        ("altered-share", opened(unmask, 3, Opening(flipped(good.share, -1), good.salt))),
        ("altered-salt", opened(unmask, 3, Opening(good.share, flipped(good.salt, 0)))),
        ("share-beyond-the-field", opened(unmask, 3, Opening(b"\xff" * 66, good.salt))),
        ("share-of-another-owner", opened(unmask, 3, unmask.openings[0])),
        ("share-of-a-dropped-silo-altered", opened(unmask, 2, unmask.openings[3])),
    ):
        yield Step.UNMASK, Fault(name, (forger.changed(Step.UNMASK, openings=openings),), CULPRIT, "another share")
    fewer = forger.changed(Step.UNMASK, openings=unmask.openings[:-1])
    yield Step.UNMASK, Fault("too-few-openings", (fewer,), CULPRIT, "another set")
