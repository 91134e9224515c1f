"""What a hospital decides while its agent runs: a roster that it approved, its data file, its policy (design 4 and 5).

Queries follow at once. What a job rests on is taken up between rounds only, and then exactly as by a process that is
started anew: nothing in memory of before, and another boot, by which the coordinator knows it. A job goes on under the
roster that its plan names for as long as the approved one leaves the job's silos and the round key alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from feddrm.contract.documents import parse_body
from feddrm.contract.errors import FeddrmError, InputError, MalformedError, VerificationError
from feddrm.contract.home import SiloHome
from feddrm.contract.pin import PINNED_FILE, Offer
from feddrm.contract.plan import Plan
from feddrm.contract.policy import POLICY_FILE
from feddrm.contract.roster import Roster, roster_hash, verify_roster
from feddrm.contract.signed import Signed
from silo.data import extractor_path, records_path
from silo.home import DATA_FILE, Home
from silo.state import Job, State

logger = logging.getLogger("silo")

LOOK_SECONDS: Final = 1.0
_ROSTER, _POLICY, _DATA, _RECORDS, _EXTRACTOR = "roster", "policy", "data", "records", "extractor"
_IN_USE: Final = "roster in use"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A roster that this hospital approved, verified."""

    signed: Signed
    roster: Roster

    @property
    def hash(self) -> bytes:
        """SHA-256 that names it, 32 bytes."""
        return roster_hash(self.signed.body)


def roster_for(job: Job | None, pinned: Pinned, before: Pinned | None) -> Pinned:
    """The roster to work by: the pinned one, but in a job the one `before` it, which the plan names.

    Who approves a new querier does not leave the job; who approves that a silo of it is gone, or has another key, does.
    """
    if job is None or before is None:
        return pinned
    plan = parse_body(job.signed.body, Plan, what="The plan")
    if before.roster.version != plan.roster_version or not _leaves_alone(plan, before.roster, pinned.roster):
        return pinned
    return before


def _leaves_alone(plan: Plan, old: Roster, new: Roster) -> bool:
    before, after = ({member.name: member.identity for member in roster.silos} for roster in (old, new))
    same = all(name in before and before[name] == after.get(name) for name in plan.silos)
    return same and old.round_key == new.round_key


class Renewal:
    """Looks whether the hospital changed one of its files, and keeps what the agent works by, durably.

    Make one before anything of the hospital's is read, so that no change falls in between.

    Args:
        now_ms: this machine's clock, milliseconds since the epoch.
    """

    def __init__(self, home: Home, member: SiloHome, state: State, now_ms: Callable[[], int]) -> None:
        self._home = home
        self._member = member
        self._state = state
        self._now_ms = now_ms
        self._files = {
            _ROSTER: member.pin.directory / PINNED_FILE,
            _POLICY: home.local / POLICY_FILE,
            _DATA: home.local / DATA_FILE,
        }
        self._taken = self._last = self._signatures()
        self._pinned = Pinned(member.signed_roster, member.roster)
        self._in_use = self._before()
        self._reasons: list[str] = []

    @property
    def due(self) -> bool:
        """Whether the agent is to begin anew, between rounds."""
        return bool(self._reasons)

    @property
    def roster(self) -> Roster:
        """The newest roster that this hospital approved."""
        return self._pinned.roster

    def take(self) -> Pinned:
        """The roster to work by from here on; a restart in the middle of a job finds it again."""
        for reason in self._reasons:
            logger.info("%s", reason)
        self._reasons = []
        self._in_use = chosen = self._wanted()
        self._state.set_fact(_IN_USE, chosen.signed.to_json().encode())
        self._state.note("roster", chosen.roster.version)
        return chosen

    def look(self, *, refusing: bool) -> bool:
        """Look at the files; True when one was changed.

        Args:
            refusing: the silo stays out of a job, or declined one, for what one of these files says.

        Raises:
            VerificationError, NotAuthorisedError: the roster that is pinned now is forged or expired, or does not list
                this silo with its keys any more. The agent ends, as it would not start either.
        """
        changes = self._changes()
        if _ROSTER in changes:
            self._reload()
        if _DATA in changes and (refusing or self._state.active_job() is not None):
            self._reasons.append("local/data.toml was changed: the records are read again.")
        if _POLICY in changes and refusing:
            self._reasons.append("local/policy.toml was changed: what was refused is looked at again.")
        if changes & {_RECORDS, _EXTRACTOR} and refusing:
            self._reasons.append("A file that local/data.toml names was changed: what was refused is looked at again.")
        wanted = self._wanted()
        if not self._reasons and self._in_use is not None and wanted.hash != self._in_use.hash:
            self._reasons.append(f"Roster version {wanted.roster.version} is in use now.")
        return bool(changes)

    def _changes(self) -> frozenset[str]:
        """Files that changed and then held still for one look: nobody is half-way through writing them."""
        now = self._signatures()
        found = frozenset(name for name in now if now[name] != self._taken[name] and now[name] == self._last[name])
        self._taken = {name: now[name] if name in found else taken for name, taken in self._taken.items()}
        self._last = now
        return found

    def _signatures(self) -> dict[str, tuple[int, ...]]:
        """Of each file, those that local/data.toml names included."""
        named: dict[str, Path | None] = {_RECORDS: None, _EXTRACTOR: None}
        with contextlib.suppress(FeddrmError):
            named = {_RECORDS: records_path(self._home), _EXTRACTOR: extractor_path(self._home)}
        files = self._files | named
        return {name: () if path is None else _signature(path) for name, path in files.items()}

    def _reload(self) -> None:
        try:
            signed = self._member.pin.signed()
        except InputError as error:
            logger.warning("The pinned roster cannot be read; version %d stays in use: %s", self.roster.version, error)
            return
        roster = self._verified(signed)
        replace(self._member, signed_roster=signed, roster=roster).check_current(self._now_ms())
        self._pinned = Pinned(signed, roster)
        wanted = self._wanted()
        if wanted.hash != self._pinned.hash:
            logger.info(
                "Roster version %d is approved. Queries follow it at once; the running job goes on with version %d,"
                " which its plan names.",
                roster.version,
                wanted.roster.version,
            )

    def _wanted(self) -> Pinned:
        return roster_for(self._state.active_job(), self._pinned, self._in_use)

    def offered(self, signed: Signed) -> None:
        """The coordinator shows a roster: it waits for a person, or is what is pinned already."""
        pin, directory = self._member.pin, self._member.directory
        try:
            offer = pin.offer(signed, self._now_ms())
            waiting = pin.pending()
        except FeddrmError as error:
            logger.warning("The coordinator's roster is refused: %s", error)
            return
        if offer is Offer.PENDING and waiting is not None:
            logger.warning(
                "Roster version %d waits for approval. See: feddrm-silo roster show --dir %s; then:"
                " feddrm-silo roster accept --dir %s",
                waiting[1].version,
                directory,
                directory,
            )

    def _before(self) -> Pinned | None:
        kept = self._state.fact(_IN_USE)
        if kept is None:
            return None
        try:
            signed = Signed.from_json(kept)
            return Pinned(signed, self._verified(signed))
        except (MalformedError, VerificationError) as error:
            logger.warning("The roster of the running job cannot be read back: %s", error)
            return None

    def _verified(self, signed: Signed) -> Roster:
        anchor = self._member.anchor
        return verify_roster(signed, federation=anchor.federation, operator=anchor.operator)


def _signature(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ino, status.st_size
