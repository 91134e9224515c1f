"""Where a silo is in its job, as it tells the coordinator and as its participant compares before and after an event."""

from __future__ import annotations

from feddrm.contract.messages import Ready
from feddrm.contract.names import SiloId
from feddrm.method.update import model_hash
from silo.context import Context, Work, current_model
from silo.state import Job
from silo.witnessing import Witnessing


class Standing:
    """One agent process in its place."""

    def __init__(self, context: Context, witnessing: Witnessing) -> None:
        self._context = context
        self._witnessing = witnessing

    def idle(self) -> Ready:
        """It is in no job, or must not say yet that it is in one."""
        return Ready(self._context.boot, b"", 0, b"", (), self._context.roster_hash)

    def ready(self, job: Job, work: Work) -> Ready:
        """It has the state after this round of this job, and saw so much of its peers' ledgers."""
        seen = sorted(self._witnessing.witnessed().items())
        heads = tuple((SiloId(name), size) for name, size in seen if name in work.plan.silos)
        model = model_hash(current_model(self._context.state, job))
        return Ready(self._context.boot, job.plan, job.round, model, heads, self._context.roster_hash)

    def place(self, job: Job) -> tuple[bytes, int, bytes]:
        """Plan, round and record of how it ended here: changes whenever a round ends or is taken back."""
        known = self._context.state.outcome(job.plan, job.round)
        return job.plan, job.round, b"" if known is None else known.record
