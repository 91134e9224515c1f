"""One sealed question about one record to one silo, and what its errors mean to a person (design section 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import (
    BudgetError,
    FeddrmError,
    MalformedError,
    NotAuthorisedError,
    UnreachableError,
)
from feddrm.contract.home import MemberHome
from feddrm.contract.seal import AskContext, open_answer, seal_request
from feddrm.query.coordinator import Coordinator
from feddrm.query.model import QuerierModel
from feddrm.query.route import Routed
from feddrm.transport.status import (
    BusyError,
    DisconnectedError,
    ReleaseChangedError,
    SiloRefusedError,
    UnknownQuerierError,
)


@dataclass(frozen=True, slots=True)
class Questions:
    """Asks silos about the rows of a table.

    Attributes:
        features: float32[n, d]; they leave sealed only.
        now_ms: the clock.
    """

    coordinator: Coordinator
    model: QuerierModel
    home: MemberHome
    features: npt.NDArray[np.float32] = field(repr=False)
    now_ms: Callable[[], int]

    async def put(self, routed: Routed) -> npt.NDArray[np.float64]:
        """What the silo's own model says of the routed row: a probability float64[C] for each of its classes.

        Raises:
            FeddrmError: as the call's own, but it names the silo and says who can act.
        """
        try:
            return await self._ask(routed)
        except FeddrmError as error:
            raise self._named(error, routed) from error

    def _named(self, error: FeddrmError, routed: Routed) -> FeddrmError:
        """What a person can act on. The silo itself tells no more than a word; the route says which silo it was."""
        silo, me = routed.silo.name, self.home.name
        match error:
            case UnknownQuerierError():
                return NotAuthorisedError(
                    f"{silo} does not know this querier yet: {me} is not in the roster that {silo} has approved.",
                    remedy=f"The IT of {silo} must accept roster version {routed.roster_version}: feddrm-silo roster"
                    " show, then roster accept.",
                )
            case SiloRefusedError():
                return NotAuthorisedError(
                    f"{silo} refuses the question.", remedy=f"The log of its agent says why; call the IT of {silo}."
                )
            case BudgetError():
                return BudgetError(
                    f"{silo} gives {me} no more answers today.",
                    remedy=f"Ask again tomorrow (UTC), or call the IT of {silo}: answers_per_day in local/agent.toml.",
                )
            case BusyError():
                return BusyError(f"{silo} is still busy.", remedy="Ask again later, or give it longer with --patience.")
            case DisconnectedError() | ReleaseChangedError():
                return error
            case UnreachableError():
                return UnreachableError(f"{silo} was not reached: {error.message}", remedy=error.remedy)
        return error

    async def _ask(self, routed: Routed) -> npt.NDArray[np.float64]:
        silo = routed.silo
        context = AskContext(
            federation=self.home.federation,
            querier=self.home.name,
            silo=silo.name,
            roster_version=routed.roster_version,
            release=self.model.release.hash,
            ticket=routed.ticket_hash,
        )
        sealed, pending = seal_request(
            self.features[routed.row : routed.row + 1],
            context=context,
            sealing_key=silo.sealing,
            signer=self.home.keys.identity,
            now_ms=self.now_ms(),
        )
        answer = await self.coordinator.ask(silo.name, routed.ticket, sealed)
        (probabilities,) = open_answer(pending, answer, silo_key=silo.identity)
        expected = len(self.model.plan.at(silo.name).schema_.target.classes)
        if len(probabilities) != expected:
            raise MalformedError(
                f"{silo.name} answered with {len(probabilities)} classes; by the plan it has {expected}."
            )
        said: npt.NDArray[np.float64] = probabilities.astype(np.float64)
        return said
