"""What a silo says when it takes no part in a round, and when (design 6 and 10).

A statement is for good: that it released no share in a session and never will. So it is durable before it leaves.
"""

from __future__ import annotations

from typing import Final

from feddrm.contract.messages import SiloFrame
from secagg.aborts import abort_frame
from silo.context import Context, Work
from silo.effects import Effect, Log, Send
from silo.slots import slot_end_ms

# R1 is waited for train_seconds; the last slot ends before.
_LIMIT: Final = 0.9


def limit_ms(work: Work) -> int:
    """How long an answer to an announcement is of any use."""
    return round(work.plan.deadlines.train_seconds * 1000 * _LIMIT)


class Refusals:
    """Signed refusals, at most one announcement's of which wait for the end of a slot."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: tuple[int, tuple[Send, ...]] | None = None

    @property
    def due_ms(self) -> int | None:
        """When `tick` has something to do."""
        return None if self._held is None else self._held[0]

    def forget(self) -> None:
        """The round was resolved, or the job ended: what would be refused is over."""
        self._held = None

    def tick(self, now_ms: int) -> list[Effect]:
        """What was held back, once its slot is over."""
        if self._held is None or now_ms < self._held[0]:
            return []
        refusals, self._held = self._held[1], None
        return list(refusals)

    def late(self, effects: list[Effect], asked_ms: int, now_ms: int, work: Work) -> list[Effect]:
        """Hold back what a question that waited (for the records to be read, the personal head to be tuned) is answered
        with: it leaves at the end of a slot, or its time would tell how long that took."""
        refusals = tuple(effect for effect in effects if isinstance(effect, Send))
        if not refusals or now_ms == asked_ms:
            return effects
        self._held = (slot_end_ms(asked_ms, now_ms, self._context.slot_ms, limit_ms(work)), refusals)
        return [effect for effect in effects if not isinstance(effect, Send)]

    def refuse(self, opened: bytes, reason: str) -> list[Effect]:
        """Say that an announcement is not entered, or the coordinator waits for the deadline.

        Args:
            opened: SHA-256 of the R0 body.
            reason: for the hospital's own log.
        """
        state = self._context.state
        entered = state.session(opened)
        if entered is None:
            state.refuse(opened)
        released = entered is not None and entered.released
        return [
            Log(f"Refused an announcement: {reason}", warning=True),
            self.last_word(opened, released, "announcement refused"),
        ]

    def last_word(self, opened: bytes, released: bool, reason: str) -> Send:
        """The signed abort of a session that this silo is not in.

        Args:
            released: whether unmasking shares left in it.
            reason: goes to everybody.
        """
        frame = abort_frame(
            announcement=opened,
            me=self._context.me,
            signer=self._context.signer,
            released=released,
            reason=reason,
        )
        return Send(SiloFrame(frame))
