"""A permission that is taken back while the personal head is tuned: the round that waited for it reads nothing."""

from __future__ import annotations

from collections.abc import Callable

from silo_harness import NAMES, Desk
from silo_world import World
from test_stages_with_coordinator import world_of

from privacy.leaves import Keep, Reserve
from silo.effects import Contribute, Contributed, Tune, Tuned, TuningFailed


class Withdrawing:
    """A worker during whose tuning the hospital lowers its cap below what the job costs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._house = world.houses[NAMES[0]]

    def contribute(self, effect: Contribute) -> Contributed:
        """As the house does without a worker."""
        self._house.worker = None
        contributed = self._house.contributed_event(effect)
        self._house.worker = self  # type: ignore[assignment]
        assert isinstance(contributed, Contributed)
        return contributed

    def tune(self, effect: Tune, _stop: object) -> Tuned | TuningFailed:
        """Tune, and take the permission back."""
        self._house.policy = self._world.trial.policy(job_epsilon=1e-3)
        return Tuned(effect.plan_hash, effect.personal)


def test_a_permission_taken_back_during_tuning_stops_the_evaluation_here(make_desk: Callable[..., Desk]) -> None:
    world = world_of(make_desk, 3)
    house = world.houses[NAMES[0]]
    house.worker = Withdrawing(world)  # type: ignore[assignment]
    world.run()
    leaves = [record.leaf for record in house.ledger.leaves()]
    assert any(isinstance(leaf, Keep) for leaf in leaves)
    assert (4, 6) not in [(leaf.stage, leaf.round) for leaf in leaves if isinstance(leaf, Reserve)]
    assert (4, 6) in [
        (e.leaf.stage, e.leaf.round) for e in world.houses[NAMES[1]].ledger.leaves() if isinstance(e.leaf, Reserve)
    ]
