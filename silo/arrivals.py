"""What arrives in a round beside orders: other silos' frames, and sums, of the session at hand or of a missed round."""

from __future__ import annotations

from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.messages import Publish, StepFrames
from silo.catchup import Outcomes
from silo.context import Work
from silo.effects import Effect, Fetched, Log
from silo.rounds import Rounds
from silo.session import Session
from silo.state import Job


class Arrivals:
    """Hands frames to the session that they are for, and verified sums to the rounds that they end."""

    def __init__(self, rounds: Rounds, outcomes: Outcomes) -> None:
        self._rounds = rounds
        self._outcomes = outcomes

    def step(self, event: StepFrames | Publish, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """Frames of a step for the session at hand, or its published sum."""
        session = self._rounds.current
        if not isinstance(session, Session):
            return []
        if isinstance(event, StepFrames):
            return session.request(event) if session.named(event.session) else []
        effects, total = session.publish(event), event.frame.attachment
        if not total or not session.wants(event.sum):
            return effects
        return [*effects, *self.fetched(Fetched(event.sum, total), job, work, now_ms)]

    def fetched(self, event: Fetched, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """The bytes of a sum: of the session at hand, or of a round that others certified."""
        session = self._rounds.current
        if not isinstance(session, Session) or not session.wants(event.blob):
            try:
                self._outcomes.fetched(event.blob, event.data, job, work, now_ms)
            except (VerificationError, MalformedError) as error:
                return [Log(f"Refused a sum: {error}", warning=True)]
            return []
        verified, effects = session.fetched(event.data)
        if verified is None:
            return effects
        return [*effects, *self._outcomes.verified(job, work, verified)]

    def uploaded(self, blob: bytes) -> list[Effect]:
        """A masked input has arrived at the coordinator."""
        session = self._rounds.current
        return session.uploaded(blob) if isinstance(session, Session) else []
