"""The leaves by which a log goes on under another key, or a new log answers for one that was lost.

A hospital's heads are signed by its identity key. When that key changes, SUCCESSOR hands the log over, signed by both
keys. When the log itself is lost, a new one under a new key (two logs under one key would be a fork) begins with
RECOVERED, which holds the lost log's newest signed head that anybody showed, and CARRY leaves, which charge every job
of the lost log in full: what was charged can be bounded from above by the signed plans, and nobody can prove more.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from privacy import labels
from privacy.errors import MalformedError
from privacy.events import Event
from privacy.note import Head, head_note, open_head


@dataclass(frozen=True, slots=True)
class Successor:
    """The log goes on under another key: heads over this leaf and all that follow are signed by `key`.

    Args:
        old: the key that signed the heads so far (32 bytes).
        key: the key that signs from here on (32 bytes).
        root: root of all leaves before this one (32 bytes).
        old_signature: of `old` over all of this, the log's name and the leaf's number (64 bytes).
        key_signature: of `key`, likewise: its holder knows of it.
    """

    TYPE: ClassVar = "SUCCESSOR"
    old: bytes
    key: bytes
    root: bytes
    old_signature: bytes
    key_signature: bytes


@dataclass(frozen=True, slots=True)
class Recovered:
    """This log answers for another of the same name that was lost: for its newest head that anybody showed.

    Args:
        key: the key that signed that head (32 bytes).
        size, root: what it says.
        signature: on the head's text (64 bytes).
        without: hospitals whose exports were not there to show more, by the hospital's own decision; sorted.
    """

    TYPE: ClassVar = "RECOVERED"
    key: bytes
    size: int
    root: bytes
    signature: bytes
    without: tuple[str, ...] = ()

    def head(self, origin: str) -> Head:
        """The lost log's head, verified.

        Raises:
            MalformedError: `key` never signed it.
        """
        return open_head(head_note(origin, self.size, self.root, self.key, self.signature), origin, self.key)


@dataclass(frozen=True, slots=True)
class Carry:
    """A job that the lost log charged, or may have charged, is charged here in full; none of its rounds follows.

    Args:
        plan: hash of the signed plan.
        name, delta, epsilon, epsilon_alone, events: as in a PLAN leaf.
        patient: the plan's patient column: the unit of privacy stays the one that it was.
        public_size: as in a DATASET leaf: it stays fixed across the loss.
    """

    TYPE: ClassVar = "CARRY"
    plan: bytes
    name: str
    delta: float
    epsilon: float
    epsilon_alone: float
    events: tuple[Event, ...]
    patient: str
    public_size: int


def hand_over(origin: str, size: int, root: bytes, old: Ed25519PrivateKey, key: Ed25519PrivateKey) -> Successor:
    """The leaf of number `size` by which the log `origin` goes over from `old` to `key`; `root`: of the leaves before.

    Raises:
        ValueError: it is the same key.
    """
    keys = old.public_key().public_bytes_raw(), key.public_key().public_bytes_raw()
    if keys[0] == keys[1]:
        raise ValueError("a log is handed over to another key")
    message = _message(origin, size, root, *keys)
    return Successor(*keys, root, old.sign(message), key.sign(message))


def check_successor(leaf: Successor, origin: str, number: int) -> None:
    """Check both signatures of leaf `number` of the log `origin`.

    Raises:
        MalformedError: one does not verify, or it is the same key twice.
    """
    if leaf.old == leaf.key:
        raise MalformedError("the log is handed over to the key that it had")
    message = _message(origin, number, leaf.root, leaf.old, leaf.key)
    for key, signature in ((leaf.old, leaf.old_signature), (leaf.key, leaf.key_signature)):
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        except (InvalidSignature, ValueError) as error:
            raise MalformedError("the log was handed over without the signatures of both keys") from error


def recovered_from(head: Head, key: bytes, without: Iterable[str] = ()) -> Recovered:
    """The leaf for a lost log's head, as `open_head` gave it for `key`; `without`: hospitals that showed nothing."""
    line = head.note.decode().rstrip("\n").rsplit(" ", 1)[1]
    return Recovered(key, head.size, head.root, base64.b64decode(line)[4:], tuple(sorted(set(without))))


def _message(origin: str, size: int, root: bytes, old: bytes, key: bytes) -> bytes:
    parts = (labels.SUCCESSOR, origin.encode(), size.to_bytes(8), root, old, key)
    return b"".join(len(part).to_bytes(8) + part for part in parts)
