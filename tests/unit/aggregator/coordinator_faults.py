"""Faults of silos at a step of the protocol."""

from __future__ import annotations

from typing import Any

from coordinator_harness import World

from feddrm.contract import messages as m
from secagg.wire import Step

# What a silo gets before it sends the frame of a step.
REQUEST_OF = {
    Step.KEYS: lambda e: isinstance(e, m.Announce),
    Step.SHARES: lambda e: isinstance(e, m.StepFrames) and e.step == Step.KEYS,
    Step.MASKED: lambda e: isinstance(e, m.StepFrames) and e.step == Step.SHARES,
    Step.CONSISTENCY: lambda e: isinstance(e, m.StepFrames) and e.step == Step.MASKED,
    Step.UNMASK: lambda e: isinstance(e, m.StepFrames) and e.step == Step.CONSISTENCY,
}
ALL = tuple(f"site-{i}" for i in range(1, 6))


def without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in ALL if name not in names)


class Fault:
    """Does something to a silo the first time that it is about to send a step's frame in a round."""

    def __init__(self, world: World, step: Step, *names: str, act: Any) -> None:
        self.world, self.step, self.names, self.act = world, step, names, act
        self.done: set[str] = set()
        world.filter = self

    def __call__(self, way: str, silo: str, event: Any) -> bool:
        if way == "down" and silo in self.names and silo not in self.done and REQUEST_OF[self.step](event):
            self.done.add(silo)
            self.act(silo)
            return False
        return True


def three_fall_silent(world: World) -> None:
    """From now on three silos die whenever they should mask, and sign no abort."""

    def sabotage(way: str, silo: str, event: Any) -> bool:
        if silo in ("site-1", "site-2", "site-4") and way == "down":
            if REQUEST_OF[Step.MASKED](event):
                world.kill(silo)
                return False
            return not isinstance(event, m.AbortRequest)
        return True

    world.filter = sabotage


def all_blame(world: World, accused: str, words: str) -> None:
    """From now on every other silo answers the keys of a session by blaming one, until that one is left out."""

    def accuse(way: str, silo: str, event: Any) -> bool:
        keys = isinstance(event, m.StepFrames) and event.step == Step.KEYS
        if way == "down" and keys and accused not in world.job.barred and silo != accused:
            agent = world.silos[silo]
            frame = agent.state.abort(words, accused)
            agent.state = None
            world.to_coordinator.append((silo, m.SiloFrame(frame)))
            return False
        return True

    world.filter = accuse
