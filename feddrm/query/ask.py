"""Ask the silo that a patient was routed to, without showing the patient to the coordinator (design section 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

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
from feddrm.query.route import Routed, batches, route_rows
from feddrm.transport.status import (
    BusyError,
    DisconnectedError,
    ReleaseChangedError,
    SiloRefusedError,
    UnknownQuerierError,
)

_ROUTES_OF_ONE_ROW: Final = 3


@dataclass(frozen=True, slots=True)
class Answered:
    """What a hospital's own model says of one record. `row` counts from 0; `probability` is that of `label`."""

    row: int
    silo: str
    label: str = field(repr=False)
    probability: float = field(repr=False)


@dataclass(slots=True)
class Outcome:
    """The answers that came, in row order, and the error that ended the run early, if one did."""

    answers: list[Answered]
    failure: FeddrmError | None = None


@dataclass(frozen=True, slots=True)
class Asker:
    """Routes and asks all rows of a table.

    Attributes:
        features: float32[n, d]; they leave sealed only.
        codes: the n coarse embeddings, all that the coordinator sees of them.
        now_ms: the clock.
        in_flight: asks at once.
        done: called after every answer.
    """

    coordinator: Coordinator
    model: QuerierModel
    home: MemberHome
    features: npt.NDArray[np.float32] = field(repr=False)
    codes: Sequence[bytes] = field(repr=False)
    now_ms: Callable[[], int]
    in_flight: int = 32
    done: Callable[[], None] = lambda: None

    async def run(self) -> Outcome:
        """Ask everything. The first error stops new asks; those in flight are awaited, as their answers cost budget."""
        answers: dict[int, Answered] = {}
        failures: list[FeddrmError] = []
        slots = asyncio.Semaphore(self.in_flight)

        async def one(routed: Routed) -> None:
            async with slots:
                if failures:
                    return
                try:
                    answers[routed.row] = await self._ask_row(routed)
                except FeddrmError as error:
                    failures.append(error)
                else:
                    self.done()

        try:
            for rows in batches(len(self.codes)):
                await asyncio.gather(*(one(routed) for routed in await self._route(rows)))
                if failures:
                    break
        except FeddrmError as error:
            failures.append(error)
        return Outcome([answers[row] for row in sorted(answers)], failures[0] if failures else None)

    async def _route(self, rows: Sequence[int]) -> tuple[Routed, ...]:
        return await route_rows(self.coordinator, self.model, self.home, self.codes, rows, self.now_ms())

    async def _ask_row(self, routed: Routed) -> Answered:
        """Ask about one row; a silo that went away after the route is given up for the next choice.

        Raises:
            FeddrmError: as the call's own, but it names the silo and says who can act.
        """
        for _ in range(_ROUTES_OF_ONE_ROW - 1):
            try:
                return await self._ask(routed)
            except (BusyError, DisconnectedError) as error:
                raise self._named(error, routed) from error
            except UnreachableError:
                (routed,) = await self._route([routed.row])
            except FeddrmError as error:
                raise self._named(error, routed) from error
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

    async def _ask(self, routed: Routed) -> Answered:
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
        classes = self.model.plan.schema_.target.classes
        if len(probabilities) != len(classes):
            raise MalformedError(
                f"{silo.name} answered with {len(probabilities)} classes; the plan has {len(classes)}."
            )
        best = int(probabilities.argmax())
        return Answered(routed.row, silo.name, classes[best], round(float(probabilities[best]), 6))
