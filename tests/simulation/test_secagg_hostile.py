"""A coordinator that decides by dice which frames each silo sees, and c silos that sign whatever helps it.

Whatever it does, for no honest silo may it gather t shares of b and t shares of s: that would open a single vector. And
no honest silos may release shares for two survivor sets of a session: those for one would add up with those for
another to a sum over fewer silos than any of them was shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secagg_world import World

from secagg.bodies import Consistency, Masked, Unmask
from secagg.client import join
from secagg.errors import SecaggError
from secagg.hashing import blob_hash
from secagg.keys import sign
from secagg.server import open_session
from secagg.wire import Frame, Step


class Hostile:
    def __init__(self, seed: int, outcomes: Counter[str]) -> None:
        self.random = Random(seed)
        self.outcomes = outcomes
        base = World(seed, Counter(), "calm")
        count = self.random.randint(5, 7)
        self.names = tuple(f"silo-{index}" for index in range(count))
        self.threshold = (count + 3) // 2 + self.random.randint(0, 1)
        self.colluders = min(2 * self.threshold - count - 1, self.threshold - 2)
        self.bad = frozenset(self.random.sample(self.names, self.colluders))
        draw = self.random.randbytes
        self.identity = {name: Ed25519PrivateKey.from_private_bytes(draw(32)) for name in self.names}
        members = {name: key.public_key().public_bytes_raw() for name, key in self.identity.items()}
        announcement = replace(
            base.announcement, cohort=self.names, threshold=self.threshold, colluders=self.colluders, minimum_cohort=3
        )
        server, announce = open_session(announcement, base.round_key, members)
        self.states: dict[str, Any] = {}
        for name in self.names:
            self.states[name], frame = join(
                announce,
                server_key=base.round_key.public_key().public_bytes_raw(),
                members=members,
                me=name,
                signer=self.identity[name],
                entropy=draw,
                ledger_proof=b"",
            )
            server.receive(frame)
        collecting: Any = server.close()
        for name in self.names:
            self.states[name], frame = self.states[name].receive(collecting.outgoing[name]).share()
            collecting.receive(frame)
        self.collecting: Any = collecting.close()
        self.honest = [name for name in self.names if name not in self.bad]

    def view(self, frames: tuple[Frame, ...], me: str) -> tuple[Frame, ...]:
        """A few frames fewer than there are, almost always with the victim's own."""
        hidden = set(self.random.sample(self.names, self.random.randint(0, len(self.names) - self.threshold)))
        if self.random.random() < 0.95:
            hidden.discard(me)
        return tuple(frame for frame in frames if frame.sender not in hidden)

    def ask(self, name: str, frames: tuple[Frame, ...]) -> Any:
        try:
            return self.states[name].receive(frames)
        except SecaggError:
            self.outcomes["refused"] += 1
            return None

    def run(self) -> None:
        masked: dict[str, Frame] = {}
        split = self.random.random() < 0.3
        for name in self.honest:
            frames = self.collecting.outgoing[name]
            ready = self.ask(name, self.view(frames, name) if split else frames)
            if ready is not None:
                self.states[name], masked[name] = ready.mask(
                    np.array([1, -1, 0], dtype=np.int64), np.array([1], dtype=np.int64)
                )
        agreed: dict[str, Frame] = {}
        for name in list(masked):
            mine = Masked.decode(masked[name].body)
            lies = {
                bad: sign(
                    Step.MASKED,
                    bad,
                    replace(mine, sender=bad, vector=blob_hash(bad.encode())).encode(),
                    self.identity[bad],
                )
                for bad in self.bad
            }
            frames = tuple((masked | lies)[n].without_attachment() for n in self.names if n in masked | lies)
            answer = self.ask(name, self.view(frames, name))
            if answer is not None:
                if self.random.random() < 0.2:
                    again = self.ask(name, self.view(frames, name))
                    answer = again or answer
                self.states[name], agreed[name] = answer
        self.release(agreed)

    def release(self, agreed: dict[str, Frame]) -> None:
        survivors: dict[str, frozenset[str]] = {}
        opened: dict[tuple[str, bool], set[str]] = defaultdict(set)
        released: set[frozenset[str]] = set()
        for name, frame in agreed.items():
            survivors[name] = frozenset(self.states[name]._data.u3)
            value = Consistency.decode(frame.body)
            signed = [f for f in agreed.values() if Consistency.decode(f.body).agreement == value.agreement]
            frames = [f for f in signed if f.sender in survivors[name]]
            frames += [
                sign(Step.CONSISTENCY, bad, replace(value, sender=bad).encode(), self.identity[bad])
                for bad in self.bad & survivors[name]
            ]
            u2 = self.states[name]._data.masked.u2
            answer = self.ask(name, tuple(frames))
            if answer is None:
                continue
            self.outcomes["released"] += 1
            released.add(survivors[name])
            openings = Unmask.decode(answer[1].body).openings
            assert len(openings) == len(u2)
            for owner in u2:
                opened[owner, owner in survivors[name]].add(name)
        assert len(released) <= 1, "released shares for two survivor sets of one session"
        for owner in self.honest:
            both = [len(opened[owner, kind]) + self.colluders >= self.threshold for kind in (True, False)]
            assert not all(both), f"both masks of {owner} can be opened"
        self.outcomes["split"] += len(set(survivors.values())) > 1


def run(seeds: range) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        try:
            Hostile(seed, outcomes).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    return outcomes


def test_no_view_of_the_frames_opens_both_masks_of_a_silo() -> None:
    outcomes = run(range(2000, 2250))
    assert outcomes["released"] > 100, outcomes
    assert outcomes["split"] > 50, outcomes
    assert outcomes["refused"] > 100, outcomes


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_hostile_sessions() -> None:
    run(range(10_000, 20_000))
