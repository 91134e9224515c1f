"""A hospital that refuses is named, with what a person can do about it; over real gRPC, by the status that is sent."""

from __future__ import annotations

import json

import pytest
from query_world import NAMES, World

from feddrm.cli import invoke
from feddrm.contract import query_messages as q
from feddrm.contract.errors import BudgetError, FeddrmError, UnreachableError
from feddrm.query.cli import app
from feddrm.transport.status import BusyError, SiloRefusedError, UnknownQuerierError


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            UnknownQuerierError("secret detail"),
            4,
            (
                "hospital does not know this querier yet",
                "desk is not in the roster",
                "must accept roster version 1",
                "feddrm-silo roster show",
            ),
        ),
        (SiloRefusedError("secret detail"), 4, ("hospital refuses the question", "The log of its agent says why")),
        (BudgetError("secret detail"), 5, ("hospital gives desk no more answers today", "answers_per_day")),
        (BusyError("secret detail"), 7, ("hospital is still busy", "--patience")),
        (UnreachableError("secret detail"), 7, ("hospital was not reached",)),
    ],
)
def test_who_refuses_is_named_and_who_can_act(
    world: World, capsys: pytest.CaptureFixture[str], error: FeddrmError, code: int, words: tuple[str, ...]
) -> None:
    def refuse(_: q.Ask) -> bytes:
        raise error

    world.on_ask = refuse
    table = world.directory / "patients.csv"
    table.write_text("age,sex\n40,f\n")
    command = ["ask", str(table), "--dir", str(world.querier), "--patience", "0", "--format", "json"]
    assert invoke(app, command) == code
    printed = capsys.readouterr()
    for word in words:
        # One that is away is given up for the next choice, which is then the one to be named.
        assert any(word.replace("hospital", name) in printed.err for name in NAMES)
    assert "secret detail" not in printed.err + printed.out
    assert json.loads(printed.out)["error"]["code"] == code
