"""The query relay survives whatever a querier, a model or a stream does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inference_bench import RELEASE, Bench
from silo_harness import NOW, Trial

import silo.relay
from feddrm.contract.errors import UnreachableError
from feddrm.contract.query_messages import Answer, SealedQuery
from feddrm.method.layout import initial_model, initial_personal, layout_of
from silo.inference import REFUSED
from silo.relay import Relay, Released


class Streams:
    """One stream after another, each of which brings some queries and ends when all are answered."""

    def __init__(self, *streams: list[SealedQuery]) -> None:
        self.streams = list(streams)
        self.answers: list[Answer] = []
        self.done = asyncio.Event()

    async def serve(self, _: Any, outbox: asyncio.Queue[Any], receive: Callable[[SealedQuery], None]) -> None:
        if not self.streams:
            self.done.set()
            await asyncio.sleep(60)
        queries = self.streams.pop(0)
        for query in queries:
            receive(query)
        for _ in queries:
            self.answers.append(await outbox.get())
        raise UnreachableError("The stream broke.")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path, capacity=8)
    trial: Trial = bench.trial
    layout = layout_of(trial.plan)
    bench.width = trial.plan.schema_.width
    bench.answerer._width_of = lambda release: bench.width if release == RELEASE else None
    personal = initial_personal(layout, trial.plan_hash)
    model = initial_model(layout, trial.plan_hash)
    bench.state.add_job(trial.plan_hash, trial.signed_plan.signed, model, personal)
    assert bench.state.add_release(RELEASE, trial.plan_hash, model, personal)
    monkeypatch.setattr(silo.relay, "_now_ms", lambda: NOW)
    return bench


def run(bench: Bench, *streams: list[SealedQuery], problem: Callable[[], str] = lambda: "") -> list[Answer]:
    link = Streams(*streams)
    relay = Relay(bench.answerer, Released(bench.state, 1, "alpha"), 8, problem)

    async def serve() -> None:
        task = asyncio.create_task(relay.run(link))  # type: ignore[arg-type]
        done = asyncio.create_task(link.done.wait())
        finished, _ = await asyncio.wait({task, done}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert finished == {done}, "the relay ended"
        task.cancel()

    asyncio.run(serve())
    relay.close()
    return link.answers


def test_a_query_that_would_overflow_the_model_is_refused_and_the_next_is_answered(bench: Bench) -> None:
    wild, _ = bench.ask(width=bench.width, value=3.4e38)
    good, _ = bench.ask(width=bench.width, value=0.5)
    answers = {answer.query: answer for answer in run(bench, [wild, good])}
    assert answers[wild.query] == Answer(wild.query, refusal=REFUSED)
    assert answers[good.query].answer


def test_a_model_that_overflows_is_a_refusal(bench: Bench) -> None:
    bench.state.rows.execute("UPDATE releases SET model=?", (np.full(9999, 2**62, "<i8").tobytes()[: _size(bench)],))
    query, _ = bench.ask(width=bench.width)
    assert run(bench, [query]) == [Answer(query.query, refusal=REFUSED)]


def _size(bench: Bench) -> int:
    return 8 * layout_of(bench.trial.plan).shared_size


def test_unexpected_errors_are_refusals(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    first, _ = bench.ask(width=bench.width)
    second, _ = bench.ask(width=bench.width)
    with monkeypatch.context() as patch:
        patch.setattr(bench.answerer, "_open", broken)
        assert run(bench, [first]) == [Answer(first.query, refusal=REFUSED)]
    with monkeypatch.context() as patch:
        patch.setattr(Released, "predictor", broken)
        assert run(bench, [second]) == [Answer(second.query, refusal=REFUSED)]
    third, _ = bench.ask(width=bench.width)
    assert run(bench, [third])[0].answer


def test_a_stream_that_breaks_or_misbehaves_is_opened_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = bench.ask(width=bench.width)
    second, _ = bench.ask(width=bench.width)
    serve, calls = Streams.serve, []

    async def flaky(self: Streams, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        await serve(self, *arguments)

    monkeypatch.setattr(Streams, "serve", flaky)
    assert all(answer.answer for answer in run(bench, [first], [second]))
    assert len(calls) == 4


def test_a_permission_that_is_taken_back_holds_from_the_next_query_on_and_ends_the_stream(bench: Bench) -> None:
    first, _ = bench.ask(width=bench.width)
    second, _ = bench.ask(width=bench.width)
    third, _ = bench.ask(width=bench.width)
    problems: list[str] = ["", "", "queries.serve is false"]

    def problem() -> str:
        return problems.pop(0) if len(problems) > 1 else problems[0]

    link = Streams([first, second], [third])
    relay = Relay(bench.answerer, Released(bench.state, 1, "alpha"), 8, problem)

    async def serve() -> None:
        task = asyncio.create_task(relay.run(link))  # type: ignore[arg-type]
        while problems != ["queries.serve is false"]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert link.streams == [[third]], "no stream is opened while it is forbidden"
        assert all(not answer.answer for answer in link.answers if answer.query != first.query)
        problems[:] = [""]
        relay.renew(bench.answerer.roster)
        while link.streams:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            while not any(answer.query == third.query for answer in link.answers):
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(serve())
    relay.close()
    assert next(answer for answer in link.answers if answer.query == third.query).answer
