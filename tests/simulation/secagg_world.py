"""Rounds of secure aggregation in one process: silos and a coordinator with durable and volatile memory, and a network
that delivers, loses, duplicates and reorders. Every decision comes from one seed, so every run can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secagg_coordinator import Coordinator, Message
from secagg_oracle import Oracle
from secagg_silo import Silo
from secagg_tricks import TRICKS

from secagg.bodies import Abort, Masked
from secagg.evidence import judge
from secagg.session import Announcement
from secagg.wire import Frame


@dataclass(frozen=True)
class Weather:
    """How often what goes wrong, of about a thousand operations.

    `cut`: how likely the power goes between writing and sending. `stops`: the coordinator may give a session up.
    `spare`: no more silos crash than the quorum can spare. `patience`: how often the coordinator asks again before it
    closes a step without the missing (who closes R4 with t signers has none to spare in R5). `hostile`: it may run
    twice, and up to c silos lie in aborts; `betray`: how likely it then goes after two sums of one vector. `tricks`:
    how likely up to c silos also sign what convicts them.
    """

    lose: int = 0
    duplicate: int = 80
    crash_silo: int = 0
    crash_coordinator: int = 0
    fork: int = 0
    cut: float = 0.0
    stops: bool = False
    spare: bool = False
    patience: int = 0
    hostile: bool = False
    betray: float = 0.0
    tricks: float = 0.0


WEATHERS = {
    # Reordering and duplicates only: everything must be published and verified by everybody.
    "calm": Weather(),
    # Loss, and as many crashed silos as the protocol promises to survive: everything must be published at once.
    "few faults": Weather(lose=30, crash_silo=6, spare=True, patience=8),
    # Anything crashes at any time.
    "rough": Weather(lose=10, crash_silo=8, crash_coordinator=5, cut=0.01, stops=True),
    # And the coordinator runs twice from one past, with lying silos.
    "split": Weather(
        lose=4, crash_silo=4, crash_coordinator=3, fork=12, cut=0.005, stops=True, hostile=True, betray=0.3, tricks=0.3
    ),
    # Silos that lie to an honest coordinator: only they are blamed, by evidence that convicts them.
    "false silos": Weather(lose=4, crash_silo=2, crash_coordinator=1, stops=True, tricks=1.0),
    # A good network for a bad coordinator, which wants the certificate of a session that it then has opened.
    "betrayal": Weather(duplicate=20, stops=True, hostile=True, betray=1.0),
}


def parameters(random: Random) -> tuple[int, int, int, int]:
    """Sizes that the rules allow: silos, threshold, colluders, minimum cohort."""
    size = random.randint(3, 8)
    threshold = random.randint(max(3, (size + 3) // 2), size) if random.random() < 0.5 else max(3, (size + 3) // 2)
    colluders = random.randint(1, min(2 * threshold - size - 1, threshold - 2))
    minimum = random.randint(3, size) if random.random() < 0.2 else 3
    return size, threshold, colluders, minimum


class World:
    """Up to three rounds of one federation in one weather. The oracle checks as things happen."""

    def __init__(self, seed: int, outcomes: Counter[str], weather: str = "") -> None:
        self.random = Random(seed)
        self.outcomes = outcomes
        kind = weather or self.random.choices(list(WEATHERS), [1, 2, 4, 4, 2, 2])[0]
        self.weather = WEATHERS[kind]
        size, threshold, colluders, minimum = parameters(self.random)
        self.rounds = self.random.randint(1, 3)
        self.names = tuple(f"silo-{index}" for index in range(size))
        self.identity = {n: Ed25519PrivateKey.from_private_bytes(self.random.randbytes(32)) for n in self.names}
        self.members = {n: key.public_key().public_bytes_raw() for n, key in self.identity.items()}
        self.round_key = Ed25519PrivateKey.from_private_bytes(self.random.randbytes(32))
        self.server_key = self.round_key.public_key().public_bytes_raw()
        blank = b"h" * 32
        self.announcement = Announcement(
            federation="fed", plan=blank, stage=1, round=1, attempt=1, cohort=self.names, roster=blank, model=blank,
            layout=blank, words32=3, words64=1, value_bound=1 << 12, threshold=threshold, minimum_cohort=minimum,
            colluders=colluders, parameters=blank, deadline_ms=1, previous=blank, nonce=blank,
        )  # fmt: skip
        tricky = self.random.random() < self.weather.tricks
        false = tricky or (self.weather.hostile and self.random.random() < self.weather.betray + 0.3)
        liars = self.random.sample(self.names, colluders if false else 0)
        tricks = {name: self.random.choice(TRICKS) if tricky else "" for name in liars}
        self.convicted: set[str] = set()
        self.spare = size - self.announcement.quorum if self.weather.spare else 1 << 30
        self.oracle = Oracle(self.names, frozenset(liars), outcomes)
        self.bodies: dict[bytes, bytes] = {}
        self.network: list[Message | Frame] = []
        self.accepting: set[tuple[str, bytes]] = set()
        self.silos = {name: Silo(self, name, liar=name in liars, trick=tricks.get(name, "")) for name in self.names}
        self.coordinator = Coordinator(self)
        self.coordinator.next_round()
        outcomes["worlds"] += 1
        outcomes[f"{kind} worlds"] += 1
        outcomes["worlds with liars"] += bool(liars)

    def words(self, name: str, announced: bytes) -> tuple[Any, Any]:
        """Silo i contributes 2**i, and its multiple by the round, so that rounds do not mix unseen."""
        value = 1 << self.names.index(name)
        number = Announcement.decode(self.bodies[announced]).round
        return (
            np.array([value, -value, value * (number + 1)], dtype=np.int64),
            np.array([value << 30], dtype=np.int64),
        )

    def session_of(self, frame: Frame) -> bytes:
        return Masked.decode(frame.body).session

    def announced_of(self, frame: Frame) -> bytes:
        return Abort.decode(frame.body).announcement

    def judged(
        self, exhibit: Frame | bytes, announced: bytes, error: Exception | None = None, blamed: str = ""
    ) -> None:
        """The oracle looks at the verdict on some evidence, which must convict whom a state machine `blamed`."""
        guilty = judge(exhibit, self.bodies[announced], self.members).guilty
        if blamed and guilty != blamed:
            raise AssertionError(f"{blamed} was blamed on evidence that does not convict it") from error
        if guilty:
            self.oracle.blamed(guilty, self.silos[guilty].trick, error)
            self.convicted.add(guilty)

    def accepted(self, name: str, announced: bytes, verified: Any) -> None:
        if (name, announced) not in self.accepting:
            self.accepting.add((name, announced))
            self.oracle.verified(name, Announcement.decode(self.bodies[announced]).round, verified)

    def send(self, item: Message | Frame | None) -> None:
        if item is not None:
            self.network.append(item)

    def cut(self) -> bool:
        return self.random.random() < self.weather.cut

    def run(self, operations: int = 6000) -> World:
        weather = self.weather
        choices: list[tuple[Callable[[], None], int]] = [
            (self.deliver, 1000),
            (self.lose, weather.lose),
            (self.duplicate, weather.duplicate),
            (self.crash_silo, weather.crash_silo),
            (self.coordinator.deadline, 14 if weather.crash_coordinator else 0),
            (self.coordinator.crash, weather.crash_coordinator),
            (self.coordinator.fork, weather.fork),
            (self.coordinator.resend, 3),
        ]
        actions, weights = zip(*choices, strict=True)
        for _ in range(operations):
            if self.network:
                self.random.choices(actions, weights)[0]()
            elif not self.coordinator.over:
                self.coordinator.deadline()
            elif self.coordinator.round < self.rounds:
                self.coordinator.next_round()
            else:
                break
            # Impatient: the next round begins while messages of the last are under way.
            more = self.coordinator.over and self.coordinator.round < self.rounds
            if weather.stops and more and self.random.random() < 0.02:
                self.coordinator.next_round()
        self.finish()
        return self

    def finish(self) -> None:
        """Liveness, where it was promised; a world in which nothing arrives proves nothing."""
        published = {number: list(sums.values()) for number, sums in self.oracle.sums.items() if sums}
        self.outcomes["rounds"] += self.coordinator.round
        if not self.weather.stops:
            assert sorted(published) == list(range(1, self.rounds + 1)), "a sum that was promised is missing"
            assert self.coordinator.attempt == 1
        if self.weather == WEATHERS["calm"]:
            assert len(self.accepting) == self.rounds * len(self.names), "not everybody verified every sum"
            assert all(sums[0].survivors == self.names for sums in published.values())

    def _pick(self) -> int:
        return self.random.randrange(len(self.network))

    def deliver(self) -> None:
        item = self.network.pop(self._pick())
        if isinstance(item, Frame):
            self.coordinator.receive(item)
        else:
            self.send(self.silos[item.to].handle(item))

    def lose(self) -> None:
        self.network.pop(self._pick())

    def duplicate(self) -> None:
        self.network.append(self.network[self._pick()])

    def crash_silo(self) -> None:
        if self.spare:
            self.spare -= 1
            self.silos[self.random.choice(self.names)].crash()
