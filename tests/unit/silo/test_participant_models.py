"""An update belongs to the model that it was trained from."""

from __future__ import annotations

import pytest
from silo_harness import Desk

from feddrm.contract.messages import AbortRequest
from secagg.bodies import Abort
from secagg.wire import Step
from silo.books import Books


@pytest.mark.parametrize("restart", [False, True])
def test_an_update_is_masked_only_for_the_model_it_was_trained_from(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """The ledger's reservation says which model that was. Whatever led there, a retry with another is declined."""
    desk.open()
    alpha = desk.houses["alpha"]
    assert alpha.frames(Step.KEYS)
    for house in desk.houses.values():
        house.handle(AbortRequest(desk.announcement_hash, "again"))
    if restart:
        alpha.restart()
    honest = Books.starts_from
    monkeypatch.setattr(Books, "starts_from", lambda self, work, number: bytes(32))
    desk.open(desk.announcement(attempt=2))
    assert not alpha.frames(Step.KEYS)
    assert not Abort.decode(alpha.frames(Step.ABORT)[-1].body).released
    monkeypatch.setattr(Books, "starts_from", honest)
    desk.open(desk.announcement(attempt=3))
    assert alpha.frames(Step.KEYS)
    assert alpha.trained == [1]
