"""What a lying silo does besides denying: each trick is signed, so that it can be convicted of it, and nobody else can.

All but one use the liar's own state machine and change what it sends, or what it deals.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from secagg.aborts import abort_frame
from secagg.bodies import Keys, Shares, Unmask
from secagg.checks import ciphertext_hash
from secagg.dealing import CIPHERTEXT_SIZE
from secagg.exhibits import Conflict, WrongFrame, encode_exhibit
from secagg.keys import sign
from secagg.wire import Frame, Step

if TYPE_CHECKING:
    from secagg_silo import Silo
    from secagg_world import World

TRICKS = ("two keys", "garbage", "other secret", "other share", "false accusation")


def another_keys(silo: Silo, frame: Frame) -> Frame | None:
    """Two keys: a second R1 of the announcement, with another commitment."""
    if silo.trick != "two keys":
        return None
    body = replace(Keys.decode(frame.body), seed=silo.world.random.randbytes(32))
    return sign(Step.KEYS, silo.name, body.encode(), silo.signer, frame.attachment)


def before_dealing(silo: Silo, state: Any) -> None:
    """Other secret: shares of another b_u, or s_u, than R1 commits to."""
    if silo.trick == "other secret":
        keyed = state._data
        random = silo.world.random
        field = random.choice(["seed", "mask"])
        other = random.randbytes(32)
        value = other if field == "seed" else replace(keyed.joined.mask, private=other)
        state._data = replace(keyed, joined=replace(keyed.joined, **{field: value}))


def changed(silo: Silo, frame: Frame, u1: Iterable[str]) -> Frame:
    """Garbage: R2 with a ciphertext that does not open, signed as it is. Other share: R5 with an altered share."""
    random = silo.world.random
    if silo.trick == "garbage" and frame.step == Step.SHARES:
        return _garbage(silo, frame, tuple(u1), random)
    if silo.trick == "other share" and frame.step == Step.UNMASK:
        body = Unmask.decode(frame.body)
        openings = list(body.openings)
        which = random.randrange(len(openings))
        openings[which] = replace(openings[which], salt=random.randbytes(32))
        return sign(frame.step, silo.name, replace(body, openings=tuple(openings)).encode(), silo.signer)
    return frame


def _garbage(silo: Silo, frame: Frame, u1: tuple[str, ...], random: Random) -> Frame:
    body = Shares.decode(frame.body)
    others = [name for name in u1 if name != silo.name]
    victim = random.choice(others)
    at, position = CIPHERTEXT_SIZE * others.index(victim), u1.index(victim)
    garbage = random.randbytes(CIPHERTEXT_SIZE)
    attachment = frame.attachment[:at] + garbage + frame.attachment[at + CIPHERTEXT_SIZE :]
    dealt = list(body.dealt)
    dealt[position] = replace(dealt[position], ciphertext=ciphertext_hash(garbage))
    return sign(frame.step, silo.name, replace(body, dealt=tuple(dealt)).encode(), silo.signer, attachment)


def accusation(silo: Silo, announced: bytes) -> Frame | None:
    """False accusation: an abort that shows a peer's honest R1 as if it were a fault."""
    world: World = silo.world
    memory = silo.sessions.get(announced)
    peers = [] if memory is None else [frame for frame in memory.relayed if frame.sender != silo.name]
    if silo.trick != "false accusation" or not peers:
        return None
    frame = world.random.choice(peers)
    evidence = encode_exhibit(WrongFrame(frame.without_attachment(), ()))
    return abort_frame(
        announcement=announced,
        me=silo.name,
        signer=silo.signer,
        released=False,
        reason="lied",
        blamed=frame.sender,
        evidence=evidence,
    )


def denied(unmask: Frame, abort: Frame, roll: Any) -> bytes:
    """Evidence against whoever signed an R5 and an abort that denies it; of an honest silo it proves nothing."""
    return encode_exhibit(Conflict(unmask, abort.without_attachment(), roll))
