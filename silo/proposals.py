"""A proposed release from its arrival to this silo's signature: the personal head that answers for it comes first.

Where nothing is evaluated, or its round was lost, the proposal is what starts the tuning, and the signature is the next
message that leaves. Tuning and reading take a time that depends on the records, so what had to wait for them leaves at
the end of a slot (silo.slots), however often it is proposed meanwhile. Nothing of this is durable: after a restart the
coordinator proposes again, and the time of that depends on no record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from feddrm.contract.messages import ReleaseProposal
from silo.context import Context, Work, needs_no_round
from silo.effects import Effect
from silo.permission import Permission
from silo.releases import Releases
from silo.slots import UNLIMITED_MS, slot_end_ms
from silo.state import Job
from silo.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Held:
    """A proposal that had to wait; `due_ms` once it waits for nothing but the end of its slot."""

    event: ReleaseProposal
    asked_ms: int
    due_ms: int | None = None


class Proposals:
    """At most one proposal that waits: for the records, for the personal head, then for the end of its slot."""

    def __init__(self, context: Context, releases: Releases, permission: Permission, tuning: Tuning) -> None:
        self._context = context
        self._releases = releases
        self._permission = permission
        self._tuning = tuning
        self._held: Held | None = None

    @property
    def due_ms(self) -> int | None:
        """When `tick` has something to do."""
        return None if self._held is None else self._held.due_ms

    @property
    def busy(self) -> bool:
        """Whether one waits for the end of its slot; what else one waits for is busy itself."""
        return self.due_ms is not None

    def forget(self) -> None:
        """The job ended: its release is not wanted any more."""
        self._held = None

    def propose(
        self, event: ReleaseProposal, job: Job, work: Work, now_ms: int, *, ready: bool, problem: str
    ) -> list[Effect]:
        """Sign a release at once if nothing has to be waited for.

        Args:
            ready: the records can be read.
            problem: why they never will be, if so.
        """
        if not needs_no_round(self._context.state, work, job):
            # It will not be signed, and must not start a tuning that a round after it would then measure.
            return self._releases.propose(work, job, event)
        if self._held is not None:
            # It is on its way; asked again it must not leave at another time.
            self._held = replace(self._held, event=event)
        elif self._tuning.busy or self._tuning.due(job, work) or now_ms < self._tuning.over_ms:
            self._held = Held(event, now_ms)
        else:
            return self._releases.propose(work, job, event)
        return self.proceed(job, work, now_ms, ready=ready, problem=problem)

    def proceed(self, job: Job, work: Work, now_ms: int, *, ready: bool, problem: str) -> list[Effect]:
        """Tune the head that a proposal waits for, or fix when the answer leaves. Arguments as for `propose`."""
        held, effects = self._held, list[Effect]()
        if held is None or held.due_ms is not None or self._tuning.busy:
            return effects
        if self._tuning.due(job, work) and not self._permission.problem(work, now_ms) and not problem:
            if not ready:
                return effects
            effects = self._tuning.begin(job, work, now_ms, held.asked_ms)
            if self._tuning.busy:
                return effects
        # What was tuned was not always begun for this proposal: then its slot counts from what it was begun for.
        due_ms = self._tuning.over_ms
        if due_ms < now_ms:
            due_ms = slot_end_ms(held.asked_ms, now_ms, self._context.slot_ms, UNLIMITED_MS)
        self._held = replace(held, due_ms=due_ms)
        return effects

    def tick(self, job: Job, work: Work, now_ms: int) -> list[Effect]:
        """Sign once the slot is over."""
        held = self._held
        if held is None or held.due_ms is None or now_ms < held.due_ms:
            return []
        self._held = None
        return self._releases.propose(work, job, held.event)
