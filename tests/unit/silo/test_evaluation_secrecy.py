"""What the coordinator sees of an evaluation: the sum, and of each silo nothing but masks."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from silo_harness import Desk
from silo_world import World
from test_stages_with_coordinator import EVALUATION, FIT, HEAD, world_of

from aggregator import checkpoint
from aggregator.events import Event, FromSilo
from feddrm.contract.release import Statement
from feddrm.method.layout import layout_of
from feddrm.method.progress import segments
from secagg.session import vector_size
from silo.effects import Contribute, Contributed, Tune, Tuned


class Counting:
    """A hospital's worker whose sums are numbers that occur nowhere else, and known to the test."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.sent: dict[int, np.ndarray[Any, Any]] = {}

    def contribute(self, effect: Contribute) -> Contributed:
        _, words = segments(effect.plan, layout_of(effect.plan), effect.stage)
        # Beyond 32 bits, so that none is found by chance in a few thousand bytes; four of them fit the ring.
        self.sent[effect.round] = np.array([self._draw.randrange(1 << 34, 1 << 37) for _ in range(words)], np.int64)
        return Contributed(effect.plan_hash, effect.stage, effect.round, self.sent[effect.round])

    def tune(self, effect: Tune, _stop: object) -> Tuned:
        return Tuned(effect.plan_hash, effect.personal)


def leaves(value: Any) -> Iterator[bytes]:
    """All bytes and texts within an event."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, str | int | float):
        yield str(value).encode()
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name))
    elif isinstance(value, list | tuple | set | frozenset):
        for entry in value:
            yield from leaves(entry)


@dataclasses.dataclass
class Seen:
    """A job of which everything that reaches the coordinator is kept."""

    world: World
    workers: dict[str, Counting]
    bodies: list[bytes]

    def everything(self) -> bytes:
        return b"|".join([*self.bodies, *self.world.trial.uploads.values(), checkpoint.encode(self.world.coordinator)])


@pytest.fixture
def seen(make_desk: Callable[..., Desk]) -> Seen:
    world = world_of(make_desk, 9, routing_fit=FIT, personal_head=HEAD, evaluation=EVALUATION)
    result = Seen(world, {}, [])
    for number, (name, house) in enumerate(world.houses.items()):
        result.workers[name] = Counting(number)
        house.worker = result.workers[name]  # type: ignore[assignment]
    submit = world.submit

    def recorded(event: Event) -> None:
        if isinstance(event, FromSilo):
            result.bodies.extend(leaves(event.event))
        submit(event)

    world.submit = recorded  # type: ignore[method-assign]
    world.run()
    assert len(world.job.phase.signatures) == 4
    return result


def forms(word: int) -> tuple[bytes, ...]:
    return word.to_bytes(8, "little"), word.to_bytes(8, "big"), str(word).encode()


def test_no_silo_s_own_figure_can_be_derived_from_what_the_coordinator_sees(seen: Seen) -> None:
    world = seen.world
    last = len(world.job.outcomes)
    own = {name: worker.sent[last] for name, worker in seen.workers.items()}
    total = sum(own.values())
    statement = Statement.model_validate_json(world.job.phase.statement)
    assert statement.evaluation is not None
    assert statement.evaluation.total == tuple(total.tolist())
    everything = seen.everything()
    # The search finds what is there: the sum, which all may know.
    assert all(any(form in everything for form in forms(word)) for word in total.tolist())
    for name, words in own.items():
        found = [word for word in words.tolist() if any(form in everything for form in forms(word))]
        assert not found, name
        # Nor what would give it away by a subtraction from the sum: what all others added together.
        rest = [word for word in (total - words).tolist() if any(form in everything for form in forms(word))]
        assert not rest, name


def test_what_a_silo_sends_is_a_mask_to_whoever_lacks_a_peer_s_key(seen: Seen) -> None:
    """Masked words are even in all their bits, though the words under them have 37 of 64."""
    world = seen.world
    plan, layout = world.trial.plan, world.job.layout
    bits = ones = 0
    for data in world.trial.uploads.values():
        for stage in (2, 4):
            words32, words64 = segments(plan, layout, stage)
            if len(data) == vector_size(words32, words64):
                # Tags are at the end, and below a prime.
                masked = np.frombuffer(data[: 8 * words64], dtype=np.uint8)
                bits, ones = bits + 8 * len(masked), ones + int(np.unpackbits(masked).sum())
    assert bits >= 4 * 64 * (3 * 16 + 4)
    # Six standard deviations: one run in 10**9.
    assert abs(ones - bits / 2) < 6 * (bits / 4) ** 0.5
