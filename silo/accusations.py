"""The evidence that this silo holds against peers and coordinator: its own signed aborts, with what they rest on.

They are sent once, to a coordinator that may be the accused; kept here, they can be shown to anybody at any time. Each
is kept as a file that an auditor judges with the federation's root and nothing else (feddrm.contract.case).
"""

from __future__ import annotations

from typing import Final

from feddrm.contract.case import Case
from privacy.errors import MalformedError
from privacy.witness import check_fork
from secagg.evidence import judge
from secagg.session import Announcement
from secagg.wire import Frame
from silo.books import origin_of
from silo.context import Context
from silo.state import State

KEPT: Final = 10
"""Of one accused in one plan, and of each kind: the first pieces convict as well as the last. What proves nothing, such
as a coordinator can make without end, has its own places, so that it keeps nothing out that does."""


class Accusations:
    """Signed aborts with evidence, in the database's table of evidence."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keep(self, announcement: Announcement, frame: Frame, blamed: str) -> None:
        """Keep an abort of a session with its evidence, durably; only so many against one accused.

        Args:
            announcement: of the session.
            frame: the abort, with its evidence attached.
            blamed: whom it accuses, empty for the coordinator.
        """
        state, plan = self._context.state, announcement.plan
        kind = "proof" if self._convicts(announcement, frame, blamed) else "loose"
        place = f"evidence {plan.hex()} {kind} {blamed}"
        count = int.from_bytes(state.fact(place) or b"")
        if count >= KEPT:
            return
        case = Case(announcement.encode(), frame, self._context.signed_roster.to_json())
        with state.transaction():
            state.set_fact(place, (count + 1).to_bytes(2))
            state.keep_case(plan, announcement.round, case.to_json())

    def _convicts(self, announcement: Announcement, frame: Frame, blamed: str) -> bool:
        keys = self._context.identities(announcement.cohort)
        if judge(frame, announcement.encode(), keys).guilty:
            return True
        if blamed not in keys:
            return False
        try:
            check_fork(frame.attachment, origin=origin_of(announcement.federation, blamed), key=keys[blamed])
        except MalformedError:
            return False
        return True


def cases(state: State) -> tuple[tuple[bytes, int, Case], ...]:
    """All that were kept, oldest first: plan, round, evidence."""
    return tuple((plan, number, Case.from_json(text.encode())) for plan, number, text in state.cases())
