"""The participant: the silo's whole part in a job as a pure state machine (design 5 to 9).

`handle(event, now_ms)` and `tick(now_ms)` return effects. No socket, thread or clock here; entropy and time are
arguments; what an effect rests on is durable (silo.state, the ledger) before it is returned. Nothing that the
coordinator sends is believed: plans carry the operator's signature, announcements must equal what the plan gives,
frames carry silos' signatures, sums verify by their tags or by t silos' acks.
"""

from __future__ import annotations

from silo.boundary import internal_error
from silo.context import Context
from silo.effects import Effect, Event, ForgetDeleted
from silo.reactions import Reactions


class Participant:
    """One silo in at most one job.

    Whatever goes wrong in handling one event ends that session, round or offer and nothing else: the one exception that
    leaves is that this silo's own files cannot be written (silo.boundary).

    Args:
        context: who this silo is and where its memory is.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reactions = Reactions(context)

    @property
    def due_ms(self) -> int | None:
        """When `tick` is wanted, milliseconds since the epoch."""
        return self._reactions.due_ms

    @property
    def between_rounds(self) -> bool:
        """Whether no session, training, reading or unanswered question is in memory: a new start would lose nothing."""
        return self._reactions.between_rounds

    @property
    def refusing(self) -> bool:
        """Whether this silo stays out of its job or declined the newest offer: what its people change may end that."""
        return self._reactions.refusing

    def start(self, now_ms: int) -> list[Effect]:
        """First call: settle what a process before this one left open."""
        try:
            return self._reactions.start(now_ms)
        except Exception as error:  # noqa: BLE001 - the boundary: what was stored may come from outside, too
            return [internal_error(error, "the start")]

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what has become due."""
        try:
            effects = self._reactions.rounds_due(now_ms)
        except Exception as error:  # noqa: BLE001 - the boundary
            effects = [internal_error(error, "a round"), *self._refuse(None, now_ms)]
        try:
            effects += self._reactions.releases_due(now_ms)
        except Exception as error:  # noqa: BLE001 - the boundary
            effects.append(internal_error(error, "a release"))
        return [*effects, *self._reactions.offers_due(now_ms)]

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """React to the coordinator or to the shell."""
        try:
            effects = self._reactions.handle(event, now_ms)
        except Exception as error:  # noqa: BLE001 - the boundary
            effects = [internal_error(error, type(event).__name__), *self._refuse(event, now_ms)]
        effects += self.tick(now_ms)
        return [*effects, ForgetDeleted()] if self._context.state.remains else effects

    def _refuse(self, event: Event | None, now_ms: int) -> list[Effect]:
        try:
            return self._reactions.refuse(event, now_ms)
        except Exception as error:  # noqa: BLE001 - the boundary
            return [internal_error(error, "refusing"), *self._reactions.forget_session()]
