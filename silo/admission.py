"""Which announcements a silo enters: exactly the plan's next step, signed by the round key, once (design 6, R0)."""

from __future__ import annotations

from typing import Final

from feddrm.contract.announce import check_announcement
from feddrm.contract.errors import VerificationError
from feddrm.contract.messages import Announce
from feddrm.contract.schedule import STAGE_EVALUATE, rounds_of
from secagg.aborts import abort_certificate_valid
from secagg.errors import ProtocolViolation, UnsoundError, WireError
from secagg.keys import signature_valid
from secagg.session import Announcement
from secagg.wire import COORDINATOR, Step
from silo.catchup import Outcomes
from silo.context import Context, Work, needs_no_round, place_of
from silo.state import Job

_LARGEST_ATTEMPT: Final = 1 << 16


class Admission:
    """Checks R0 against the plan, this silo's model and its memory of what it entered."""

    def __init__(self, context: Context, outcomes: Outcomes) -> None:
        self._context = context
        self._outcomes = outcomes

    def signed(self, event: Announce) -> bool:
        """Whether the coordinator's round key signed it."""
        frame = event.frame
        return (
            frame.step == Step.ANNOUNCE
            and frame.sender == COORDINATOR
            and signature_valid(Step.ANNOUNCE, frame.body, frame.signature, self._context.roster.round_key)
        )

    def check(self, event: Announce, job: Job, work: Work, now_ms: int) -> Announcement:
        """Read R0. A certified outcome that comes with it is settled on the way.

        Raises:
            VerificationError, MalformedError: it is not exactly the plan's next step.
        """
        try:
            announcement = Announcement.decode(event.frame.body)
        except (WireError, UnsoundError) as error:
            raise VerificationError(f"It is unsound: {error}.") from error
        previous = self._outcomes.certified(event.previous, job, work, now_ms)
        if needs_no_round(self._context.state, work, job):
            raise VerificationError("The job has no further round.")
        if self._opened_before(job, work):
            raise VerificationError("Unmasking shares of a lost evaluation were released here: its sum may be known.")
        place = place_of(self._context, work, job, previous)
        check_announcement(announcement, work.plan, place, self._context.me)
        position = (announcement.stage, announcement.round, announcement.attempt)
        if position <= self._context.state.highest(job.plan):
            raise VerificationError("Its stage, round and attempt do not rise.")
        if self._context.state.was_refused(announcement.hash()):
            raise VerificationError("It was refused before.")
        if announcement.attempt > _LARGEST_ATTEMPT:
            raise VerificationError("Its attempt is out of range.")
        if announcement.deadline_ms <= now_ms:
            raise VerificationError("Its deadline has passed.")
        return announcement

    def _opened_before(self, job: Job, work: Work) -> bool:
        """Whether this silo helped to open the evaluation for which the next round is the spare one.

        The difference of two sums over other silos would be a silo's own figure. Of the K silos at least t - c honest
        ones released shares of a sum that was opened, and as they all refuse, K - t + c < t are left: none is opened
        beside it.
        """
        number = job.round + 1
        earlier = range(rounds_of(work.plan, STAGE_EVALUATE).start, number)
        entered = (self._context.state.entered(job.plan, STAGE_EVALUATE, before) for before in earlier)
        return any(each.released for sessions in entered for each in sessions)

    def retry_problem(self, event: Announce, announcement: Announcement) -> str:
        """Why the update of this round may not be masked again, or nothing (design 6, "Spent rounds and retries")."""
        a, state = announcement, self._context.state
        for entered in state.entered(a.plan, a.stage, a.round):
            if entered.released:
                return "unmasking shares of this round were released here"
            if not entered.masked or entered.certified:
                continue
            try:
                abort_certificate_valid(
                    event.abort_certificate,
                    announce_body=entered.announcement,
                    members=self._context.identities(entered.members),
                    u1=entered.members,
                )
            except ProtocolViolation as violation:
                return f"attempt {entered.attempt} was masked and has no abort certificate: {violation.reason}"
            state.mark(a.plan, a.stage, a.round, entered.attempt, "certified")
        return ""
