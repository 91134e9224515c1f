"""What the negative vectors change: every relayed step's common faults, and those of each step.

Everybody is seen from silo-0 or the coordinator; silo-1 is the silo that misbehaves, or in whose name somebody does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from vectors_replay import Frames, Json, Replay

from secagg import keys
from secagg.bodies import Consistency, Dealt, Keys, Masked, Opening, Publish, Shares, Unmask
from secagg.hashing import blob_hash
from secagg.session import TAGS
from secagg.wire import Frame, Step

OBSERVER, CULPRIT, OTHER = "silo-0", "silo-1", "silo-3"
BODIES: dict[Step, Any] = {
    Step.KEYS: Keys,
    Step.SHARES: Shares,
    Step.MASKED: Masked,
    Step.CONSISTENCY: Consistency,
    Step.UNMASK: Unmask,
}
LOW_ORDER = (1).to_bytes(32, "little")
# 9, the base point, encoded as 9 + p.
UNREDUCED = (2**255 - 19 + 9).to_bytes(32, "little")


@dataclass(frozen=True)
class Fault:
    """One fault: the frames that a receiver gets instead of the honest ones.

    `blamed` is a silo, or empty for the coordinator; `match` is in this package's reason, so that no case passes for
    another's; `first` says that the honest request (or frame) came before it.
    """

    name: str
    frames: Frames
    blamed: str
    match: str
    first: bool = False


class Forger:
    """Makes frames that somebody really signs."""

    def __init__(self, base: Replay) -> None:
        self.base = base

    def frame(self, step: Step, name: str) -> Frame:
        """The honest frame, with its whole attachment."""
        return self.base.sent[step][name]

    def body(self, step: Step, name: str) -> Any:
        """What the honest frame says."""
        return BODIES[step].decode(self.frame(step, name).body)

    def sign(self, step: Step, name: str, body: bytes, attachment: bytes = b"", by: str = "") -> Frame:
        """A frame of `name`, signed by `by`."""
        return keys.sign(step, name, body, self.base.signers[by or name or "coordinator"], attachment)

    def changed(self, step: Step, attachment: bytes | None = None, **changes: Any) -> Frame:
        """The culprit's frame with fields of its body changed, properly signed."""
        body = replace(self.body(step, CULPRIT), **changes).encode()
        given = self.frame(step, CULPRIT).attachment if attachment is None else attachment
        return self.sign(step, CULPRIT, body, given)

    def binding(self, step: Step) -> dict[str, bytes]:
        """The field that names the session, for another session."""
        return {"announcement" if step == Step.KEYS else "session": hashlib.sha256(b"another session").digest()}

    def second(self, step: Step, name: str) -> Frame:
        """A second, different and well-formed frame of one silo."""
        body, blank = self.body(step, name), hashlib.sha256(b"second").digest()
        fields = {
            Step.KEYS: "seed",
            Step.SHARES: "tag_secret",
            Step.MASKED: "vector",
            Step.CONSISTENCY: "agreement",
            Step.UNMASK: "agreement",
        }
        change: Json = {fields[step]: blank}
        return self.sign(step, name, replace(body, **change).encode(), self.frame(step, name).attachment)

    def forgeries(self, step: Step) -> list[tuple[str, Frame, str, str]]:
        """Frames in the culprit's name that no honest receiver counts: name, frame, who signed the fault, reason."""
        honest = self.frame(step, CULPRIT)
        body, attachment = honest.body, honest.attachment
        flipped = honest.signature[:-1] + bytes([honest.signature[-1] ^ 1])
        other = Step.MASKED if step != Step.MASKED else Step.SHARES
        return [
            ("forged-signature", replace(honest, signature=flipped), "", "valid signature"),
            ("changed-body", replace(honest, body=body[:-1] + bytes([body[-1] ^ 1])), "", "valid signature"),
            ("signed-by-round-key", self.sign(step, CULPRIT, body, attachment, by="coordinator"), "", "valid sig"),
            ("signed-by-another-silo", self.sign(step, CULPRIT, body, attachment, by=OTHER), "", "valid signature"),
            ("renamed", replace(self.frame(step, OTHER), sender=CULPRIT), "", "valid signature"),
            ("of-the-coordinator", replace(honest, sender=""), "", "not a member"),
            ("of-a-stranger", replace(honest, sender="stranger"), "", "not a member"),
            ("of-another-step", self.frame(other, CULPRIT), "", "where"),
            ("under-another-step", replace(self.frame(other, CULPRIT), step=step), "", "valid signature"),
            ("trailing-byte", self.sign(step, CULPRIT, body + b"\0", attachment), CULPRIT, "malformed"),
            ("truncated", self.sign(step, CULPRIT, body[:-1], attachment), CULPRIT, "malformed"),
            (
                "in-another-name",
                self.sign(step, CULPRIT, self.frame(step, OTHER).body, attachment),
                CULPRIT,
                "in the name of",
            ),
            ("of-another-session", self.changed(step, **self.binding(step)), "", "another session"),
        ]


