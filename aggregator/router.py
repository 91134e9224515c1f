"""The release in service: what queriers get of it, and the head that routes (design section 7, Answers; section 8).

The head stays here. Nothing that leaves this file holds a score, a margin or a ranking, nor does any log line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import safetensors.numpy

from feddrm.contract.chunks import blob_hash
from feddrm.contract.query_messages import QuerierRelease
from feddrm.contract.release import Bundle, release_hash, release_id
from feddrm.contract.roster import Roster
from feddrm.contract.signed_plan import verify_plan
from feddrm.method.coarse import Grid
from feddrm.method.layout import layout_of
from feddrm.method.routing import Router
from feddrm.method.update import Tensors


@dataclass(frozen=True, slots=True)
class Serving:
    """One published release.

    Attributes:
        second_opinion: how near the best one's density ratio the second-best's must be to be asked, too; 1 is never.
        fitted: whether stage 2 fitted the head.
        questions: of each silo, what it answers; only silos of equal numbers are asked together.
    """

    id: str
    release: bytes
    querier: QuerierRelease
    threshold: int
    second_opinion: float
    fitted: bool
    questions: tuple[int, ...]
    grid: Grid = field(repr=False)
    router: Router = field(repr=False)

    @classmethod
    def from_bundle(cls, bundle: Bundle, head: Tensors, roster: Roster) -> Serving:
        """Build the router, and the grid of the embeddings that it takes, from the files of a release.

        Args:
            head: the head's tensors, float32.
            roster: names the operator whose plan it is.

        Raises:
            VerificationError: the plan is not the operator's.
            MalformedError: head or trunk is not of the plan's layout.
        """
        plan = verify_plan(bundle.plan, federation=roster.federation, operator=roster.operator).plan
        return cls(
            id=release_id(bundle.statement),
            release=release_hash(bundle.statement),
            querier=QuerierRelease(bundle.plan, bundle.statement, blob_hash(bundle.trunk)),
            threshold=plan.secure_aggregation.threshold,
            second_opinion=plan.queries.second_opinion,
            fitted=plan.routing_fit is not None,
            questions=plan.questions,
            grid=Grid.of(plan, safetensors.numpy.load(bundle.trunk)),
            router=Router.from_tensors(layout_of(plan), head, plan.silos),
        )

    def route(self, codes: Sequence[bytes], eligible: Collection[str]) -> tuple[tuple[str, ...], ...]:
        """For each coarse embedding the best-matching eligible silo, or two that are nearly tied, in the plan's order.

        Raises:
            MalformedError: a code is not of this release's length, or carries more than the code.
            UnreachableError: no silo is eligible.
        """
        phi = self.grid.decode(codes)
        return self.router.route(phi, eligible, self.second_opinion, fitted=self.fitted, questions=self.questions)
