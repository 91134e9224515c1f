"""Read a file of session vectors back, and play one side of it: what the other side says comes from the file alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from secagg.bodies import Abort
from secagg.client import join
from secagg.dealing import CIPHERTEXT_SIZE
from secagg.hashing import blob_hash
from secagg.server import open_session
from secagg.session import WORD64_BOUND, Announcement
from secagg.wire import Frame, Step

STEPS = (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY, Step.UNMASK)
PREFIX = "feddrm secagg vectors 1/"

Json = dict[str, Any]
Frames = tuple[Frame, ...]


class Draws:
    """Entropy that gives what a file lists, and fails when another size is asked for."""

    def __init__(self, draws: Sequence[str]) -> None:
        self._draws = [bytes.fromhex(draw) for draw in draws]

    def __call__(self, size: int) -> bytes:
        value = self._draws.pop(0)
        assert len(value) == size, f"a draw of {size} bytes where the file has {len(value)}"
        return value

    @property
    def left(self) -> int:
        """Draws that nobody made."""
        return len(self._draws)


def frame_of(value: Json) -> Frame:
    """A frame as a file has it; without its attachment where that is given by its hash."""
    return Frame(
        Step[value["step"]],
        value["sender"],
        bytes.fromhex(value["body"]),
        bytes.fromhex(value["signature"]),
        bytes.fromhex(value.get("attachment", "")),
    )


def announcement_of(fields: Json) -> Announcement:
    """R0 from its fields; it is encoded anew and must give the bytes of the frame."""
    texts = ("federation",)
    values: Json = {
        name: bytes.fromhex(value) if isinstance(value, str) and name not in texts else value
        for name, value in fields.items()
    }
    return Announcement(**(values | {"cohort": tuple(values["cohort"])}))


def words_of(value: list[int] | str, count: int, bound: int, width: int) -> NDArray[np.int64]:
    """A segment: its entries, or those that the named stream gives."""
    if isinstance(value, list):
        return np.array(value, dtype=np.int64)
    stream = hashlib.shake_256((PREFIX + value).encode()).digest(width * count)
    words = [int.from_bytes(stream[at : at + width], "little") for at in range(0, len(stream), width)]
    return np.array([word % (2 * bound + 1) - bound for word in words], dtype=np.int64)


class Replay:
    """One session of a file."""

    def __init__(self, document: Json, index: int = 0) -> None:
        self.document, self.session = document, document["sessions"][index]
        keys = document["identities"]
        self.signers = {
            name: Ed25519PrivateKey.from_private_bytes(bytes.fromhex(pair["private"])) for name, pair in keys.items()
        }
        self.members = {name: bytes.fromhex(pair["public"]) for name, pair in keys.items() if name != "coordinator"}
        self.server_key = bytes.fromhex(keys["coordinator"]["public"])
        self.announcement = announcement_of(self.session["announcement"])
        self.values: Json = self.session["values"]
        self.sent: dict[Step, dict[str, Frame]] = {step: {} for step in Step}
        self.hashes: dict[tuple[Step, str], str] = {}
        for value in self.session["messages"]:
            frame = frame_of(value)
            step = Step(frame.step)
            self.sent[step][frame.sender] = frame
            if "attachment_blake3" in value:
                self.hashes[step, frame.sender] = value["attachment_blake3"]

    def keep(self, frame: Frame) -> None:
        """Compare a frame that a state machine made with the file's, and take over an attachment that is not in it."""
        step, listed = Step(frame.step), self.sent[Step(frame.step)][frame.sender]
        long = self.hashes.get((step, frame.sender))
        if long is not None:
            assert blob_hash(frame.attachment).hex() == long
            self.sent[step][frame.sender] = listed = replace(listed, attachment=frame.attachment)
        assert frame == listed, f"another {step.name} of {frame.sender or 'the coordinator'} than the file has"

    def relayed(self, step: Step, to: str) -> Frames:
        """What the coordinator sends of a step to one silo."""
        frames = self.sent[step]
        order = [name for name in self.announcement.cohort if name in frames]
        if step in (Step.ANNOUNCE, Step.PUBLISH):
            return (frames[""],)
        if step == Step.KEYS:
            return tuple(frames[name] for name in order)
        if step == Step.SHARES:
            return tuple(replace(frames[name], attachment=self.ciphertext(name, to)) for name in order)
        return tuple(frames[name].without_attachment() for name in order)

    def ciphertext(self, sender: str, to: str) -> bytes:
        """The part of an R2 attachment that is for one silo: U1 in roster order, without the sender."""
        others = [name for name in self.values["u1"] if name != sender]
        if to not in others:
            return b""
        at = CIPHERTEXT_SIZE * others.index(to)
        return self.sent[Step.SHARES][sender].attachment[at : at + CIPHERTEXT_SIZE]

    def words(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A silo's vector."""
        value, announcement = self.document["inputs"][name], self.announcement
        return (
            words_of(value["words32"], announcement.words32, announcement.value_bound, 4),
            words_of(value["words64"], announcement.words64, WORD64_BOUND, 8),
        )

    def join(self, name: str, announce: Frame) -> tuple[Any, Frame, Draws]:
        """A silo's first state, R1, and its entropy."""
        draws = Draws(self.session["entropy"][name]["draws"])
        state, frame = join(
            announce,
            server_key=self.server_key,
            members=self.members,
            me=name,
            signer=self.signers[name],
            entropy=draws,
            ledger_proof=bytes.fromhex(self.document["ledger_proofs"][name]),
        )
        return state, frame, draws

    def silo(self, name: str, through: Step) -> tuple[Any, Draws]:
        """A silo's state after it sent its frame of step `through`, every frame being the file's."""
        state, frame, draws = self.join(name, self.sent[Step.ANNOUNCE][""])
        self.keep(frame)
        for step in STEPS:
            if step == through:
                break
            state, frame = self.answer(state, step, name, self.relayed(step, name))
            self.keep(frame)
        return state, draws

    def answer(self, state: Any, step: Step, name: str, request: Frames) -> tuple[Any, Frame]:
        """A silo's next state, and what it sends when it is given all frames of a step."""
        result: tuple[Any, Frame]
        if step == Step.KEYS:
            result = state.receive(request).share()
        elif step == Step.SHARES:
            result = state.receive(request).mask(*self.words(name))
        else:
            result = state.receive(request)
        return result

    def coordinator(self, collecting: Step, check: Callable[[Any], None] = lambda _: None) -> Any:
        """The coordinator's state in which it collects a step; `check` is given every state."""
        state: Any
        state, announce = open_session(self.announcement, self.signers["coordinator"], self.members)
        self.keep(announce)
        check(state)
        for step in STEPS:
            if step == collecting:
                break
            for frame in self.sent[step].values():
                state.receive(frame)
            state = state.close()
            check(state)
        return state

    def last_step(self, name: str) -> Step | None:
        """The last step that a silo sent anything in."""
        steps = [step for step in STEPS if name in self.sent[step]]
        return steps[-1] if steps else None

    def abort(self, state: Any, frame: Frame) -> None:
        """Let a silo say what the file says that it says."""
        abort = Abort.decode(frame.body)
        self.keep(state.abort(abort.reason, abort.blamed, frame.attachment))
