"""The query relay: a stream of its own, so that answers never queue behind model chunks (design 8 and 10)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from feddrm.contract.errors import FeddrmError
from feddrm.contract.plan import Plan
from feddrm.contract.query_messages import Answer, Capacity, SealedQuery, ServeEvent
from feddrm.contract.roster import Roster
from feddrm.method.shared_head import SharedHead
from silo.boundary import survivable
from silo.context import Work
from silo.inference import REFUSED, Admitted, Answerer
from silo.link import Backoff, Link
from silo.state import State
from silo.workshop import make_predictor

if TYPE_CHECKING:
    from feddrm.method.model import Predictor

logger = logging.getLogger("silo")


class Released:
    """The models of the releases that this silo signed; only the newest one asked for stays in memory."""

    def __init__(self, state: State, threads: int, me: str) -> None:
        self._state = state
        self._me = me
        self._threads = threads
        self._works: dict[bytes, Work] = {}
        self._loaded: tuple[bytes, Predictor] | None = None

    @property
    def newest(self) -> bytes | None:
        """Hash of the newest release."""
        return self._state.last_release()

    def plan(self, release: bytes) -> Plan | None:
        """The plan that a release is of; None when this silo did not sign it."""
        work = self._work(release)
        return None if work is None else work.plan

    def predictor(self, release: bytes) -> Callable[[], Predictor]:
        """A function that gives the model; call it in a worker thread, as it may load torch."""
        if self._loaded is not None and self._loaded[0] == release:
            loaded = self._loaded[1]
            return lambda: loaded
        work = self._work(release)
        if work is None:
            raise LookupError("a query was admitted for an unknown release")
        plan = work.plan.at(self._me)
        # As signed, not as the plan's newest: a release answers with its own model whatever happened to the job since.
        models = self._state.release_models(release)
        if models is None:
            raise LookupError("the state holds no model of a signed release")
        answering, personal = models
        model, shared = SharedHead.split(work.plan, work.layout, answering, self._me)

        def load() -> Predictor:
            predictor = make_predictor(plan, model, personal, self._threads, shared)
            self._loaded = (release, predictor)
            return predictor

        return load

    def _work(self, release: bytes) -> Work | None:
        if release not in self._works:
            name = self._state.release_plan(release)
            job = None if name is None else self._state.job(name)
            if job is None:
                return None
            self._works[release] = Work.of(job.signed.body)
        return self._works[release]


class Relay:
    """Answers queries over one stream, again after every break.

    Args:
        answerer: decides and seals.
        released: this silo's models.
        capacity: what this silo declares.
        problem: why the hospital answers no query now, or nothing; asked before every one.
    """

    def __init__(self, answerer: Answerer, released: Released, capacity: int, problem: Callable[[], str]) -> None:
        self._answerer = answerer
        self._released = released
        self._capacity = capacity
        self._problem = problem
        self._closed_for = ""
        self._changed = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="inference")

    def release_changed(self) -> None:
        """A newer release was signed: say so on a new stream."""
        self._changed.set()

    def renew(self, roster: Roster) -> None:
        """The hospital changed one of its files: take up its roster, and look whether it answers at all."""
        self._answerer.roster = roster
        before = self._closed_for
        if self._closed() != bool(before):
            self._changed.set()

    def _closed(self) -> bool:
        """Whether the hospital's policy as it is now forbids answers; says so when that changed."""
        problem = self._problem()
        if problem != self._closed_for:
            self._closed_for = problem
            logger.info("Queries are %s", f"not answered: {problem}." if problem else "answered.")
        return bool(problem)

    def close(self) -> None:
        """Let go of the worker thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, link: Link) -> None:
        """Serve for ever."""
        backoff = Backoff()
        while True:
            self._changed.clear()
            release = None if self._closed() else self._released.newest
            if release is None:
                await self._changed.wait()
                continue
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(self._serve(link, Capacity(self._capacity, release)))
                changed = group.create_task(self._changed.wait())
                await asyncio.wait({serving, changed}, return_when=asyncio.FIRST_COMPLETED)
                serving.cancel()
                changed.cancel()
            if not self._changed.is_set():
                await asyncio.sleep(backoff.next())

    def _receive(self, event: SealedQuery) -> Answer | Admitted | None:
        """Judge a query. Whatever goes wrong in that, the querier gets the one refusal and the agent lives."""
        try:
            if self._closed():
                # The stream ends, so that the router goes by this silo.
                self._changed.set()
                return Answer(event.query, refusal=REFUSED)
            admitted, detail = self._answerer.admit(event, _now_ms())
        except Exception as error:  # noqa: BLE001 - the boundary towards queriers
            survivable(error, f"a query of {event.querier}")
            return Answer(event.query, refusal=REFUSED)
        if detail:
            logger.warning("A query of %s is refused: %s", event.querier, detail)
        return admitted

    async def _serve(self, link: Link, capacity: Capacity) -> None:
        outbox: asyncio.Queue[ServeEvent] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as group:

                def receive(event: SealedQuery) -> None:
                    admitted = self._receive(event)
                    if isinstance(admitted, Answer):
                        outbox.put_nowait(admitted)
                    elif admitted is not None:
                        group.create_task(self._answer(admitted, outbox))

                await link.serve(capacity, outbox, receive)
        except* FeddrmError as errors:
            logger.info("The query relay was interrupted: %s", errors.exceptions[0])
        except* Exception as errors:  # noqa: BLE001 - the boundary towards the coordinator
            for error in errors.exceptions:
                survivable(error, "the query relay")

    async def _answer(self, admitted: Admitted, outbox: asyncio.Queue[ServeEvent]) -> None:
        """Answer a query, or refuse it for whatever reason: the agent lives."""
        try:
            load = self._released.predictor(admitted.release)
            prediction = await asyncio.get_running_loop().run_in_executor(
                self._pool, lambda: load().answer(admitted.features)
            )
            answer = self._answerer.finish(admitted, prediction.probabilities, _now_ms())
        except FeddrmError as error:
            logger.warning("A query could not be answered: %s", error)
            answer = self._answerer.fail(admitted, _now_ms())
        except Exception as error:  # noqa: BLE001 - the boundary towards queriers
            survivable(error, f"a query of {admitted.querier}")
            answer = self._answerer.fail(admitted, _now_ms())
        finally:
            # The stream broke meanwhile: the same question may come again on the next one.
            self._answerer.drop(admitted)
        outbox.put_nowait(answer)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
