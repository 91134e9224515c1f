"""`feddrm-aggregator status --watch`: a job followed to its end, across restarts of the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from feddrm.contract.errors import UnreachableError
from feddrm.contract.operator_messages import Status

_POLL_SECONDS: Final = 0.5
_LONGEST_PAUSE: Final = 10.0
IDLE: Final = "idle"


@dataclass(frozen=True, slots=True)
class Watch:
    """How a person follows a job.

    Attributes:
        ask: the coordinator's status now; raises UnreachableError while it is away.
        show: gets each status that differs from the one before.
        say: gets what is not a status: that the coordinator is away or back, or what is waited for.
        wait: wait for a job where none was started yet.
        patience: seconds for which a coordinator that answered before may be away.
        sleep, clock: seconds, of any steady clock.
    """

    ask: Callable[[], Status]
    show: Callable[[Status], None]
    say: Callable[[str], None]
    wait: bool
    patience: float
    sleep: Callable[[float], None]
    clock: Callable[[], float]

    def follow(self, at_rest: Callable[[Status], bool]) -> Status:
        """Show every change until `at_rest` holds, or until it is known that there is no job to follow.

        Returns:
            the last status.

        Raises:
            UnreachableError: there was no answer at first (an address may be wrong), or none for `patience` seconds.
        """
        newest = self.ask()
        self.show(newest)
        if newest.state == IDLE and self.wait:
            self.say("Waiting for a job to start.")
        while not at_rest(newest) and (self.wait or newest.state != IDLE):
            self.sleep(_POLL_SECONDS)
            before, newest = newest, self._again()
            if newest != before:
                self.show(newest)
        if newest.state == IDLE:
            self.say("There is no job to watch. Add --wait to wait for one.")
        return newest

    def _again(self) -> Status:
        """The next status; asked for again, ever less often, while the coordinator is away."""
        since, pause, said = self.clock(), _POLL_SECONDS, False
        while True:
            try:
                status = self.ask()
            except UnreachableError as error:
                if self.clock() - since > self.patience:
                    raise
                if not said:
                    self.say(f"{error.message} Asking again for up to {self.patience:g} s.")
                    said = True
                self.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                if said:
                    self.say("The coordinator answers again.")
                return status
