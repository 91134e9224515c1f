"""Ask the silo that a patient was routed to, without showing the patient to the coordinator (design section 8).

A hospital that refuses is not replaced by the next-best one: a querier would see a second choice whenever it wanted, by
using up its answers of the first, and a ranking is more than a route. Its rows stay unanswered and are named; those of
other hospitals are asked all the same. (One that goes away after the route is replaced, as a router under load may do.)
"""

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


@dataclass(frozen=True, slots=True)
class Refusal:
    """A hospital that gave no answer, why, and the rows that were routed to it in vain, from 0."""

    silo: str
    error: FeddrmError
    rows: tuple[int, ...]


@dataclass(slots=True)
class Outcome:
    """The answers that came, in row order, the hospitals that refused, and the error that ended the run early, if one
    did."""

    answers: list[Answered]
    refusals: list[Refusal] = field(default_factory=list)
    failure: FeddrmError | None = None


class _Refused(Exception):  # noqa: N818 - what a hospital did, not a fault
    """A hospital answers no question of this querier now."""

    def __init__(self, silo: str, error: FeddrmError) -> None:
        super().__init__(silo)
        self.silo = silo
        self.error = error


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
        """Ask everything. A hospital that refused once is not asked again. Any other error stops new asks; those in
        flight are awaited, as their answers cost budget."""
        answers: dict[int, Answered] = {}
        refusals: dict[str, tuple[FeddrmError, list[int]]] = {}
        failures: list[FeddrmError] = []
        slots = asyncio.Semaphore(self.in_flight)

        async def one(routed: Routed) -> None:
            async with slots:
                if failures:
                    return
                if routed.silo.name in refusals:
                    refusals[routed.silo.name][1].append(routed.row)
                    return
                try:
                    answers[routed.row] = await self._ask_row(routed)
                except _Refused as refused:
                    refusals.setdefault(refused.silo, (refused.error, []))[1].append(routed.row)
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
        return Outcome(
            [answers[row] for row in sorted(answers)],
            [Refusal(silo, error, tuple(sorted(rows))) for silo, (error, rows) in refusals.items()],
            failures[0] if failures else None,
        )

    async def _route(self, rows: Sequence[int]) -> tuple[Routed, ...]:
        return await route_rows(self.coordinator, self.model, self.home, self.codes, rows, self.now_ms())

    async def _ask_row(self, routed: Routed) -> Answered:
        """Ask about one row; a silo that went away after the route is given up for the next choice.

        Raises:
            _Refused: the silo answers no question of this querier now.
            FeddrmError: as the call's own, but it names the silo and says who can act.
        """
        for _ in range(_ROUTES_OF_ONE_ROW - 1):
            try:
                return await self._ask(routed)
            except (BusyError, DisconnectedError) as error:
                raise self._named(error, routed) from error
            except UnreachableError:
                (routed,) = await self._route([routed.row])
            except (NotAuthorisedError, BudgetError) as error:
                raise _Refused(routed.silo.name, self._named(error, routed)) from error
            except FeddrmError as error:
                raise self._named(error, routed) from error
        try:
            return await self._ask(routed)
        except (NotAuthorisedError, BudgetError) as error:
            raise _Refused(routed.silo.name, self._named(error, routed)) from error
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
        classes = self.model.plan.at(silo.name).schema_.target.classes
        if len(probabilities) != len(classes):
            raise MalformedError(
                f"{silo.name} answered with {len(probabilities)} classes; by the plan it has {len(classes)}."
            )
        best = int(probabilities.argmax())
        return Answered(routed.row, silo.name, classes[best], round(float(probabilities[best]), 6))
