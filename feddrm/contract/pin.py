"""The roster that a member pinned, and the newer one that waits for a person's approval (design section 4).

Whatever arrives over the network can at most become *pending*. Only `accept` changes what is trusted, after a person
saw the differences; a lower version, or another roster of the same version, is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from feddrm.contract.authority import day
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.files import atomic_write, make_directory, read_bounded
from feddrm.contract.kit import FederationRoot
from feddrm.contract.locks import exclusive
from feddrm.contract.roster import Roster, RosterDifference, difference, roster_hash, verify_roster
from feddrm.contract.signed import Signed

PINNED_FILE: Final = "roster.signed"
PENDING_FILE: Final = "roster.pending"
APPROVALS_FILE: Final = "roster.approvals"
HISTORY_DIRECTORY: Final = "rosters"
_LOCK_FILE: Final = "roster.lock"
_MAXIMUM_HISTORY: Final = 256


class Offer(Enum):
    """What became of an offered roster."""

    PINNED_ALREADY = "pinned already"
    PENDING = "waits for approval"


@dataclass(frozen=True, slots=True)
class RosterPin:
    """The roster files of a member's startup directory. Every read verifies them again against the trust anchor."""

    directory: Path
    anchor: FederationRoot

    def signed(self) -> Signed:
        """The pinned roster as signed.

        Raises:
            InputError: missing or damaged.
        """
        return _read(self.directory / PINNED_FILE)

    def roster(self) -> Roster:
        """The pinned roster, verified; whether it is current is the caller's matter.

        Raises:
            InputError: missing or damaged.
            VerificationError: not signed by the operator.
        """
        return self._verify(self.signed())

    def history(self) -> tuple[Signed, ...]:
        """Rosters that were pinned before, newest first: whose keys they list may have signed what is still kept.

        Raises:
            InputError: one is damaged.
        """
        files = sorted((self.directory / HISTORY_DIRECTORY).glob("*.signed"), reverse=True)
        return tuple(_read(path) for path in files[:_MAXIMUM_HISTORY])

    def pending(self) -> tuple[Signed, Roster, RosterDifference] | None:
        """The roster that waits for approval, and how it differs from the pinned one.

        Raises:
            InputError: damaged.
            VerificationError: not signed by the operator, or not newer than the pinned one.
        """
        path = self.directory / PENDING_FILE
        if not path.exists():
            return None
        signed = _read(path)
        roster, pinned = self._verify(signed), self.roster()
        if roster.version <= pinned.version:
            # Left over from a crash between the two steps of `accept`.
            return None
        return signed, roster, difference(pinned, roster)

    def offer(self, signed: Signed, now_ms: int) -> Offer:
        """Take note of a roster that arrived; it is stored as pending when it is newer than all that is known.

        Raises:
            VerificationError: forged, expired, older than the known one, or a second roster of one version.
            MalformedError: not a roster.
        """
        offered = self._verify(signed)
        offered.check_current(now_ms)
        with exclusive(self.directory / _LOCK_FILE, what="Another command"):
            pinned = self.signed()
            newest = self._verify(pinned)
            if signed.body == pinned.body:
                return Offer.PINNED_ALREADY
            waiting = self.pending()
            if waiting is not None:
                if signed.body == waiting[0].body:
                    return Offer.PENDING
                newest = waiting[1]
            if offered.version < newest.version:
                raise VerificationError(
                    f"Roster version {offered.version} was offered, but version {newest.version} is known here; "
                    "rosters do not go back.",
                    remedy="Ask the operator to publish the newest roster.",
                )
            if offered.version == newest.version:
                raise VerificationError(
                    f"Two different rosters carry version {offered.version} and the operator's signature.",
                    remedy="Call the operator: the key may be misused. Nothing was accepted.",
                )
            atomic_write(self.directory / PENDING_FILE, signed.to_json().encode())
        return Offer.PENDING

    def accept(self, version: int, now_ms: int) -> Roster:
        """Pin the pending roster, which a person approved, and record the approval.

        Args:
            version: the version whose differences the person saw, so that another that arrived since is not meant.

        Raises:
            InputError: nothing is pending, or another version.
            VerificationError: it has expired meanwhile.
        """
        with exclusive(self.directory / _LOCK_FILE, what="Another command"):
            waiting = self.pending()
            if waiting is None:
                raise InputError("No roster waits for approval.")
            signed, roster, changes = waiting
            if roster.version != version:
                raise InputError(
                    f"Version {roster.version} waits for approval now, not version {version}.",
                    remedy="Look at the differences again.",
                )
            roster.check_current(now_ms)
            # The approval first: after a crash in between it says what the person did, and accept runs again.
            self._record(signed, roster, changes, now_ms)
            old = self.signed()
            make_directory(self.directory / HISTORY_DIRECTORY)
            file = self.directory / HISTORY_DIRECTORY / f"{self._verify(old).version:016d}.signed"
            atomic_write(file, old.to_json().encode())
            atomic_write(self.directory / PINNED_FILE, signed.to_json().encode())
            (self.directory / PENDING_FILE).unlink(missing_ok=True)
        return roster

    def _verify(self, signed: Signed) -> Roster:
        return verify_roster(signed, federation=self.anchor.federation, operator=self.anchor.operator)

    def _record(self, signed: Signed, roster: Roster, changes: RosterDifference, now_ms: int) -> None:
        path = self.directory / APPROVALS_FILE
        entry = {
            "approved": day(now_ms),
            "version": roster.version,
            "roster": roster_hash(signed.body).hex(),
            "differences": list(changes.lines()),
        }
        before = read_bounded(path) if path.exists() else b""
        atomic_write(path, before + json.dumps(entry, ensure_ascii=False).encode() + b"\n")


def _read(path: Path) -> Signed:
    data = read_bounded(path)
    try:
        return Signed.from_json(data)
    except MalformedError as error:
        raise InputError(f"{path} is damaged.", remedy="Join again with the kit that you were given.") from error
