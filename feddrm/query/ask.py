"""Ask the silos that patients were routed to, without showing a patient to the coordinator (design section 8).

A row is routed to one silo, or to two that are nearly tied; the answers of two are averaged. A hospital that refuses is
not replaced by the next-best one: a querier would see a second choice whenever it wanted, by using up its answers of
the first, and a ranking is more than a route. The other one of two answers alone then, which tells no more, as both
are named whoever refuses; a row without an answer is named. Whoever is away is passed over in the same way, and where
nobody of a row is there, the row is routed again, as a router under load may do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import BudgetError, FeddrmError, NotAuthorisedError, UnreachableError
from feddrm.query.question import Questions
from feddrm.query.route import Routed, batches, route_rows
from feddrm.transport.status import BusyError, DisconnectedError

_ROUTES_OF_ONE_ROW: Final = 3


@dataclass(frozen=True, slots=True)
class Answered:
    """What the silos of one record say, as the mean of those that answered.

    Attributes:
        row: from 0.
        silos: where it was routed, in the plan's order.
        missing: those of them that gave no answer.
        label: the likeliest class.
        probability: that of `label`.
    """

    row: int
    silos: tuple[str, ...]
    missing: tuple[str, ...]
    label: str = field(repr=False)
    probability: float = field(repr=False)


@dataclass(frozen=True, slots=True)
class Silence:
    """A hospital that gave no answer, why, and the rows that were routed to it in vain, from 0; some of them may have
    been answered by another one."""

    silo: str
    error: FeddrmError
    rows: tuple[int, ...]

    @property
    def refused(self) -> bool:
        """Whether it was there and would not answer."""
        return _refuses(self.error)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answers that came, in row order, the hospitals that kept silent, and the error that ended the run early, if
    one did."""

    answers: tuple[Answered, ...]
    silences: tuple[Silence, ...]
    failure: FeddrmError | None


def _refuses(error: FeddrmError) -> bool:
    return isinstance(error, NotAuthorisedError | BudgetError)


def _absent(error: FeddrmError) -> bool:
    """Whether the hospital is away, and not the coordinator."""
    return isinstance(error, UnreachableError) and not isinstance(error, DisconnectedError)


@dataclass(frozen=True, slots=True)
class Asker:
    """Routes and asks all rows of a table.

    Attributes:
        codes: the n coarse embeddings, all that the coordinator sees of the rows.
        in_flight: rows that are asked at once.
        done: called after every row that was answered.
    """

    questions: Questions
    codes: Sequence[bytes] = field(repr=False)
    in_flight: int = 32
    done: Callable[[], None] = lambda: None

    async def run(self) -> Outcome:
        """Ask everything. A hospital that refused once is not asked again, one that was away not in the same batch of
        routes. Any other error stops new asks; those in flight are awaited, as their answers cost budget."""
        answers: dict[int, Answered] = {}
        silences: dict[tuple[str, bool], tuple[FeddrmError, list[int]]] = {}
        failures: list[FeddrmError] = []
        slots = asyncio.Semaphore(self.in_flight)
        silent: dict[str, FeddrmError] = {}

        async def one(routes: tuple[Routed, ...]) -> None:
            async with slots:
                if failures:
                    return
                row = routes[0].row
                try:
                    answer, missed = await self._row(routes, silent)
                except FeddrmError as error:
                    failures.append(error)
                    return
                for silo, why in missed.items():
                    silences.setdefault((silo, _refuses(why)), (why, []))[1].append(row)
                if answer is not None:
                    answers[row] = answer
                    self.done()

        try:
            for rows in batches(len(self.codes)):
                for silo in [silo for silo, error in silent.items() if not _refuses(error)]:
                    del silent[silo]
                await asyncio.gather(*(one(routes) for routes in await self._route(rows)))
                if failures:
                    break
        except FeddrmError as error:
            failures.append(error)
        return Outcome(
            tuple(answers[row] for row in sorted(answers)),
            tuple(Silence(silo, error, tuple(sorted(rows))) for (silo, _), (error, rows) in silences.items()),
            failures[0] if failures else None,
        )

    async def _route(self, rows: Sequence[int]) -> tuple[tuple[Routed, ...], ...]:
        ask = self.questions
        return await route_rows(ask.coordinator, ask.model, ask.home, self.codes, rows, ask.now_ms())

    async def _row(
        self, routes: tuple[Routed, ...], silent: dict[str, FeddrmError], turns: int = _ROUTES_OF_ONE_ROW
    ) -> tuple[Answered | None, dict[str, FeddrmError]]:
        """The answer to one row, if anybody gave one, and the errors of those of its silos that did not.

        Args:
            silent: hospitals that are not asked any more, and why; grows.
            turns: how often the row may still be routed and asked.

        Raises:
            FeddrmError: what is neither a refusal nor an absence; an absence, if all of a row's silos are away, also
                after it was routed again.
        """
        heard = await self._hear(routes, silent)
        errors = {silo: said for silo, said in heard.items() if isinstance(said, FeddrmError)}
        for error in errors.values():
            if not (_refuses(error) or _absent(error)):
                raise error
        if len(errors) < len(routes):
            silent.update(errors)
            spoken = [said for said in heard.values() if not isinstance(said, FeddrmError)]
            return self._averaged(routes, spoken, tuple(errors)), errors
        refusals = {silo: error for silo, error in errors.items() if _refuses(error)}
        if refusals:
            silent.update(refusals)
            return None, refusals
        last = next(iter(errors.values()))
        # A hospital that has no room was asked again for as long as the person wished.
        if turns == 1 or any(isinstance(error, BusyError) for error in errors.values()):
            raise last
        (again,) = await self._route([routes[0].row])
        return await self._row(again, silent, turns - 1)

    async def _hear(
        self, routes: tuple[Routed, ...], silent: dict[str, FeddrmError]
    ) -> dict[str, npt.NDArray[np.float64] | FeddrmError]:
        """What each silo of a row says, or why it says nothing, in the row's order: an error of one of two must not
        leave the other's answer unheard.

        Who was away is not waited for where another one answers; where nobody does, it may be back.
        """
        # Other rows forget absences while this one waits.
        before = dict(silent)
        heard: dict[str, npt.NDArray[np.float64] | FeddrmError] = {}

        async def put(routed: Routed) -> None:
            try:
                heard[routed.silo.name] = await self.questions.put(routed)
            except FeddrmError as error:
                heard[routed.silo.name] = error

        await asyncio.gather(*(put(one) for one in routes if one.silo.name not in before))
        if all(isinstance(said, FeddrmError) for said in heard.values()):
            away = [one for one in routes if one.silo.name in before and not _refuses(before[one.silo.name])]
            await asyncio.gather(*(put(one) for one in away))
        for name in [name for name, said in heard.items() if not isinstance(said, FeddrmError)]:
            silent.pop(name, None)
        return {one.silo.name: (before | heard)[one.silo.name] for one in routes}

    def _averaged(
        self, routes: tuple[Routed, ...], spoken: Sequence[npt.NDArray[np.float64]], missing: tuple[str, ...]
    ) -> Answered:
        """The mean in the plan's order; the route was refused unless all of its silos answer the same question."""
        mean = np.mean(np.stack(spoken), axis=0)
        best = int(mean.argmax())
        silos = tuple(one.silo.name for one in routes)
        label = self.questions.model.plan.at(silos[0]).schema_.target.classes[best]
        return Answered(routes[0].row, silos, missing, label, round(float(mean[best]), 6))