def keys_changes(forger: Forger) -> list[tuple[str, Json, str]]:
    """R1 with keys that nobody accepts: name, changed fields, reason."""
    body = forger.body(Step.KEYS, CULPRIT)
    first, *rest = body.transport
    return [
        ("transport-key-of-low-order", {"transport": (LOW_ORDER, *rest)}, "low order"),
        ("last-transport-key-of-low-order", {"transport": (*body.transport[:-1], LOW_ORDER)}, "low order"),
        ("transport-key-unreduced", {"transport": (UNREDUCED, *rest)}, "malformed"),
        ("mask-key-of-low-order", {"mask": LOW_ORDER}, "low order"),
        ("mask-key-with-the-ignored-bit-set", {"mask": body.mask[:-1] + bytes([body.mask[-1] | 0x80])}, "malformed"),
        ("one-key-for-two-uses", {"mask": first}, "two uses"),
        ("one-key-for-two-peers", {"transport": (first, first, *rest[1:])}, "two uses"),
        ("too-few-transport-keys", {"transport": tuple(rest)}, "transport keys in a cohort"),
        ("too-many-transport-keys", {"transport": (*body.transport, UNREDUCED)}, "transport keys in a cohort"),
    ]


def swapped(frames: Sequence[Frame], new: Frame, place: str = CULPRIT) -> Frames:
    """The request with one frame exchanged."""
    return tuple(new if frame.sender == place else frame for frame in frames)


def without(frames: Sequence[Frame], *names: str) -> Frames:
    """The request without some silos."""
    return tuple(frame for frame in frames if frame.sender not in names)


def dealt(body: Shares, position: int, **changes: Any) -> tuple[Dealt, ...]:
    """An R2's entries with one changed."""
    return (*body.dealt[:position], replace(body.dealt[position], **changes), *body.dealt[position + 1 :])


def flipped(data: bytes, at: int) -> bytes:
    """One bit changed."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def opened(body: Unmask, position: int, opening: Opening) -> tuple[Opening, ...]:
    """An R5's openings with one changed."""
    return (*body.openings[:position], opening, *body.openings[position + 1 :])


def sums(base: Replay) -> list[tuple[str, bytes, str]]:
    """Other sums than the true one: name, bytes, reason."""
    announcement = base.announcement
    data = base.sent[Step.PUBLISH][""].attachment
    count = announcement.words32

    def edit(change: Callable[[Any, Any], None]) -> bytes:
        buffer = bytearray(data)
        change(
            np.frombuffer(buffer, dtype="<i4", count=count),
            np.frombuffer(buffer, dtype="<i8", offset=4 * count),
        )
        return bytes(buffer)

    def add(words: Any, index: int, value: int) -> None:
        words[index] += value

    def scale(small: Any, large: Any) -> None:
        small *= 2
        large *= 2

    def clear(small: Any, large: Any) -> None:
        small[:] = 0
        large[:-TAGS] = 0

    return [
        ("zeroed", bytes(len(data)), "tags"),
        ("zeroed-beside-its-tags", edit(clear), "tags"),
        ("doubled-with-its-tags", edit(scale), "tags"),
        ("shifted-by-one", edit(lambda small, _: add(small, 0, 1)), "tags"),
        ("shifted-by-2-to-the-20", edit(lambda small, _: add(small, 0, 1 << 20)), "tags"),
        ("shifted-in-words64", edit(lambda _, large: add(large, 0, 1)), "tags"),
        *[(f"tag-{i}-changed", edit(lambda _, large, i=i: add(large, i - TAGS, 1)), "tags") for i in range(TAGS)],
        ("beyond-its-range", edit(lambda small, _: add(small, 0, 1 << 30)), "range"),
        ("words64-beyond-its-range", edit(lambda _, large: add(large, 0, 1 << 50)), "range"),
        ("truncated", data[:-8], "wrong length"),
        ("longer", data + bytes(8), "wrong length"),
    ]


def publish(base: Replay, forger: Forger, attachment: bytes | None = None, **changes: Any) -> Frame:
    """R6 with fields changed, signed by the round key."""
    honest = base.sent[Step.PUBLISH][""]
    data = honest.attachment if attachment is None else attachment
    body = Publish.decode(honest.body)
    body = replace(body, **({"sum": blob_hash(data)} | changes))
    return forger.sign(Step.PUBLISH, "", body.encode(), data)
