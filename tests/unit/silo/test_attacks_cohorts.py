"""The same update is masked for a second session only on a certificate, whatever that session's cohort (design 6)."""

from __future__ import annotations

import pytest
from silo_harness import NAMES, Desk
from test_participant_sessions import BAD_CERTIFICATES, announce_to, statements

from feddrm.contract.messages import AbortRequest
from secagg.bodies import Abort
from secagg.wire import Step

THREE = ("alpha", "beta", "delta")
# First cohort, and the one that is announced afterwards.
CHANGES = {
    "smaller": (NAMES, THREE),
    "larger": (THREE, NAMES),
    "merely different": (THREE, ("alpha", "beta", "gamma")),
}


def masked(desk: Desk, cohort: tuple[str, ...]) -> None:
    desk.open(desk.announcement(cohort=cohort))
    for step in (Step.KEYS, Step.SHARES):
        desk.advance(step)
    assert all(desk.houses[name].frames(Step.MASKED) for name in cohort)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("certificate", BAD_CERTIFICATES)
@pytest.mark.parametrize("restart", [False, True], ids=["", "restarted"])
def test_another_cohort_needs_the_certificate_too(desk: Desk, change: str, certificate: str, restart: bool) -> None:
    first, second = CHANGES[change]
    masked(desk, first)
    # Of a session of three two signers are enough, so those that are too few are too few for all.
    forged = BAD_CERTIFICATES[certificate](desk)[: 1 if certificate == "too few" else None]
    before = {name: len(desk.houses[name].frames(Step.MASKED)) for name in NAMES}
    for name in set(first) & set(second):
        if restart:
            desk.houses[name].restart()
        desk.cohort = second
        sent = announce_to(desk, name, desk.announcement(attempt=2, cohort=second), forged)
        assert [event.frame.step for event in sent] == [Step.ABORT]
        assert not Abort.decode(sent[0].frame.body).released
        assert len(desk.houses[name].frames(Step.MASKED)) == (0 if restart else before[name])


@pytest.mark.parametrize("change", CHANGES)
def test_with_the_certificate_another_cohort_gets_the_update_once(desk: Desk, change: str) -> None:
    first, second = CHANGES[change]
    masked(desk, first)
    for name in first:
        desk.houses[name].handle(AbortRequest(desk.announcement_hash, "x"))
    certificate = tuple(desk.houses[name].frames(Step.ABORT)[-1] for name in first)
    desk.open(desk.announcement(attempt=2, cohort=second), certificate)
    for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY):
        desk.advance(step)
    desk.publish()
    assert desk.published.survivors == second
    assert all(desk.houses[name].trained == [1] for name in second)


def test_the_certificate_of_another_attempt_does_not_serve(desk: Desk) -> None:
    """Attempt 1 is certified and attempt 2 masked: a third needs the second's, and the first's again helps nobody."""
    masked(desk, NAMES)
    first = statements(desk, NAMES)
    for house in desk.houses.values():
        house.handle(AbortRequest(desk.announcement_hash, "x"))
    desk.open(desk.announcement(attempt=2), first)
    for step in (Step.KEYS, Step.SHARES):
        desk.advance(step)
    sent = announce_to(desk, "alpha", desk.announcement(attempt=3), first)
    assert [event.frame.step for event in sent] == [Step.ABORT]
